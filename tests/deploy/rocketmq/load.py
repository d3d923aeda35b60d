"""A load of numbered messages by a client of RocketMQ, and the account of it: what was sent, refused, received, and stored twice."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.cluster.rocketmq import RocketmqCluster
from tests.waiting import LIMIT_S, wait_until

MESSAGES, PAUSE_MS, REST_S = 700, 20, 60
ROLLED = ("1500", str(2 * PAUSE_MS), str(REST_S))  # messages, pause and rest of a load under which all nodes restart
LOAD = 300  # that consumers get one by one, too


@dataclass
class Account:
    """What a load did, by what it printed."""

    sent: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    got: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)  # what became of their transactions
    places: set[tuple[str, ...]] = field(default_factory=set)

    def read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            kind, *rest = line.split() or [""]  # some clients write logs there, too
            if kind == "sent":
                self.sent.add(rest[0])
            elif kind == "failed":
                self.failed.append(line)
            elif kind == "got":
                self.got[rest[0]] += 1
                self.places.add(tuple(rest))
            elif kind == "asked":
                self.asked[rest[0]] += 1

    @property
    def stored_twice(self) -> list[str]:
        return [number for number, times in Counter(place[0] for place in self.places).items() if times > 1]

    @property
    def delivered_again(self) -> int:
        return self.got.total() - len(self.got)

    @property
    def out_of_order(self) -> list[tuple[str, str]]:
        """Pairs of acknowledged messages that follow each other in a queue, of which the second was sent first."""
        placed = sorted((int(queue), int(offset), number) for number, queue, offset in self.places if number in self.sent)
        pairs = ((a[2], b[2]) for a, b in itertools.pairwise(placed) if a[0] == b[0])
        return [(first, second) for first, second in pairs if int(second[1:]) < int(first[1:])]


@contextmanager
def running(command: list[str], **variables: str) -> Iterator[tuple[Account, subprocess.Popen[str]]]:
    """Run a load, and kill it if it still runs at the end.  Its account is whole behind the block."""
    account = Account()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=os.environ | variables) as process:
        reading = threading.Thread(target=account.read, args=[process])
        reading.start()
        try:
            yield account, process
        finally:
            process.kill()
            reading.join()


def loaded_while_leaders_fail(cluster: RocketmqCluster, command: list[str]) -> None:
    """Run a load; one leader is killed under it and a next one paused.  Nothing may be lost or stored twice."""
    with running(command) as (account, process):
        wait_until(lambda: len(account.sent) > MESSAGES // 7, "the load has begun")
        killed = cluster.leader()
        cluster.kill(killed)
        wait_until(lambda: len(account.sent) > 3 * MESSAGES // 7, "the load went on without the killed leader")
        cluster.start(killed)
        paused = cluster.leader()
        cluster.pause(paused)
        try:
            wait_until(lambda: len(account.sent) > 5 * MESSAGES // 7, "the load went on without the paused leader")
        finally:
            cluster.resume(paused)
        assert process.wait(2 * LIMIT_S) == 0
    assert account.sent <= account.got.keys(), sorted(account.sent - account.got.keys())
    assert not account.stored_twice
    assert len(account.failed) < MESSAGES // 5, Counter(line.split()[-1] for line in account.failed)


def loaded_while_nodes_restart(cluster: RocketmqCluster, command: list[str]) -> None:
    """Run a load of topic load; each node is stopped in order under it and started again.  Nothing may be lost, stored twice or moved."""
    cluster.cli_ok("topic", "create", "load", "--queues", "4")
    with running(command) as (account, process):
        for node_id in cluster.local.node_ids():
            before = len(account.sent)
            wait_until(lambda at=before: len(account.sent) > at + 50, lambda: f"the load goes on: {account.failed[-3:]}")
            assert cluster.terminate(node_id) == 0
            cluster.start(node_id)
        assert process.wait(2 * LIMIT_S) == 0
    assert account.sent <= account.got.keys(), sorted(account.sent - account.got.keys())
    assert not account.stored_twice
    assert not account.out_of_order
    assert account.delivered_again < 150, "RocketMQ's consumers may get again what they had not committed"
    assert len(account.failed) < 150, Counter(line.split()[-1] for line in account.failed)


def every_kind(cluster: RocketmqCluster, command: list[str], shown: list[str]) -> None:
    """Run a program that says "ok WHAT" of each kind of message and consumer of a gRPC client."""
    cluster.cli_ok("topic", "create", "kinds", "--queues", "4")
    cluster.cli_ok("group", "update", "in-order", "--in-order")
    cluster.cli_ok("group", "update", "dead", "--retry-max-times", "1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "bad "))]
    assert lines == [f"ok {name}" for name in shown], f"{done.stdout}\n{done.stderr}"
    letters = json.loads(cluster.cli_ok("dlq", "list", "--wait", str(int(LIMIT_S)), "--json"))["dead_letters"]
    assert [(letter["consumer_group"], letter["waiting"]) for letter in letters] == [("dead", 1)], letters


def consumed_while_the_leader_is_killed(cluster: RocketmqCluster, command: list[str]) -> None:
    """Run a load that ends when ``LOAD`` messages of topic load were sent and consumed; nothing may be lost or stored twice."""
    cluster.cli_ok("topic", "create", "load", "--queues", "4")
    with running(command) as (account, process):
        wait_until(lambda: len(account.got) > LOAD // 7, lambda: f"messages are consumed: exit status {process.poll()}")
        killed = cluster.leader()
        cluster.kill(killed)
        so_far = len(account.got)
        wait_until(
            lambda: len(account.got) > so_far + LOAD // 7,
            lambda: f"messages are consumed without the killed leader: {len(account.sent)} sent, {len(account.got)} got",
        )
        cluster.start(killed)
        assert process.wait(LIMIT_S) == 0
    assert len(account.sent) == LOAD
    assert account.sent <= account.got.keys(), sorted(account.sent - account.got.keys())
    assert not account.stored_twice
    stored = Counter(body.decode() for body in cluster.consume("load", 2 * LOAD))
    assert account.sent <= stored.keys(), sorted(account.sent - stored.keys())
    assert not [body for body, times in stored.items() if times > 1]
