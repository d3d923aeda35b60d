"""Runs cluster-configs/containers/compose.yaml without an engine: the services of the project's own image, in the order that it says.

Owns what is understood of a compose file: variables with defaults, entrypoint, command, configs, volumes, tmpfs, ports, depends_on,
healthcheck, profiles.  Services of other images cannot be had here and are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.containers import Container, Image, Network
from tests.waiting import wait_until

COMPOSE = Path(__file__).resolve().parents[2] / "cluster-configs" / "containers" / "compose.yaml"
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
OWN_IMAGE = "dledger:local"
SECONDS = {"s": 1, "m": 60, "h": 3600}


def document() -> dict[str, Any]:
    """The compose file with the defaults of its variables."""
    found: dict[str, Any] = yaml.safe_load(VARIABLE.sub(lambda match: match[2], COMPOSE.read_text(encoding="utf-8")))
    return found


def own_services() -> dict[str, dict[str, Any]]:
    """The services of the project's image that start without a profile."""
    services = document()["services"]
    return {name: each for name, each in services.items() if each["image"] == OWN_IMAGE and not each.get("profiles")}


def seconds(text: str) -> int:
    return int(text[:-1]) * SECONDS[text[-1]]


def published(service: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Address of this machine, its port, and the container's port."""
    split = (each.rsplit(":", 2) for each in service.get("ports", ()))
    return [(address, int(outer), int(inner)) for address, outer, inner in split]


class Composition:
    """Its services, started by ``up``."""

    def __init__(self, image: Image, folder: Path) -> None:
        self._document = document()
        self.services = own_services()
        self.containers: dict[str, Container] = {}
        self._folder = folder
        self.network = Network(folder)
        try:
            self.network.name(*self.services)
            for name in self.services:
                self.containers[name] = Container(image, name, self.network, folder / name, self._mounts(name))
        except BaseException:
            self.down()
            raise

    def volume(self, name: str) -> Path:
        return self._folder / "volumes" / name

    def _mounts(self, name: str) -> dict[str, Path]:
        service = self.services[name]
        mounts: dict[str, Path] = {}
        for volume in service.get("volumes", ()):
            source, target = volume.split(":")[:2]
            assert source in self._document["volumes"], volume
            mounts[target] = self.volume(source)
        for each in service.get("tmpfs", ()):
            if not each.startswith("/tmp:"):  # which every container has here
                mounts[each.split(":")[0]] = self.volume(f"tmpfs-of-{name}")
        for folder in mounts.values():
            folder.mkdir(parents=True, exist_ok=True)
        for each in service.get("configs", ()):
            mounts[each["target"]] = COMPOSE.parent / self._document["configs"][each["source"]]["file"]
        return mounts

    def up(self) -> None:
        """Start every service when those that it depends on are as it wants them, and wait until all are healthy."""
        waiting = dict(self.services)
        while waiting:
            name = wait_until(
                lambda: next((each for each in waiting if self._may_start(each)), None), lambda: f"{list(waiting)} may start", pause_s=0.5
            )
            assert name is not None
            self.start(name)
            del waiting[name]
        for name in self.services:
            self.wait_healthy(name)

    def wait_healthy(self, name: str) -> None:
        wait_until(lambda: self.healthy(name), lambda: f"{name} is healthy\n{self.containers[name].log[-3000:]}", pause_s=0.5)

    def start(self, name: str) -> None:
        service = self.services[name]
        self.containers[name].start(service["command"], service.get("entrypoint"))
        for _address, outer, inner in published(service):
            self.network.publish(name, outer, inner)

    def _may_start(self, name: str) -> bool:
        reached = {
            "service_completed_successfully": lambda other: not self.containers[other].running and self.containers[other].wait() == 0,
            "service_healthy": self.healthy,
        }
        wanted = self.services[name].get("depends_on", {})
        return all(other in self.started and reached[each["condition"]](other) for other, each in wanted.items())

    @property
    def started(self) -> list[str]:
        return [name for name, container in self.containers.items() if container.was_started]

    def healthy(self, name: str) -> bool:
        """By its health check; a service without one has done its work."""
        check = self.services[name]["healthcheck"]
        return not self.containers[name].running if check.get("disable") else self.containers[name].healthy(check["test"])

    def down(self) -> None:
        for container in self.containers.values():
            container.remove()
        self.network.close()
