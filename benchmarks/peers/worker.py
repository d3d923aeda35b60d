"""The client process of one measurement: ``python -m benchmarks.peers.worker JOB``, with the job as JSON.

Prints a line of JSON when the clock starts and stops, when the leader is to be killed (and then reads when it was), and at the end with the
result.  Runs in the environment of its system's client.
"""

from __future__ import annotations

import gc
import importlib
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from benchmarks.bodies import Bodies, Seen
from benchmarks.peers.load import Load

WARM_SIZE = "1024"
WARM_STEP = 20_000
WARM_RATE = 60_000  # messages a second at most: what a quick system writes at full speed meanwhile would fill the disk
LATENCY_WARM = 2_000
FAILOVER_SIZE = "1024"


class Client(Protocol):
    """What a system's client can do; ``way``: ``single``, message by message, or ``many`` at once."""

    def make_topic(self, topic: str, config: dict[str, str], *, queues: int) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def produce(self, topic: str, bodies: list[bytes], way: str) -> int:
        """Returns how many were acknowledged, each acknowledgement looked at."""

    def consume(self, topic: str, seen: Seen, way: str) -> None:
        """Read the topic from its beginning to its end."""

    def latencies_ms(self, topic: str, bodies: list[bytes]) -> list[float]: ...

    def leader(self, topic: str) -> str: ...

    def load(self, topic: str, load: Load, bodies: Bodies, kill: Any) -> None:
        """Run the load, and wait until each of its messages is acknowledged or failed."""

    def close(self) -> None: ...


def tell(event: str, **more: Any) -> None:
    print(json.dumps({"event": event} | more), flush=True)


@contextmanager
def clock(result: dict[str, Any]) -> Iterator[None]:
    """Wall-clock and processor seconds of this process into ``result``."""
    tell("begin")
    usage, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    yield
    result["took_s"] = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    tell("measured")
    result["client_cpu_s"] = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime


def produce(client: Client, job: dict[str, Any], result: dict[str, Any]) -> None:
    warm(client, job)
    client.make_topic(job["topic"], job["config"], queues=job["queues"])
    bodies = Bodies(job["size"]).many(0, job["messages"])
    result["bytes"] = sum(map(len, bodies))
    gc.collect()
    with clock(result):
        result["acknowledged"] = client.produce(job["topic"], bodies, job["way"])


def warm(client: Client, job: dict[str, Any]) -> None:
    """Produce and read for some seconds, the same for every system: a virtual machine compiles what runs often."""
    if not job["warm_s"]:
        return
    topic = job["topic"] + "-warm"
    client.make_topic(topic, job["config"], queues=job["queues"])
    bodies, sent, until = Bodies(WARM_SIZE), 0, time.monotonic() + job["warm_s"]
    while time.monotonic() < until:
        next_at = time.monotonic() + WARM_STEP / WARM_RATE
        sent += client.produce(topic, bodies.many(sent, sent + WARM_STEP), job["way"])
        time.sleep(max(0.0, next_at - time.monotonic()))
    client.consume(topic, Seen(sent, bodies), "single")
    client.delete_topic(topic)


def consume(client: Client, job: dict[str, Any], result: dict[str, Any]) -> None:
    seen = Seen(job["messages"], Bodies(job["size"]))
    with clock(result):
        client.consume(job["topic"], seen, job["way"])
    result |= {"distinct": seen.distinct, "doubled": seen.doubled, "strange": seen.strange, "bytes": seen.bytes}
    if job["delete"]:
        client.delete_topic(job["topic"])


def latency(client: Client, job: dict[str, Any], result: dict[str, Any]) -> None:
    client.make_topic(job["topic"], job["config"], queues=1)
    bodies = Bodies(job["size"]).many(0, LATENCY_WARM + job["messages"])
    client.latencies_ms(job["topic"], bodies[:LATENCY_WARM])
    with clock(result):
        times = client.latencies_ms(job["topic"], bodies[LATENCY_WARM:])
    times.sort()
    result |= {"p50_ms": times[len(times) // 2], "p99_ms": times[min(len(times) - 1, len(times) * 99 // 100)]}


def failover(client: Client, job: dict[str, Any], result: dict[str, Any]) -> None:
    client.make_topic(job["topic"], job["config"], queues=1)
    load, bodies = Load(job["rate"]), Bodies(FAILOVER_SIZE)

    def kill() -> tuple[float, float]:
        tell("kill", leader=client.leader(job["topic"]))
        answer = json.loads(sys.stdin.readline())
        return answer["killed_at"], answer["gone_at"]

    with clock(result):
        client.load(job["topic"], load, bodies, kill)
    seen = Seen(load.sent, bodies)
    client.consume(job["topic"], seen, "single")
    result |= {"pause_s": load.pause_s, "acknowledged": load.stored, "failed": load.failed, "messages": load.sent}
    result |= {"lost": seen.lost_of(load.acknowledged_at), "doubled": seen.doubled, "strange": seen.strange}
    client.delete_topic(job["topic"])


WORKS = {"produce": produce, "consume": consume, "latency": latency, "failover": failover}


def main() -> None:
    job = json.loads(sys.argv[1])
    # As `dledger bench` has it, for every system: threads change places sooner, and walks over what is in flight are rarer.
    sys.setswitchinterval(0.0005)
    gc.set_threshold(100_000, 20, 20)
    client: Client = importlib.import_module(f"benchmarks.peers.client_{job['client']}").connect(job["bootstrap"])
    result: dict[str, Any] = {}
    WORKS[job["work"]](client, job, result)
    tell("end", **result)
    client.close()


if __name__ == "__main__":
    main()
