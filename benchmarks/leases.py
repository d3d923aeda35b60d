"""Consumers that share one queue: what is received and acknowledged a second, redelivery, and memory with a million messages in flight.

    python -m benchmarks.leases                          # all steps, each on a cluster of its own
    python -m benchmarks.leases --step redelivery        # one

The consumers of a step are ``SimpleConsumer`` of two processes, each with connections of its own; receiving takes 32 messages at a time
and acknowledges them together.  Steps: ``one``, ``sixteen`` and ``many`` (1 000) consumers of a queue that is full; ``trickle``: 1 000 that
wait for 200 messages a second; ``redelivery``; ``memory``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bodies import Bodies
from benchmarks.machine import machine
from benchmarks.processes import anonymous_mb, cpu_s
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Admin, Message, Producer, aio
from dledger_drill.bench.report import percentiles
from dledger_wire.errors import DledgerError

TOPIC, GROUP, BATCH = "queue", "hands", 32
PROCESSES = 2
LIMIT_S = 90.0
TRICKLE_S, TRICKLE_EVERY_S = 10.0, 0.005
IDLE_S = 2.0
AGAIN, AGAIN_MS = 200, 1_000
HOUR_MS, WAIT_MS = 3_600_000, 5_000

Figures = dict[str, object]


def fill(bootstrap: str, messages: int, size: str = "1024") -> None:
    bodies = Bodies(size)
    with Producer(bootstrap) as producer:
        for number in range(messages):
            producer.send_oneway(Message(TOPIC, bodies.body(number)))
        producer.flush()


def p50_p99(values: Sequence[float]) -> list[float]:
    marks = percentiles(values)
    return [round(marks[50], 1), round(marks[99], 1)]


# The consumers' side


class Hands:
    """Consumers of one process."""

    def __init__(self, count: int) -> None:
        self.counts = [0] * count
        self.took_ms: list[float] = []
        self.failed: dict[str, int] = {}
        self.first_s = self.last_s = 0.0

    async def work(self, consumer: aio.SimpleConsumer, number: int, until_s: float) -> None:
        """Receive and acknowledge until the time is up, or no consumer got anything for a while."""
        while time.time() < until_s and (not self.last_s or time.time() < self.last_s + IDLE_S):
            began_s = time.time()
            try:
                received = await consumer.receive()
                self.took_ms.append(1e3 * (time.time() - began_s))
                errors = [error for error in await consumer.ack(received) if error is not None] if received else []
            except DledgerError as refused:
                received, errors = [], [refused]
            for each in errors:
                self.failed[type(each).__name__] = self.failed.get(type(each).__name__, 0) + 1
            if received:
                self.first_s, self.last_s = self.first_s or began_s, time.time()
                self.counts[number] += len(received) - len(errors)


async def consume(bootstrap: str, count: int, seconds: float) -> None:
    """What a process of consumers does: a line when all have their connections, one to go on, and what they got."""
    hands = Hands(count)
    consumers = [
        aio.SimpleConsumer(bootstrap, group=GROUP, topics=[TOPIC], max_messages=BATCH, wait_ms=WAIT_MS, timeout_ms=60_000)
        for _ in range(count)
    ]
    for consumer in consumers:
        await consumer.ack(await consumer.receive(1, wait_ms=0))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    until_s = time.time() + seconds
    await asyncio.gather(*(hands.work(consumer, number, until_s) for number, consumer in enumerate(consumers)))
    print(json.dumps(vars(hands)), flush=True)
    await asyncio.gather(*(consumer.close() for consumer in consumers))


class Consumers:
    """The same of all processes."""

    def __init__(self, bootstrap: str, consumers: int, seconds: float = LIMIT_S) -> None:
        processes = min(consumers, PROCESSES)
        command = [sys.executable, "-m", "benchmarks.leases", "--child", bootstrap, str(consumers // processes), str(seconds)]
        self._children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
        for child in self._children:
            assert child.stdout is not None
            child.stdout.readline()

    def go(self) -> None:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()

    def found(self) -> list[dict[str, Any]]:
        return [json.loads(child.communicate()[0]) for child in self._children]


# Steps


def rate(cluster: PrivateCluster, consumers: int, messages: int) -> Figures:
    """A full queue is consumed."""
    fill(cluster.bootstrap, messages)
    consumed = Consumers(cluster.bootstrap, consumers)
    before, pids = entries(cluster), [process.pid for process in cluster.processes.values()]
    used_s = cpu_s(pids)
    consumed.go()
    parts = consumed.found()
    used_s = cpu_s(pids) - used_s
    counts = sorted(count for part in parts for count in part["counts"])
    seconds = max(part["last_s"] for part in parts) - min(part["first_s"] for part in parts)
    return {
        "msg/s": round(sum(counts) / seconds),
        "entries/s": round((entries(cluster) - before) / seconds),
        "receive p50, p99 ms": p50_p99([each for part in parts for each in part["took_ms"]]),
        "acknowledged": sum(counts),
        "failed": [part["failed"] for part in parts],
        "by consumer, least, median, most": [counts[0], counts[len(counts) // 2], counts[-1]],
        "nodes' CPU us a message": round(1e6 * used_s / sum(counts)),
    }


def entries(cluster: PrivateCluster) -> int:
    """Entries in the log."""
    return max(node.last_index for node in cluster.statuses().values())


def trickle(cluster: PrivateCluster, consumers: int) -> Figures:
    """Consumers wait, and messages come one by one."""
    consumed = Consumers(cluster.bootstrap, consumers, TRICKLE_S + 2)
    leader, took = cluster.processes[cluster.leader()].pid, list[float]()
    consumed.go()
    time.sleep(1)  # until they wait
    used_s, began_s = cpu_s([leader]), time.time()
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        while (at_s := time.time()) < began_s + TRICKLE_S:
            producer.send(Message(TOPIC, b"x" * 1024))
            took.append(1e3 * (time.time() - at_s))
            time.sleep(max(0.0, at_s + TRICKLE_EVERY_S - time.time()))
    sending_s, used_s = time.time() - began_s, cpu_s([leader]) - used_s
    parts = consumed.found()
    return {
        "sent/s": round(len(took) / sending_s),
        "send p50, p99 ms": p50_p99(took),
        "acknowledged of sent": [sum(sum(part["counts"]) for part in parts), len(took)],
        "failed": [part["failed"] for part in parts],
        "leader's CPU ms a message": round(1e3 * used_s / len(took), 2),
    }


def redelivery(cluster: PrivateCluster) -> Figures:
    """Messages whose invisible time ends, and messages that are given back, come again to another consumer that waits."""
    late, back = asyncio.run(_redelivery(cluster.bootstrap))
    return {
        "beyond the invisible time, p50, p99, most ms": [*p50_p99(late), round(max(late), 1)],
        "nack to received again, p50, p99, most ms": [*p50_p99(back), round(max(back), 1)],
    }


async def _redelivery(bootstrap: str) -> tuple[list[float], list[float]]:
    """Milliseconds beyond the invisible time, and from giving back on; a message at a time is in the queue."""
    late, back = list[float](), list[float]()
    async with (
        aio.Producer(bootstrap, linger_ms=0) as producer,
        aio.SimpleConsumer(bootstrap, group=GROUP, topics=[TOPIC], max_messages=1, wait_ms=WAIT_MS) as first,
        aio.SimpleConsumer(bootstrap, group=GROUP, topics=[TOPIC], max_messages=1, wait_ms=WAIT_MS) as second,
    ):
        for number in range(AGAIN):
            is_given_back = number % 4 > 0
            await producer.send(Message(TOPIC, b"x"))
            due_s = time.time() + AGAIN_MS / 1000
            (message,) = await first.receive(invisible_ms=HOUR_MS if is_given_back else AGAIN_MS)
            again = asyncio.create_task(second.receive())
            if is_given_back:
                await asyncio.sleep(0.02)  # the other one waits at the leader
                due_s = time.time()
                await first.nack(message)
            (found,) = await again
            (back if is_given_back else late).append(1e3 * (time.time() - due_s))
            await second.ack(found)
    return late, back


def memory(cluster: PrivateCluster, messages: int) -> Figures:
    """All of the queue is received, and nothing of it acknowledged."""
    fill(cluster.bootstrap, messages, "100")
    leader = cluster.leader()
    pids = {"leader": cluster.processes[leader].pid}
    pids |= {f"follower {name}": process.pid for name, process in cluster.processes.items() if name != leader}
    before = {name: anonymous_mb(pid) for name, pid in pids.items()}
    counts, seconds, took, last = asyncio.run(_receive_all(cluster.bootstrap, messages))
    return {
        "in flight": counts,
        "received/s, batches of 1024": round(counts / seconds),
        "one more receive and acknowledgement of 1 behind them, p50, p99 ms": p50_p99(took),
        "an empty receive with all in flight, ms": round(last, 1),
        "anonymous MB, before and with them": {name: [before[name], anonymous_mb(pid)] for name, pid in pids.items()},
    }


async def _receive_all(bootstrap: str, messages: int) -> tuple[int, float, list[float], float]:
    count, began_s, took = 0, time.time(), list[float]()
    async with aio.SimpleConsumer(bootstrap, group=GROUP, topics=[TOPIC], invisible_ms=HOUR_MS, wait_ms=1_000) as consumer:
        while received := await consumer.receive(1024):
            count += len(received)
        seconds = time.time() - began_s - 1
        async with aio.Producer(bootstrap, linger_ms=0) as producer:
            for _ in range(200):
                await producer.send(Message(TOPIC, b"x"))
                at_s = time.time()
                await consumer.ack(await consumer.receive(1))
                took.append(1e3 * (time.time() - at_s))
        at_s = time.time()
        await consumer.receive(1, wait_ms=0)
        return count, seconds, took, 1e3 * (time.time() - at_s)


STEPS: dict[str, Callable[[PrivateCluster, int], Figures]] = {
    "one": lambda cluster, messages: rate(cluster, 1, messages),
    "sixteen": lambda cluster, messages: rate(cluster, 16, messages),
    "many": lambda cluster, messages: rate(cluster, 1000, messages),
    "trickle": lambda cluster, _: trickle(cluster, 1000),
    "redelivery": lambda cluster, _: redelivery(cluster),
    "memory": lambda cluster, messages: memory(cluster, 10 * messages),
}


def measured(step: str, messages: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="dledger-bench-") as folder, PrivateCluster(Path(folder)) as cluster:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, queues=1)
        return {"step": step} | STEPS[step](cluster, messages)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", choices=STEPS)
    parser.add_argument("--messages", type=int, default=100_000, help="in the queue; in flight for the memory: ten times as many")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(consume(options.child[0], int(options.child[1]), float(options.child[2])))
    else:
        print(json.dumps(machine()), flush=True)
        for chosen in [options.step] if options.step else STEPS:
            print(json.dumps(measured(chosen, options.messages)), flush=True)
