"""A quota on three real nodes: a topic gets its rate, another one is not slowed, and no client sees an error."""

from __future__ import annotations

import asyncio
import json
import time

from dledger_client.aio import Producer, PullConsumer
from tests.cluster.harness import Cluster
from tests.waiting import LIMIT_S

RATE = 2 << 20
BODY = bytes(64 << 10)
SECONDS = 5.0


async def sent_within(producer: Producer, topic: str, until_s: float, pause_s: float = 0.0) -> int:
    """Bytes that were stored, eight messages at a time."""
    total = 0
    while time.monotonic() < until_s:
        await producer.send_many(topic, [BODY] * 8)
        total += 8 * len(BODY)
        await asyncio.sleep(pause_s)
    return total


async def read_a_second(bootstrap: str) -> float:
    """Bytes of the free topic that are read a second, behind the second of the rate that goes at once."""
    total, offset, began_s = -RATE, 0, time.monotonic()
    async with PullConsumer(bootstrap, "reader") as consumer:
        while time.monotonic() < began_s + SECONDS:
            batch = await consumer.fetch("free", 0, offset)
            assert batch, "nothing is left to read"
            offset = batch[-1].queue_offset + 1
            total += sum(len(message.body) for message in batch)
    return total / (time.monotonic() - began_s)


def test_a_topic_gets_its_rate_while_another_is_not_slowed(cluster: Cluster) -> None:
    for topic in ("slow", "free"):
        cluster.cli_ok("topic", "create", topic, "--queues", "2")
    cluster.cli_ok("quota", "set", "topic", "slow", "--produce-bytes", "2MiB")

    async def load() -> tuple[int, int]:
        bootstrap = cluster.config.bootstrap()
        async with Producer(bootstrap, "one", compress_type="none") as one, Producer(bootstrap, "two", compress_type="none") as two:
            await sent_within(one, "slow", time.monotonic() + 2.0)  # the second of the rate that goes at once
            until_s = time.monotonic() + SECONDS
            slow, free = await asyncio.gather(sent_within(one, "slow", until_s), sent_within(two, "free", until_s, 0.001))
            return slow, free

    slow, free = asyncio.run(asyncio.wait_for(load(), LIMIT_S))
    assert 0.8 * RATE < slow / SECONDS < 1.2 * RATE, f"{slow / SECONDS / 1e6:.2f} MB/s"
    assert free / SECONDS > 1.5 * RATE, f"{free / SECONDS / 1e6:.2f} MB/s"
    (listed,) = json.loads(cluster.cli_ok("quota", "list", "--json"))["quotas"]
    (use,) = listed["used"]
    assert (listed["kind"], listed["name"], listed["limits"], use["name"]) == ("topic", "slow", {"produce_bytes": RATE}, "slow")
    assert use["throttled_s"] > 3
    cluster.cli_ok("quota", "set", "topic", "free", "--fetch-bytes", "2MiB")
    read = asyncio.run(asyncio.wait_for(read_a_second(cluster.config.bootstrap()), LIMIT_S))
    assert 0.8 * RATE < read < 1.2 * RATE, f"{read / 1e6:.2f} MB/s"
    cluster.cli_ok("quota", "delete", "topic", "slow")
    again = cluster.cli("quota", "delete", "topic", "slow")
    assert (again.returncode, again.stdout, again.stderr) == (1, "", "dledger: there is no quota for topic 'slow'\n")
