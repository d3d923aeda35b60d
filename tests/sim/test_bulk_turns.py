"""Consumers of old messages take turns that writes leave; those that read what is new never wait."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from dledger.log import bulk_turns
from dledger_client.aio import Message, PullConsumer
from tests.sim.cluster import SMALL_LOG
from tests.unit.client.sim_rig import Rig

MESSAGES, CACHED = 200, 20
TURN_BYTES = 16 << 10
BODY_BYTES = 1000


async def read(consumer: PullConsumer, offset: int) -> int:
    """How many messages there are from ``offset`` on."""
    count = 0
    while found := await consumer.fetch("t", 0, offset, 10):
        count += len(found)
        offset = found[-1].queue_offset + 1
    return count


def test_only_what_is_not_in_memory_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_turns, "TURN_BYTES", TURN_BYTES)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        node = rig.cluster.hosts[rig.master].node
        assert node is not None
        turns = node.raft.bulk
        async with rig.producer() as producer, rig.consumer(read_from="leader") as consumer:
            for _ in range(MESSAGES):
                await producer.send(Message("t", bytes(BODY_BYTES)))
            assert await read(consumer, MESSAGES - CACHED) == CACHED
            assert turns.taken == 0
            assert await read(consumer, 0) == MESSAGES
            taken = turns.taken
            assert taken >= (MESSAGES - 2 * CACHED) * BODY_BYTES // TURN_BYTES

            writing = asyncio.ensure_future(_write_all_the_time(rig))
            assert await read(consumer, 0) >= MESSAGES
            assert turns.taken > taken, "reading goes on beside writes"
            writing.cancel()

    Rig(log=dataclasses.replace(SMALL_LOG, cache_bytes=2 * CACHED * BODY_BYTES)).run(scenario)


async def _write_all_the_time(rig: Rig) -> None:
    async with rig.producer() as producer:
        while True:
            await producer.send(Message("u", bytes(100)))
