"""Messages sent back twice over, made dead letters and redriven twice over, under every plan of faults: each attempt is there once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.send_back import DEAD_LETTER, SentBack, ask_to_take_back, send_back_request
from dledger_client.aio import Admin, Message, PullConsumer
from dledger_client.cluster.router import Router
from dledger_wire.errors import DledgerError, TopicNotFoundError
from tests.sim.faults import carry_out, plan_everything, plan_kill_the_leader, plan_split
from tests.unit.client.sim_rig import Rig

GROUP, RETRY, DEAD = "g", "%RETRY%g", "%DLQ%g"
COUNT, STEP = 24, 4
LIMIT_MS = 120_000
PLANS = (plan_kill_the_leader, plan_split, plan_everything)


async def _send_all_back(router: Router, topic: str, *, level: int) -> set[SentBack]:
    found: set[SentBack] = set()
    for first in range(0, COUNT, STEP):
        deadline_ms = router.clock.monotonic_ms() + LIMIT_MS
        request = send_back_request(GROUP, topic, 0, range(first, first + STEP), level, 0)
        results = await ask_to_take_back(router, request, "g0", deadline_ms)
        found |= {result.outcome for result in results}
    return found


async def _read(consumer: PullConsumer, topic: str, count: int) -> list[tuple[bytes, int]]:
    """(body, attempts) of everything, and nothing behind it."""
    found: list[tuple[bytes, int]] = []
    failures = 0
    while len(found) < count:
        try:
            found += [(each.body, each.reconsume_times) for each in await consumer.fetch(topic, 0, len(found), 100, wait_ms=5000)]
        except TopicNotFoundError:  # a replica that lags behind
            failures += 1
            assert failures < 50
            await asyncio.sleep(0.2)
    assert await consumer.fetch(topic, 0, count, wait_ms=2500) == []
    return sorted(found)


async def _redrive(admin: Admin, letters: DeadLetters) -> None:
    for _ in range(20):
        try:
            await admin.redrive(letters, rate=200)
        except DledgerError:
            await asyncio.sleep(0.5)
        else:
            return
    pytest.fail("the dead letters could not be redriven")


@pytest.mark.parametrize("seed", range(18))
def test_each_attempt_is_stored_once_under_every_plan_of_faults(seed: int) -> None:
    """docs/reference/semantics, rows B1 and B3."""
    draw = random.Random(seed)
    plan = PLANS[seed % len(PLANS)]
    bodies = [b"%02d" % number for number in range(COUNT)]

    async def under_faults(rig: Rig, *work: asyncio.Future[Any]) -> None:
        names = list(rig.cluster.hosts)
        await asyncio.gather(*work, carry_out(rig.cluster, plan(names, draw)))
        rig.cluster.net.heal_all()
        for node_id in names:
            rig.cluster.ensure_running(node_id)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            for body in bodies:
                await producer.send(Message("t", body))
            one, other = rig.router(), rig.router()
            for topic, level in (("t", 1), (RETRY, DEAD_LETTER)):
                calls = [asyncio.ensure_future(_send_all_back(router, topic, level=level)) for router in (one, other)]
                await under_faults(rig, *calls)
                if topic == "t":
                    assert await _read(consumer, RETRY, COUNT) == [(body, 1) for body in bodies]
            await one.close()
            await other.close()
            (letters,) = await admin.dead_letters(GROUP)
            await under_faults(rig, *(asyncio.ensure_future(_redrive(admin, letters)) for _ in range(2)))
            await admin.update_topic(DEAD, perm=6)
            assert await _read(consumer, DEAD, COUNT) == [(body, 2) for body in bodies]
            assert await _read(consumer, "t", 2 * COUNT) == sorted([(body, 0) for body in bodies] * 2)

    rig = Rig(seed)
    rig.run(scenario)
    assert rig.cluster.problems() == []
