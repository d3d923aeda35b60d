"""Everything at once on real processes: producers of every kind, groups of every kind, and the drill that kills and pauses them.

Owns the actors and what each of them knows: what a producer was told is stored, what a listener was given.  The test compares.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dledger_client import Message, Producer, ReceivedMessage, SendResult, TransactionProducer, TransactionState
from dledger_wire.errors import DledgerError
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import LIMIT_MS, LIMIT_S, wait_until

KEYS = 12


@dataclass(frozen=True, slots=True)
class Given:
    """One message given to a listener; ``at`` in ns of the machine's monotonic clock."""

    at: int
    epoch: int
    queue_id: int
    offset: int
    times_before: int
    body: bytes


class Member:
    """A consumer process that can be killed and started again; what it was given is in its file."""

    def __init__(self, cluster: Cluster, group: str, topic: str, folder: Path, name: str, *options: str) -> None:
        self.name, self.group, self.topic = name, group, topic
        self.root = ROOT  # of the sources it runs
        self.file = folder / f"{group}-{name}.txt"
        self._errors = folder / f"{group}-{name}.log"
        offsets = folder / f"offsets-{name}"
        self._command = [sys.executable, "-m", "tests.cluster.consumer_process", cluster.bootstrap, group, topic, str(self.file)]
        self._command += ["--client-id", name, "--offsets", str(offsets), *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._errors, "ab") as errors:
            environment = os.environ | {"PYTHONPATH": str(self.root)}
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, cwd=self.root, env=environment
            )

    def kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()
            process.communicate()

    def pause(self) -> None:
        """SIGSTOP: it stands still, with its connections open."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to leave; it commits first."""
        process = self._process
        if process is not None and process.poll() is None:
            self.resume()
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def given(self) -> list[Given]:
        if not self.file.exists():
            return []
        whole = self.file.read_bytes().rpartition(b"\n")[0]
        found = []
        for line in whole.split(b"\n") if whole else []:
            at, epoch, queue_id, offset, times, body = line.split(b" ", 5)
            found.append(Given(int(at), int(epoch), int(queue_id), int(offset), int(times), body))
        return found


@dataclass
class Sender:
    """Sends numbered messages from a thread of its own until it is told to stop.

    ``acknowledged``: body -> where it is stored; ``refused``: bodies that certainly are not stored; of ``unknown`` ones nobody can say.
    """

    name: str
    acknowledged: dict[bytes, SendResult] = field(default_factory=dict)
    sent_at_ms: dict[bytes, int] = field(default_factory=dict)
    refused: dict[bytes, str] = field(default_factory=dict)
    unknown: dict[bytes, str] = field(default_factory=dict)

    def run(self, bootstrap: str, stop: threading.Event, rate: float, make: Callable[[int], tuple[Message, str | None]]) -> None:
        with Producer(bootstrap, group=f"sender-{self.name}", send_timeout_ms=LIMIT_MS) as producer:
            number = 0
            while not stop.wait(1 / rate):
                message, queue_key = make(number)
                number += 1
                self.sent_at_ms[message.body] = time.time_ns() // 1_000_000
                producer.send_async(message, queue_key=queue_key).add_done_callback(lambda done, body=message.body: self._done(body, done))
            producer.flush()

    def _done(self, body: bytes, done: object) -> None:
        try:
            self.acknowledged[body] = done.result()  # type: ignore[attr-defined]
        except DledgerError as error:
            (self.unknown if error.outcome_unknown else self.refused)[body] = str(error)


def plain(number: int) -> tuple[Message, str | None]:
    return Message("plain", b"p%d" % number, tags="even" if number % 2 else "odd"), None


def ordered(number: int) -> tuple[Message, str | None]:
    key = f"k{number % KEYS}"
    return Message("ordered", b"%s:%d" % (key.encode(), number)), key


def delayed(number: int) -> tuple[Message, str | None]:
    if number % 3 == 0:
        return Message("delayed", b"d%d" % number, delay_level=1), None
    due_ms = time.time_ns() // 1_000_000 + number * 7919 % 6000
    return Message("delayed", b"d%d" % number, deliver_at_ms=due_ms), None


class Payer:
    """Sends in transactions, one after the other: of three, the first is committed, the second rolled back, the third left to the check.

    ``prepared``: bodies of stored half messages; ``refused`` ones certainly are not stored; of ``unknown`` ones nobody can say.
    """

    def __init__(self) -> None:
        self.prepared: set[bytes] = set()
        self.refused: dict[bytes, str] = {}
        self.unknown: dict[bytes, str] = {}

    @staticmethod
    def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK if int(message.body[1:]) % 3 == 1 else TransactionState.COMMIT

    def run(self, bootstrap: str, stop: threading.Event, settled: Callable[[], bool]) -> None:
        """``settled``: whether every transaction has ended; the producer stays to be asked until then."""
        states = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)
        with TransactionProducer(bootstrap, "payers", self.check, send_timeout_ms=LIMIT_MS) as producer:
            number = 0
            while not stop.wait(0.02):
                body, state = b"t%d" % number, states[number % 3]
                number += 1
                try:
                    producer.send_in_transaction(Message("paid", body), lambda *_, state=state: state)
                    self.prepared.add(body)
                except DledgerError as error:
                    (self.unknown if error.outcome_unknown else self.refused)[body] = str(error)
            wait_until(settled, "every transaction has ended", pause_s=0.2)


class Drill:
    """Kills and pauses nodes and consumers, one after the other, until it is told to stop."""

    def __init__(self, cluster: Cluster, members: list[Member], seed: int) -> None:
        self._cluster, self._members = cluster, members
        self._random = random.Random(seed)
        self.done: list[str] = []

    def run(self, stop: threading.Event, pause_s: float) -> None:
        steps = [self._kill_master, self._pause_member, self._pause_node, self._kill_member]
        while not stop.wait(pause_s):
            steps[len(self.done) % len(steps)]()

    def _kill_master(self) -> None:
        victim = self._cluster.leader()
        self.done.append(f"kill master {victim}")
        self._cluster.kill(victim)
        time.sleep(self._random.random())
        self._cluster.start(victim)

    def _pause_node(self) -> None:
        victim = self._random.choice(self._cluster.local.node_ids())
        self.done.append(f"pause {victim}")
        self._cluster.pause(victim)
        time.sleep(2 + self._random.random())
        self._cluster.resume(victim)
        self._cluster.wait_healthy()

    def _pause_member(self) -> None:
        """For longer than a master waits for it (1.3 s): its queues and locks are another's when it goes on."""
        victim = self._random.choice(self._members)
        self.done.append(f"pause {victim.group} {victim.name}")
        victim.pause()
        time.sleep(2 + self._random.random())
        victim.resume()

    def _kill_member(self) -> None:
        victim = self._random.choice(self._members)
        self.done.append(f"kill {victim.group} {victim.name}")
        victim.kill()
        time.sleep(1 + self._random.random())
        victim.start()
