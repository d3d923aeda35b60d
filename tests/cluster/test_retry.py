"""Messages sent back and dead letters on real processes, the leader killed in the middle: each attempt once, each redriven once."""

from __future__ import annotations

import asyncio
import json
import threading

from dledger_client.admin.send_back import DEAD_LETTER, SentBack, ask_to_take_back, send_back_request
from dledger_client.aio import PullConsumer
from dledger_client.runtime.environment import environment_for
from tests.cluster.harness import Cluster
from tests.waiting import LIMIT_MS

GROUP, COUNT, STEP = "audit", 400, 10


async def send_all_back(bootstrap: str, topic: str, *, level: int) -> set[SentBack]:
    """Every message, in small calls, some of them made twice at a time."""
    environment = environment_for(bootstrap)
    router = environment.open_router(bootstrap)
    found: set[SentBack] = set()
    for first in range(0, COUNT, STEP):
        deadline_ms = environment.clock.monotonic_ms() + LIMIT_MS
        request = send_back_request(GROUP, topic, 0, range(first, first + STEP), level, 0)
        calls = [ask_to_take_back(router, request, "g0", deadline_ms) for _ in range(2)]
        for results in await asyncio.gather(*calls):
            found |= {result.outcome for result in results}
    await router.close()
    return found


async def read(bootstrap: str, topic: str, upto: int) -> list[bytes]:
    bodies: list[bytes] = []
    async with PullConsumer(bootstrap) as consumer:
        while len(bodies) < upto:
            found = await consumer.fetch(topic, 0, len(bodies), 1000, wait_ms=LIMIT_MS)
            assert found, f"{topic}: {len(bodies)} of {upto} came"
            bodies += [message.body for message in found]
    return bodies


def test_messages_sent_back_and_redriven_across_kills_are_each_there_once(cluster: Cluster) -> None:
    """docs/reference/semantics, rows B1 and B3."""
    bodies = [b"%d" % number for number in range(COUNT)]
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    cluster.produce("t", bodies)
    killing = threading.Timer(0.1, lambda: cluster.kill(cluster.leader()))
    killing.start()
    try:
        outcomes = asyncio.run(send_all_back(cluster.bootstrap, "t", level=1))
    finally:
        killing.join()
    assert outcomes == {SentBack.RETRY, SentBack.DUPLICATE}
    assert sorted(asyncio.run(read(cluster.bootstrap, "%RETRY%audit", COUNT))) == sorted(bodies)
    assert asyncio.run(send_all_back(cluster.bootstrap, "%RETRY%audit", level=DEAD_LETTER)) == {SentBack.DEAD, SentBack.DUPLICATE}
    (letters,) = json.loads(cluster.cli_ok("dlq", "list", "--json"))["dead_letters"]
    assert (letters["consumer_group"], letters["max_offset"], letters["waiting"], letters["perm"]) == (GROUP, COUNT, COUNT, 2)
    refused = cluster.cli("consume", "%DLQ%audit", "--idle-exit", "1").stderr
    assert "reading is not permitted (perm 2): dledger dlq open audit" in refused
    cluster.cli_ok("dlq", "open", GROUP)
    assert sorted(asyncio.run(read(cluster.bootstrap, "%DLQ%audit", COUNT))) == sorted(bodies)
    for _ in range(2):
        cluster.cli_ok("dlq", "redrive", GROUP, "--rate", "0", "--max", "200")
    assert json.loads(cluster.cli_ok("dlq", "redrive", GROUP, "--json"))["redriven"] == 0
    assert sorted(asyncio.run(read(cluster.bootstrap, "t", 2 * COUNT))) == sorted(bodies * 2)
