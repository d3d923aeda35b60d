"""The failover bench: a private cluster under load loses its leader, round after round; every message is accounted for.

Owns the ways to lose it (``FAULTS``), the load (numbered messages at a steady rate), the pause of each round (from the fault to the
acknowledgement of a message sent after it; of a transfer, the longest time without an acknowledgement) and the account at the end: each
acknowledged number exactly once, numbers rising within each queue.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dledger_cli.local.private_cluster import PrivateCluster
from dledger_cli.local.swept_folder import swept_folder
from dledger_client import Admin, Message, Producer, PullConsumer
from dledger_drill.bench.bodies import Bodies
from dledger_drill.bench.report import Figures, Progress, announce
from dledger_drill.cluster.cuttable import CuttableCluster
from dledger_wire.errors import DeadlineExceededError

TOPIC = "failover"
QUEUES = 4
TIMEOUT_S = 20.0


PAUSED_S = 5.0  # how long a paused leader stands still


def _kill(cluster: PrivateCluster, leader: str) -> Callable[[], None]:
    cluster.kill(leader)  # returns when the process is gone: what is sent from here on, the dead leader cannot acknowledge
    return lambda: cluster.start(leader)


def _pause(cluster: PrivateCluster, leader: str) -> Callable[[], None]:
    since = time.perf_counter()
    cluster.pause(leader)

    def go_on() -> None:
        time.sleep(max(0.0, since + PAUSED_S - time.perf_counter()))
        cluster.resume(leader)
        cluster.wait_healthy()

    return go_on


def _partition(cluster: PrivateCluster, leader: str) -> Callable[[], None]:
    assert isinstance(cluster, CuttableCluster)  # noqa: S101 - such a one is made for it; for the type checker
    cables = cluster.cables
    cluster.isolate(leader)

    def mend() -> None:
        cables.heal()
        cluster.wait_healthy()

    return mend


def _transfer(cluster: PrivateCluster, leader: str) -> Callable[[], None]:
    target = next(node_id for node_id in cluster.local.node_ids() if node_id != leader)
    with Admin(cluster.bootstrap, timeout_ms=int(TIMEOUT_S * 1000)) as admin:
        admin.transfer_leader(target)
    return cluster.wait_healthy


# Each starts the fault and returns what ends it.
FAULTS: dict[str, Callable[[PrivateCluster, str], Callable[[], None]]] = {
    "kill": _kill,
    "pause": _pause,
    "partition": _partition,
    "transfer": _transfer,
}


@dataclass
class FailoverResult:
    """Pauses are in ``figures.latencies_ms``, one a round."""

    figures: Figures = field(default_factory=Figures)
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0


class _Load:
    """Sends numbered messages at a steady rate from a thread of its own."""

    def __init__(self, producer: Producer, bodies: Bodies, rate: float) -> None:
        self.acknowledged: set[int] = set()
        self.failed = 0
        self._producer, self._bodies, self._rate = producer, bodies, rate
        self._stop = threading.Event()
        self._watched_from = float("inf")  # messages sent later than that count for the round's pause
        self._seen = threading.Event()
        self.seen_at = 0.0
        self.longest_gap_s = 0.0  # between two acknowledgements; the reader sets it to zero
        self._last_at = time.perf_counter()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        start, number = time.perf_counter(), 0
        while not self._stop.is_set():
            due = start + number / self._rate
            pause = due - time.perf_counter()
            if pause > 0.001:
                time.sleep(pause)
            sent_at = time.perf_counter()
            message = Message(TOPIC, self._bodies.make(number))
            self._producer.send_async(message).add_done_callback(partial(self._done, number, sent_at))
            number += 1
        self._producer.flush()

    def _done(self, number: int, sent_at: float, future: Any) -> None:
        if future.exception() is not None:
            self.failed += 1
            return
        self.acknowledged.add(number)
        now = time.perf_counter()
        self.longest_gap_s = max(self.longest_gap_s, now - self._last_at)
        self._last_at = now
        if sent_at > self._watched_from and not self._seen.is_set():
            self.seen_at = now
            self._watched_from = float("inf")
            self._seen.set()

    def watch(self) -> None:
        """Wait for the acknowledgement of a message sent from now on."""
        self._seen.clear()
        self._watched_from = time.perf_counter()

    def pause_ms(self, since: float) -> float:
        if not self._seen.wait(TIMEOUT_S):
            raise DeadlineExceededError(f"no write was acknowledged within {TIMEOUT_S:g} s after the fault")
        return (self.seen_at - since) * 1e3

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def measure_failovers(fault: str, rounds: int, bodies: Bodies, rate: float) -> FailoverResult:
    """Run the bench; DeadlineExceededError when the group does not come back."""
    result, make = FailoverResult(), CuttableCluster if fault == "partition" else PrivateCluster
    with swept_folder("dledger-failover-") as folder, make(folder.path / "data") as cluster:
        cluster.start()
        announce(cluster.config, f"{fault} of the leader, {rounds} rounds, {rate:g} messages of {bodies.text} a second", folder.path)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        with Producer(cluster.bootstrap, group="dledger-bench", send_timeout_ms=30_000) as producer:
            load = _Load(producer, bodies, rate)
            begun = time.perf_counter()
            try:
                _run_rounds(cluster, load, fault, rounds, result)
            finally:
                load.stop()
        result.figures.took_s = time.perf_counter() - begun
        result.figures.acknowledged, result.figures.failed = len(load.acknowledged), load.failed
        result.figures.bytes = bodies.bytes_in(np.fromiter(load.acknowledged, np.uint64))
        _account(cluster.bootstrap, bodies, load.acknowledged, result)
    return result


def _run_rounds(cluster: PrivateCluster, load: _Load, fault: str, rounds: int, result: FailoverResult) -> None:
    progress = Progress(rounds, "rounds")
    draw = random.SystemRandom()
    for done in range(rounds):
        time.sleep(0.5 + draw.random() / 2)
        victim = cluster.leader()
        since = time.perf_counter()
        load.longest_gap_s = 0.0
        end_fault = FAULTS[fault](cluster, victim)
        load.watch()
        pause_ms = load.pause_ms(since)
        result.figures.latencies_ms.append(load.longest_gap_s * 1e3 if fault == "transfer" else pause_ms)
        end_fault()
        progress.update(done + 1, len(load.acknowledged))
    progress.end()


def _account(bootstrap: str, bodies: Bodies, acknowledged: set[int], result: FailoverResult) -> None:
    """Read everything back and compare it with what was acknowledged."""
    times: dict[int, int] = {}
    with PullConsumer(bootstrap) as consumer:
        for (group, queue_id), held in consumer.offsets(TOPIC).items():
            last = -1
            for chunk in consumer.read_chunks(TOPIC, queue_id, held.min_offset, held.max_offset, replica_group=group):
                for message in chunk.messages():
                    number = bodies.number_in(message.body)
                    times[number] = times.get(number, 0) + 1
                    result.reordered += number <= last
                    last = number
    result.lost = sum(number not in times for number in acknowledged)
    result.duplicated = sum(count - 1 for count in times.values())
