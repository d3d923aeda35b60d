"""A replica group that is drained and removed: nothing that was acknowledged is lost, and what is left keeps it from being removed.

docs/reference/semantics, row S1.
"""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import Message, TransactionState
from dledger_wire.errors import InvalidArgumentError, ReplicaGroupDrainingError, UnsafeShrinkError
from store.commands.replica_group import SetReplicaGroup
from tests.sim.test_runs import quiet
from tests.unit.client.sim_rig import Rig, until

__all__ = ["quiet"]


async def read_to_the_end(rig: Rig, topic: str, group: str) -> list[bytes]:
    """Everything that ``group`` has not read of a topic, in all replica groups, with its offsets committed."""
    found: list[bytes] = []
    async with rig.consumer(group) as consumer:
        for queues in await consumer.topic(topic):
            place = queues.replica_group
            for queue_id in range(queues.read_queues):
                messages = await consumer.fetch(topic, queue_id, 0, 10_000, replica_group=place)
                found += [message.body for message in messages]
                if messages:
                    await consumer.commit({(topic, queue_id): messages[-1].queue_offset + 1}, replica_group=place)
    return found


def test_a_group_is_drained_while_a_producer_sends_and_nothing_is_lost() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", queues=2, replica_group="g1")
            sent: list[bytes] = []
            async with rig.producer() as producer:
                drained = False
                groups = set()
                while not drained or len(sent) < 400:
                    body = b"%d" % len(sent)
                    groups.add((drained, (await producer.send(Message("t", body))).replica_group))
                    sent.append(body)
                    if len(sent) == 200:
                        state = await admin.drain_replica_group("g1")
                        assert (state.state, [left.kind for left in state.left]) == ("draining", ["abandoned"])
                        drained = True
            assert {group for late, group in groups if late} == {"g0"}
            assert {group for late, group in groups if not late} == {"g1"}
            with pytest.raises(UnsafeShrinkError, match="replica group g1 is not drained: topic t has 200 messages, and no consumer group"):
                await admin.remove_replica_group("g1")
            assert sorted(await read_to_the_end(rig, "t", "readers")) == sorted(sent)
            assert (await admin.describe_replica_group("g1")).left == ()
            assert (await admin.remove_replica_group("g1")).state == "removed"

    Rig(21, groups=2).run(scenario)


def test_a_draining_group_takes_no_topics_and_can_be_made_active_again() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", queues=1, replica_group="g1")
            await admin.drain_replica_group("g1")
            with pytest.raises(ReplicaGroupDrainingError, match="the replica group is draining: it takes no new topics"):
                await admin.create_topic("new", queues=1, replica_group="g1")
            while {queues.replica_group: queues.perm for queues in await admin.describe_topic("t")} != {"g0": 6, "g1": 4}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            with pytest.raises(InvalidArgumentError, match="only replica group that takes messages"):
                await admin.drain_replica_group("g0")
            assert (await admin.drain_replica_group("g1", undo=True)).state == "active"
            await admin.create_topic("new", queues=1, replica_group="g1")
            with pytest.raises(InvalidArgumentError, match="it cannot become removed"):
                await admin.remove_replica_group("g1")

    Rig(22, groups=2).run(scenario)


def test_the_group_that_serves_names_is_not_drained() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            with pytest.raises(InvalidArgumentError, match="replica group g0 serves the cluster's name service"):
                await admin.drain_replica_group("g0")

    Rig(23, groups=2).run(scenario)


def test_delayed_messages_are_waited_for() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", queues=1, replica_group="g1")
            async with rig.producer() as producer:
                await producer.send(Message("t", b"late", delay_level=3))
                await producer.send(Message("t", b"later", deliver_at_ms=0, delay_level=4))
            state = await admin.drain_replica_group("g1")
            assert {left.kind: left.messages for left in state.left} == {"delayed": 2}
            with pytest.raises(UnsafeShrinkError, match="2 delayed messages are not delivered yet"):
                await admin.remove_replica_group("g1", discard=True)
            await asyncio.sleep(40)
            assert sorted(await read_to_the_end(rig, "t", "readers")) == [b"late", b"later"]
            await admin.remove_replica_group("g1")

    Rig(24, groups=2).run(scenario)


def test_open_transactions_messages_with_a_delivery_time_and_retries_are_waited_for() -> None:
    async def scenario(rig: Rig) -> None:
        answers = [TransactionState.UNKNOWN]
        async with rig.admin() as admin, rig.transactions(lambda _message: answers[-1]) as producer, rig.consumer("readers") as consumer:
            await admin.create_topic("t", queues=1, replica_group="g1")
            rejected = await producer.send(Message("t", b"rejected"))
            await producer.send_in_transaction(Message("t", b"half"), lambda *_: TransactionState.UNKNOWN)
            await producer.send(Message("t", b"timed", deliver_at_ms=rig._clock.wall_ms() + 60_000))
            await consumer.send_back("t", 0, [rejected.queue_offset], delay_level=2)
            await consumer.commit({("t", 0): 1})
            left = (await admin.drain_replica_group("g1")).left
            assert {row.kind: row.messages for row in left} == {"delayed": 1, "timer": 1, "transaction": 1}
            with pytest.raises(UnsafeShrinkError, match=r"1 delayed .*; 1 messages with a delivery time .*; 1 transactions are open"):
                await admin.remove_replica_group("g1", discard=True)
            answers.append(TransactionState.COMMIT)
            await asyncio.sleep(120)
            left = (await admin.describe_replica_group("g1")).left
            assert {row.kind: row.messages for row in left} == {"unread": 2, "retry": 1}
            with pytest.raises(UnsafeShrinkError, match="1 messages wait to be delivered to consumer group readers again"):
                await admin.remove_replica_group("g1", discard=True)
            assert set(await read_to_the_end(rig, "t", "readers")) >= {b"half", b"timed"}
            assert await read_to_the_end(rig, "%RETRY%readers", "readers") == [b"rejected"]
            await admin.remove_replica_group("g1")

    Rig(27, groups=2).run(scenario)


def test_what_nobody_reads_is_discarded_only_on_request() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", queues=1, replica_group="g1")
            async with rig.producer() as producer:
                await producer.send(Message("t", b"x"))
            await admin.drain_replica_group("g1")
            with pytest.raises(UnsafeShrinkError):
                await admin.remove_replica_group("g1")
            assert (await admin.remove_replica_group("g1", discard=True)).state == "removed"
            assert (await admin.remove_replica_group("g1")).state == "removed"
            with pytest.raises(ReplicaGroupDrainingError, match="replica group g1 was removed from the cluster"):
                await admin.create_topic("new", queues=1, replica_group="g1")
            with pytest.raises(InvalidArgumentError, match="nothing of it can be changed any more"):
                await admin.drain_replica_group("g1", undo=True)

    Rig(25, groups=2).run(scenario)


def test_state_and_policy_outlive_a_restart_of_all_nodes() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            first = await admin.describe_replica_group("g1")
            assert (first.state, first.voters, first.learners, first.replace_after_ms) == ("active", 3, 0, 0)
            await admin.update_replica_group("g1", voters=5, learners=1, replace_after_ms=90_000)
            await admin.drain_replica_group("g1")
            for node_id in rig.cluster.groups["g1"].node_ids:
                rig.cluster.kill(node_id)
            for node_id in rig.cluster.groups["g1"].node_ids:
                rig.cluster.start(node_id)
            await until(lambda: rig.is_group_up("g1"))
            found = await admin.describe_replica_group("g1")
            assert (found.state, found.voters, found.learners, found.replace_after_ms) == ("draining", 5, 1, 90_000)
            assert found.since_ms > 0

    Rig(26, groups=2).run(scenario)


def test_a_group_that_was_written_to_after_the_check_is_not_removed() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.drain_replica_group("g1")
        node = rig.cluster.hosts[rig.master_of("g1")].node
        assert node is not None
        command = node.store.command(SetReplicaGroup(state="removed", at_index=node.store.applied_index - 1))
        await node.raft.propose(command)
        assert node.store.replica_group.state == "draining"
        assert command.outcome is not None
        assert "written to while it was removed" in str(command.outcome.error)

    Rig(27, groups=2).run(scenario)
