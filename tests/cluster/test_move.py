"""The commands of the guide of moving, run as the page has them, while messages are sent: no send fails, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.config.cluster_file import ClusterConfig
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import LocalCluster
from dledger_client import Message, PullConsumer
from tests.cluster.harness import ROOT
from tests.cluster.world import Sender
from tests.waiting import LIMIT_S, wait_until

PAGE = (ROOT / "docs" / "guides" / "operate" / "move.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^<!-- under load -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
TOPIC = "moved"


class Load:
    """A producer that sends all the time, and what became of each message."""

    def __init__(self, bootstrap: str) -> None:
        self.sender = Sender("move")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.sender.run, args=(bootstrap, self._stop, 50.0, self._make))
        self._thread.start()

    @staticmethod
    def _make(number: int) -> tuple[Message, str | None]:
        return Message(TOPIC, b"%08d" % number), None

    def wait_for_more(self) -> None:
        """Return when messages were acknowledged that were not sent yet at this call."""
        acknowledged = self.sender.acknowledged
        wanted = len(self.sender.sent_at_ms) + 10
        wait_until(lambda: len(acknowledged) >= wanted, lambda: f"{len(acknowledged)} of {wanted}, {self.sender.refused}")

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)

    def end(self) -> set[bytes]:
        """Stop sending; the bodies, of which none failed."""
        self._stop.set()
        self._thread.join(LIMIT_S)
        sender = self.sender
        assert (sender.refused, sender.unknown) == ({}, {})
        assert sender.acknowledged.keys() == sender.sent_at_ms.keys()
        return set(sender.acknowledged)


class Place:
    """A folder in which a reader of the page works, on the shipped local cluster with free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shipped = (ROOT / "cluster-configs" / "local-3.yaml").read_text(encoding="utf-8")
        literal = sorted({*ADDRESS.findall(shipped), *ADDRESS.findall(PAGE)})
        self._ports = dict(zip(literal, (f"127.0.0.1:{port}" for port in free_ports(len(literal))), strict=True))
        start = folder / "start.yaml"
        start.write_text(self._local(shipped).replace("1GiB", "16MiB"), encoding="utf-8")
        self.run(f"dledger up --config {start} && dledger topic create {TOPIC} --queues 3")

    def _local(self, text: str) -> str:
        return ADDRESS.sub(lambda found: self._ports.get(found.group(), found.group()), text)

    def run(self, text: str) -> str:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {key: value for key, value in os.environ.items() if key != "DLEDGER_CONFIG"} | {"PATH": path, "PYTHONPATH": str(ROOT)}
        command = ["bash", "-euo", "pipefail", "-c", self._local(text)]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
        assert done.returncode == 0, f"{text}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def section(self, title: str) -> None:
        """Run the block of that section."""
        (text,) = [text for name, text in SECTION.findall(PAGE) if name == title]
        (block,) = BLOCK.findall(text)
        self.run(block)

    @property
    def config(self) -> ClusterConfig:
        return ClusterConfig.load(str(self.folder / "data" / "cluster.yaml"))

    def address(self, node_id: str) -> str:
        return next(node.address for _, node in self.config.all_nodes() if node.id == node_id)

    def sources(self, node_id: str) -> dict[str, str]:
        """The addresses of the first group's members as that node knows them."""
        group = json.loads(self.run(f"dledger status --json --bootstrap {self.address(node_id)}"))["groups"][0]
        return {node["id"]: node["address"] for node in group["nodes"]}

    def end(self) -> None:
        for pid in LocalCluster(self.config, self.folder / "data").running().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.end()


@pytest.mark.timeout(1800)
def test_the_page_runs_as_written_and_no_send_fails(place: Place) -> None:
    bootstrap = place.address("n0")
    with Load(bootstrap) as load, PullConsumer(bootstrap, group="reader", read_from="follower") as reader:
        load.wait_for_more()
        place.section("Take over changed settings")
        load.wait_for_more()
        old = place.address("n2")
        place.section("Move a node to another address")
        new = place.address("n2")
        assert new != old
        for node in ("n0", "n1", "n2"):  # n0 and n1 were not restarted
            wait_until(lambda node=node: place.sources(node)["n2"] == new, lambda node=node: str(place.sources(node)))
        place.section("Move a data folder to another disk")
        assert (place.folder / "data" / "n2").resolve() == place.folder / "disk2" / "n2"
        load.wait_for_more()
        place.section("More voters")
        status = json.loads(place.run("dledger cluster status --json"))
        assert [(group["name"], group["wanted_voters"]) for group in status["groups"]] == [("g0", 5)]
        place.section("A new replica group")
        load.wait_for_more()
        sent = load.end()
        found = {message.body for queue in range(3) for message in all_of(reader, queue)}
    assert found == sent, "a consumer that began before all of this reads everything"


def all_of(reader: PullConsumer, queue: int) -> Iterator[Any]:
    offset, end = 0, reader.offsets(TOPIC)["g0", queue].max_offset
    while offset < end:
        messages = reader.fetch(TOPIC, queue_id=queue, offset=offset, max_messages=500)
        yield from messages
        offset = messages[-1].queue_offset + 1
