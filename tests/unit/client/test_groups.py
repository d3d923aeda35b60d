"""Positions of consumer groups: committed through the log, monotonic but for resets, kept across every master's death."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import Message
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from tests.unit.client.sim_rig import Rig, until


async def filled(rig: Rig, queues: int = 1, messages: int = 10) -> None:
    """The topic, with so many messages in each queue."""
    await rig.topic(queues=queues)
    async with rig.producer() as producer:
        for queue_id in range(queues):
            await producer.send_batch([Message("t", b"x")] * messages, queue_id=queue_id)


def test_positions_survive_the_death_of_the_master_and_of_everybody() -> None:
    """docs/reference/semantics, row O1."""

    async def scenario(rig: Rig) -> None:
        await filled(rig, queues=2)
        async with rig.consumer() as consumer:
            assert await consumer.committed("t") == {}
            await consumer.commit({("t", 0): 5, ("t", 1): 9})
            rig.cluster.kill(rig.master)
            await until(lambda: rig.cluster.master() is not None)
            assert await consumer.committed("t") == {("g0", 0): 5, ("g0", 1): 9}
            for node_id in list(rig.cluster.hosts):
                rig.cluster.kill(node_id)
            for node_id in rig.cluster.hosts:
                rig.cluster.start(node_id)
            await until(lambda: rig.cluster.master() is not None)
            assert await consumer.committed("t") == {("g0", 0): 5, ("g0", 1): 9}

    Rig().run(scenario)


def test_a_late_commit_takes_nobody_back_and_a_reset_does() -> None:
    """docs/reference/semantics, row O1."""

    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.consumer() as consumer:
            await consumer.commit({("t", 0): 9})
            await consumer.commit({("t", 0): 4})
            assert await consumer.committed("t") == {("g0", 0): 9}
            await consumer.commit({("t", 0): 4}, reset=True)
            assert await consumer.committed("t") == {("g0", 0): 4}

    Rig().run(scenario)


def test_a_topic_made_again_has_no_readers() -> None:
    """docs/reference/semantics, row T2."""

    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.consumer() as consumer, rig.admin() as admin:
            await consumer.commit({("t", 0): 9})
            await admin.delete_topic("t")
            with pytest.raises(TopicNotFoundError):
                await consumer.commit({("t", 0): 10})
            await admin.create_topic("t", queues=1)
            assert await consumer.committed("t") == {}

    Rig().run(scenario)


def test_commits_without_a_group_or_of_nothing_that_is_are_refused() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        consumer = rig.consumer()
        consumer.group = ""
        with pytest.raises(InvalidArgumentError, match="needs a consumer group"):
            await consumer.commit({("t", 0): 1})
        async with rig.consumer() as other:
            with pytest.raises(InvalidArgumentError, match="queue 7, expected 0 to 0"):
                await other.commit({("t", 7): 1})
        await consumer.close()

    Rig().run(scenario)


def test_commits_that_come_at_a_high_rate_share_log_entries() -> None:
    """docs/reference/semantics, row O1."""

    async def scenario(rig: Rig) -> None:
        await filled(rig, queues=8, messages=210)
        node = rig.cluster.hosts[rig.master].node
        assert node is not None
        async with rig.consumer() as consumer:
            await consumer.commit({("t", 0): 1})
            before = node.raft.log.last.index
            for _ in range(10):
                await asyncio.gather(*[consumer.commit({("t", number % 8): 2 + number}) for number in range(200)])
            entries = node.raft.log.last.index - before
            assert entries <= 40, f"{entries} log entries for 2000 commits"
            assert await consumer.committed("t") == {("g0", queue): 194 + queue for queue in range(8)}

    Rig().run(scenario)
