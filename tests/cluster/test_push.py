"""Push and polled consumers as real processes: shares follow joins, leaves and kill -9 within a second; locks within two."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dledger_client import Message, Producer
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import LIMIT_MS, LIMIT_S, wait_until

QUEUES = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One message in a listener."""

    at_ms: int
    name: str
    queue_id: int
    epoch: int
    number: int


class Members:
    """Processes of one consumer group, and the file they write to."""

    def __init__(self, cluster: Cluster, group: str, file: Path, kind: str) -> None:
        self.cluster, self.group, self.file, self.kind = cluster, group, file, kind
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        arguments = (self.cluster.bootstrap, self.group, "t", name, str(self.file), self.kind)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.processes[name] = subprocess.Popen([sys.executable, "-m", "tests.cluster.push_member", *arguments], cwd=ROOT, env=environment)

    def end(self, name: str, *, kill: bool = False) -> None:
        process = self.processes.pop(name)
        if kill:
            process.kill()
        else:
            process.terminate()
        process.wait(LIMIT_S)

    def lines(self) -> list[Line]:
        text = self.file.read_text().splitlines() if self.file.exists() else []
        rows = [line.split() for line in text]
        return [Line(int(at), name, int(queue), int(epoch), int(number)) for at, name, queue, epoch, number in rows]

    def described(self) -> dict[str, Any]:
        return dict(json.loads(self.cluster.cli_ok("group", "describe", self.group, "--json")))

    def shares(self) -> dict[str, list[int]]:
        if self.group not in [each["name"] for each in json.loads(self.cluster.cli_ok("group", "list", "--json"))["groups"]]:
            return {}  # nobody has come yet
        members = self.described()["members"]
        return {each["client_id"]: [queue["queue_id"] for queue in each["queues"] if queue["topic"] == "t"] for each in members}

    def wait_for_every_queue(self, event_ms: int) -> None:
        """Wait until every queue gave messages to a listener after the event; benchmarks/push.py measures how long that takes."""

        def firsts() -> dict[int, int]:
            found: dict[int, int] = {}
            for line in self.lines():
                if line.at_ms > event_ms and line.name in self.processes:
                    found.setdefault(line.queue_id, line.at_ms)
            return found if len(found) == QUEUES else {}

        wait_until(firsts, "messages from every queue", pause_s=0.3)


class Sending:
    """Numbered messages to every queue in turn, all the time."""

    def __init__(self, cluster: Cluster) -> None:
        self.sent = 0
        self._producer = Producer(cluster.bootstrap, "numbers", send_timeout_ms=LIMIT_MS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.wait(0.01):
            for queue_id in range(QUEUES):
                self._producer.send(Message("t", b"%d" % self.sent), queue_id=queue_id)
                self.sent += 1

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def members(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Members]:
    cluster.cli_ok("topic", "create", "t", "--queues", str(QUEUES))
    found = Members(cluster, "g", tmp_path / "lines", request.param)
    try:
        yield found
    finally:
        for process in found.processes.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize("members", ["concurrent"], indirect=True)
def test_queues_are_shared_anew_after_a_leave_and_a_death_and_a_reset_is_followed(cluster: Cluster, members: Members) -> None:
    with Sending(cluster) as sending:
        members.start("a")
        members.start("b")
        wait_until(lambda: members.shares() == {"a": [0, 1], "b": [2, 3]}, "the queues are shared anew")
        (listed,) = json.loads(cluster.cli_ok("group", "list", "--json"))["groups"]
        assert (listed["name"], listed["members"]) == ("g", 2)
        members.start("c")
        wait_until(lambda: members.shares() == {"a": [0, 1], "b": [2], "c": [3]}, "the queues are shared anew")
        left_ms = now_ms()
        members.end("a")
        members.wait_for_every_queue(left_ms)
        wait_until(lambda: members.shares() == {"b": [0, 1], "c": [2, 3]}, "the queues are shared anew")
        members.end("b", kill=True)
        members.wait_for_every_queue(now_ms())
        wait_until(lambda: members.shares() == {"c": [0, 1, 2, 3]}, "the queues are shared anew")
    wait_until(lambda: {line.number for line in members.lines()} == set(range(sending.sent)), "every message is given")
    before = len(members.lines())
    cluster.cli_ok("group", "reset-offset", "g", "--topic", "t", "--to", "first")
    # Some may come twice: a busy machine can keep a member silent for longer than it is waited for.
    wait_until(lambda: {line.number for line in members.lines()[before:]} == set(range(sending.sent)), "every message is given again")
    members.end("c")
    assert all(queue["lag"] == 0 for queue in members.described()["queues"] if queue["topic"] == "t")


def kept_over_a_failover(cluster: Cluster, members: Members) -> bool:
    """Kill the leader: whether locks kept their epochs.  They do when their owner reaches the next leader within 1.3 s
    (docs/reference/semantics, row K3), which the machine may be too busy for."""
    epochs = {queue["queue_id"]: queue["epoch"] for queue in members.described()["queues"] if queue["topic"] == "t"}
    victim = cluster.leader()
    cluster.kill(victim)
    failed_over_ms = now_ms()
    members.wait_for_every_queue(failed_over_ms)
    found = {line.queue_id: line.epoch for line in members.lines() if line.at_ms > failed_over_ms}
    cluster.start(victim)
    assert all(found[queue_id] >= epoch for queue_id, epoch in epochs.items())
    return found == epochs


@pytest.mark.parametrize("members", ["orderly"], indirect=True)
def test_locks_are_taken_over_from_the_dead_and_survive_a_failover(cluster: Cluster, members: Members) -> None:
    with Sending(cluster) as sending:
        members.start("a")
        members.start("b")
        wait_until(lambda: members.shares() == {"a": [0, 1], "b": [2, 3]}, "the queues are shared anew")
        members.end("a", kill=True)
        members.wait_for_every_queue(now_ms())
        wait_until(lambda: members.shares() == {"b": [0, 1, 2, 3]}, "the queues are shared anew")
        wait_until(lambda: kept_over_a_failover(cluster, members), "a failover that keeps the locks")
    wait_until(lambda: {line.number for line in members.lines()} == set(range(sending.sent)), "every message is given")
    by_queue: dict[int, list[Line]] = {}
    for line in members.lines():
        by_queue.setdefault(line.queue_id, []).append(line)
    for lines in by_queue.values():
        assert [line.epoch for line in lines] == sorted(line.epoch for line in lines)
        for epoch in {line.epoch for line in lines}:
            numbers = [line.number for line in lines if line.epoch == epoch]
            assert numbers == sorted(set(numbers))
    with contextlib.suppress(subprocess.TimeoutExpired):
        members.end("b")


@pytest.mark.parametrize("members", ["polled"], indirect=True)
def test_polled_members_lose_nothing_when_one_of_them_and_the_leader_are_killed(cluster: Cluster, members: Members) -> None:
    with Sending(cluster) as sending:
        for name in ("a", "b", "c"):
            members.start(name)
        wait_until(lambda: members.shares() == {"a": [0, 1], "b": [2], "c": [3]}, "the queues are shared")
        members.wait_for_every_queue(now_ms())
        members.end("b", kill=True)
        members.wait_for_every_queue(now_ms())
        cluster.kill(cluster.leader())
        members.wait_for_every_queue(now_ms())
        members.start("d")
        wait_until(lambda: members.shares() == {"a": [0, 1], "c": [2], "d": [3]}, "the queues are shared")
        members.end("a")
        members.wait_for_every_queue(now_ms())
    wait_until(lambda: {line.number for line in members.lines()} == set(range(sending.sent)), "every message is given")
    for name in ("c", "d"):
        members.end(name)
    wait_until(lambda: sum(queue["lag"] for queue in members.described()["queues"] if queue["topic"] == "t") <= 2, "all is committed")
