"""Each sabotaged build really breaks its promise, and the checkers see it; the product under the same treatment does not.

What is done to them here is the shortest way to the fault.  That a drill finds them is a test of the drill.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger_client import Message, Producer, PullConsumer
from dledger_client.types import SendFuture
from dledger_drill.checkers.check import check_all
from dledger_drill.checkers.model import ViolationKind
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.hosts.loop_disk import LoopDisk
from tests.drill.sabotage.cluster import SabotagedCluster
from tests.waiting import LIMIT_MS, LIMIT_S, wait_until

pytestmark = pytest.mark.cluster

QUEUE = {"topic": "t", "group": "g0", "queue": 0}
KILLS = 20
Clusters = Callable[..., SabotagedCluster]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Clusters]:
    made: list[SabotagedCluster] = []

    def make(sabotage: str, *, nodes: int = 3, data: Path = tmp_path) -> SabotagedCluster:
        made.append(SabotagedCluster(data, sabotage, nodes=nodes))
        made[-1].start()
        made[-1].cli_ok("topic", "create", "t", "--queues", "1")
        return made[-1]

    yield make
    for cluster in made:
        cluster.end()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    made = LoopDisk(tmp_path / "disk", None)
    yield made
    made.close()


class Load:
    """Sends to one queue without waiting for acknowledgements, until it is told to stop."""

    def __init__(self, cluster: SabotagedCluster) -> None:
        self.acknowledged = 0
        self._cluster = cluster
        self._stopped = threading.Event()
        self._sent: list[Operation] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        number = 0
        with Producer(self._cluster.bootstrap, send_timeout_ms=LIMIT_MS) as producer:
            while not self._stopped.wait(0.002):
                number += 1
                self._send(producer, f"load/{number}")

    def _send(self, producer: Producer, value: str) -> None:
        invoked_ns = time.monotonic_ns()

        def note(future: SendFuture) -> None:
            data = QUEUE | {"key": None, "value": value, "idempotent": True}
            outcome = Outcome.UNKNOWN
            if future.exception() is None:
                data["offset"] = future.result().queue_offset
                outcome = Outcome.OK
            self._sent.append(Operation("load", OperationKind.SEND, invoked_ns, time.monotonic_ns(), outcome, 1, data))
            self.acknowledged += outcome is Outcome.OK

        producer.send_async(Message("t", value.encode()), queue_id=0).add_done_callback(note)

    def go_on(self, count: int) -> None:
        """Return when ``count`` more are acknowledged."""
        wanted = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= wanted, f"{count} more acknowledged", pause_s=0.002)

    def broken(self) -> set[ViolationKind]:
        """What the checkers say of it, with what the queue holds now."""
        sent = sorted(self._sent, key=lambda operation: operation.invoked_ns)
        return {violation.kind for violation in check_all([*sent, stored(self._cluster)]).violations}


def stored(cluster: SabotagedCluster) -> Operation:
    values: list[str] = []
    with PullConsumer(cluster.bootstrap, timeout_ms=LIMIT_MS) as consumer:
        end = consumer.offsets("t")["g0", 0].max_offset
        while len(values) < end:
            values += [message.body.decode() for message in consumer.fetch("t", queue_id=0, offset=len(values), max_messages=1000)]
    data = QUEUE | {"first_offset": 0, "values": values, "keys": [None] * len(values)}
    now = time.monotonic_ns()
    return Operation("audit", OperationKind.STORED, now, now, Outcome.OK, 1, data)


def test_a_node_that_forgot_its_term_ends_when_it_starts_again(make_cluster: Clusters) -> None:
    cluster = make_cluster("forget-term-and-vote", nodes=1)
    cluster.kill("n0")
    cluster.start("n0", wait=False)
    assert cluster.processes["n0"].wait(LIMIT_S) == 1
    assert "hardstate says term 0, but the log has entries of term 1" in cluster.log_text("n0")


def test_leaders_that_forget_producers_store_what_is_sent_again_twice(make_cluster: Clusters) -> None:
    cluster = make_cluster("forget-producers")
    kills = 0
    with Load(cluster) as load:
        # While it goes on, what was sent since the queue was read counts as changed.
        while ViolationKind.DOUBLED not in load.broken():
            assert (kills := kills + 1) <= KILLS
            load.go_on(50)
            kill_leader(cluster)
            load.go_on(50)
    assert load.broken() == {ViolationKind.DOUBLED}


def test_leaders_that_remember_producers_store_it_once(make_cluster: Clusters) -> None:
    cluster = make_cluster("")
    with Load(cluster) as load:
        for _ in range(3):
            load.go_on(50)
            kill_leader(cluster)
            load.go_on(50)
    assert load.broken() == set()


def kill_leader(cluster: SabotagedCluster) -> None:
    """And start it again."""
    leader = cluster.leader()
    cluster.kill(leader)
    cluster.start(leader)


@pytest.mark.parametrize(("sabotage", "found"), [("", set()), ("acknowledge-before-sync", {ViolationKind.LOST})])
def test_what_is_acknowledged_before_it_is_synced_is_lost_with_the_power(
    disk: LoopDisk, make_cluster: Clusters, sabotage: str, found: set[ViolationKind]
) -> None:
    cluster = make_cluster(sabotage, nodes=1, data=disk.path)
    subprocess.run(["sync", "-f", disk.path], check=True, timeout=LIMIT_S)  # the cluster file and the topic
    with Load(cluster) as load:
        load.go_on(200)
    disk.power_off()
    cluster.kill("n0")
    disk.power_on()
    cluster.start("n0")
    assert load.broken() == found
