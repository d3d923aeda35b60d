"""A network of hosts: one bridge in a network namespace that has no way out, so that two labs side by side never meet.

Owns names, addresses and the ssh key.  All of it is gone with the process that made it, however that ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.machines.host import Host
from tests.machines.namespaces import Namespaces

SUBNET = "10.77.0"
CONTROLLER = f"{SUBNET}.1"  # the address under which hosts see this machine


class Lab:
    """Hosts in one network.  ``with Lab(folder, ["db0", "db1"]) as lab: lab["db0"].run("systemctl ...")``."""

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        """
        Args:
            folder: Where hosts keep what they write; deleted at the end.
            names: Hosts that are booted on entering.
        """
        assert os.geteuid() == 0, "hosts in namespaces need root"
        self._folder = folder
        self._names = list(names)
        self._hosts: dict[str, Host] = {}
        self._network: Namespaces | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        key = self.ssh_key
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        self._hosts_file.write_text(_hosts_text({}), encoding="utf-8")
        self._network = Namespaces.start("net", "mount", setup=f"mount --bind '{self._hosts_file}' /etc/hosts")
        try:
            for command in (
                "ip link set lo up",
                "ip link add lab type bridge forward_delay 0",
                f"ip address add {CONTROLLER}/24 dev lab",
                "ip link set lab up",
            ):
                self.run(command.split())
            self.add(*self._names)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    @property
    def ssh_key(self) -> Path:
        """The private key that root of every host lets in."""
        return self._folder / "id_ed25519"

    def add(self, *names: str) -> list[Host]:
        """Boot further hosts, all at once, and wait until they run."""
        made: list[Host] = []
        for name in names:
            number = 10 + len(self._hosts)
            host = Host(name, f"{SUBNET}.{number}", self._folder / name, self.network, authorized=self.ssh_key.with_suffix(".pub"))
            self._hosts[name] = host
            made.append(host)
        text = _hosts_text({name: host.address for name, host in self._hosts.items()})
        self._hosts_file.write_text(text, encoding="utf-8")
        for host in self._hosts.values():
            host.hosts_text = text
        for host in made:
            host.boot()
        for host in made:
            host.wait_running()
        return made

    def run(
        self,
        command: Sequence[str],
        *,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 600,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of this machine inside the lab's network, where names of hosts are known.  Its folder is /."""
        done = subprocess.run(
            self.network.command(command),
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        assert done.returncode == 0 or not check, f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def start(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, log: Path) -> subprocess.Popen[bytes]:
        """Start a program of this machine inside the lab's network; its output goes to ``log``.  Whoever starts it ends it."""
        with open(log, "ab") as output:
            return subprocess.Popen(
                self.network.command(command), env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    @property
    def network(self) -> Namespaces:
        assert self._network is not None, "the lab is not entered"
        return self._network

    @property
    def _hosts_file(self) -> Path:
        return self._folder / "hosts"

    def close(self) -> None:
        for host in self._hosts.values():
            host.pull_the_plug()
        if self._network is not None:
            self._network.end()
        shutil.rmtree(self._folder, ignore_errors=True)


def _hosts_text(addresses: Mapping[str, str]) -> str:
    return "".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", "controller": CONTROLLER, **addresses}.items())
