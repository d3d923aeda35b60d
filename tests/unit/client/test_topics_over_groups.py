"""Topics over several replica groups: how their queues are shared out, grown, made smaller, and what a group without a leader changes."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import Admin, Message, MessageQueue, TransactionState, by_hash
from dledger_client.cluster.topic_creation import by_name, resized, spread
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import (
    InvalidArgumentError,
    NotLeaderError,
    TopicExistsError,
    TopicNotFoundError,
    TopicPermissionError,
    UnreachableError,
    UnsafeShrinkError,
)
from dledger_wire.rpc import methods
from tests.unit.client.sim_rig import Rig, until


async def parts(admin: Admin, name: str = "t") -> dict[str, tuple[int, int, int]]:
    """Replica group -> read queues, write queues, permission."""
    return {part.replica_group: (part.read_queues, part.write_queues, part.perm) for part in await admin.describe_topic(name)}


def kill_group(rig: Rig, group: str) -> None:
    for node_id in rig.cluster.groups[group].node_ids:
        rig.cluster.kill(node_id)


async def start_group(rig: Rig, group: str) -> None:
    for node_id in rig.cluster.groups[group].node_ids:
        rig.cluster.start(node_id)
    await until(lambda: rig.is_group_up(group))


def test_queues_are_spread_evenly() -> None:
    groups = ["g0", "g1", "g2", "g3", "g4"]
    assert spread(12, groups) == {"g0": 3, "g1": 3, "g2": 2, "g3": 2, "g4": 2}
    assert spread(2, ["g3", "g1", "g0"]) == {"g3": 1, "g1": 1}
    assert spread(0, groups) == {}


def test_a_number_of_queues_is_reached_by_the_same_shares_whatever_the_way() -> None:
    before = {"g0": 5, "g1": 2, "g2": 4}
    assert resized(before, 13) == {"g0": 5, "g1": 4, "g2": 4}
    step = resized(resized(before, 11), 12)
    assert resized(step, 13) == resized(before, 13)
    assert resized(before, 7) == resized(resized(before, 9), 7) == {"g0": 3, "g1": 2, "g2": 2}
    assert resized({"g0": 4, "g1": 0}, 8) == {"g0": 4, "g1": 4}
    with pytest.raises(InvalidArgumentError, match="2 queues over 3 replica groups"):
        resized(before, 2)


def test_a_topic_is_created_over_all_groups_and_grows() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            made = await admin.create_topic("t", 5)
            assert (made.replica_group, made.read_queues, made.write_queues, made.perm, made.created) == ("g0,g1", 5, 5, 6, True)
            assert await parts(admin) == {"g0": (3, 3, 6), "g1": (2, 2, 6)}
            assert [part.replica_groups for part in await admin.describe_topic("t")] == [("g0", "g1")] * 2
            with pytest.raises(TopicExistsError):
                await admin.create_topic("t", 9)
            assert (await admin.create_topic("t", 9, if_not_exists=True)).created is False
            assert await parts(admin) == {"g0": (3, 3, 6), "g1": (2, 2, 6)}
            await admin.create_topic("few", 1)  # g0 has more queues than g1
            assert await parts(admin, "few") == {"g1": (1, 1, 6)}
            grown = await admin.update_topic("t", queues=8)
            assert (grown.read_queues, grown.write_queues) == (8, 8)
            assert await parts(admin) == {"g0": (4, 4, 6), "g1": (4, 4, 6)}
            await admin.delete_topic("t")
            with pytest.raises(TopicNotFoundError):
                await admin.describe_topic("t")
            assert {(each.topic, each.replica_group) for each in await admin.list_topics() if each.topic in ("t", "few")} == {("few", "g1")}
            with pytest.raises(TopicNotFoundError):
                await admin.delete_topic("t")

    Rig(groups=2).run(scenario)


def test_a_key_is_found_in_the_queue_that_producers_choose_for_it() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin, rig.producer() as producer:
            await admin.create_topic("t", 5)
            sent = {key: await producer.send(Message("t", b"x"), key) for key in ("", "a", "customer-7", "Zürich", "\U0001f600")}
            sent["by hash"] = await producer.send(Message("t", b"x"), by_hash("by hash"))
            assert len({(each.replica_group, each.queue_id) for each in sent.values()}) > 2
            for key, result in sent.items():
                assert await admin.queue_of_key("t", key) == MessageQueue("t", result.replica_group, result.queue_id)
            await admin.update_topic("t", perm=4, replica_group="g0")
            assert {(await admin.queue_of_key("t", key)).replica_group for key in sent} == {"g1"}
            await admin.update_topic("t", perm=4)
            with pytest.raises(TopicPermissionError, match="topic t: writing is not permitted"):
                await admin.queue_of_key("t", "a")
            with pytest.raises(TopicNotFoundError):
                await admin.queue_of_key("other", "a")
            await admin.create_topic("urgent", 6, priorities=True)
            for key in sent:
                result = await producer.send(Message("urgent", b"x"), key)
                assert await admin.queue_of_key("urgent", key) == MessageQueue("urgent", result.replica_group, result.queue_id)

    Rig(groups=2).run(scenario)


def test_a_topic_has_the_priorities_that_it_was_created_with_in_every_replica_group() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            made = await admin.create_topic("t", queues=3, replica_groups=["g0"], priorities=True)
            grown = await admin.update_topic("t", queues=6, replica_groups=["g0", "g1"])
            (name,) = {part.topic for part in await admin.list_topics()}
            listed, described, route = await admin.list_topics(), await admin.describe_topic(name), await admin.route(name)
            assert made.priorities
            assert (grown.priorities, len(listed)) == (True, 2)
            assert all(part.priorities for part in [*grown.parts, *listed, *described, *(part.queues for part in route.parts)])
            await admin.create_topic("plain", queues=2)
            assert not any(part.priorities for part in await admin.describe_topic("plain"))
            for existing in (True, False):
                groups = ["g0", "g1"] if existing else ["g0", "g1", "g2"]
                with pytest.raises(InvalidArgumentError, match="plain has no priorities; it would get them only when it is created"):
                    await admin.create_topic("plain", replica_groups=groups, if_not_exists=True, priorities=True)

    Rig(groups=3).run(scenario)


def test_a_topic_grows_into_a_group_and_leaves_one() -> None:
    """docs/reference/semantics, row T3."""

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer("readers") as consumer:
            await admin.create_topic("t", 2, replica_group="g0")
            await producer.send(Message("t", b"x"), queue_id=0)
            await admin.update_topic("t", replica_groups=["g0", "g1"])
            assert await parts(admin) == {"g0": (2, 2, 6), "g1": (2, 2, 6)}
            with pytest.raises(UnsafeShrinkError, match="its queues in g0 still take messages; first --replica-group g0 --perm 4"):
                await admin.update_topic("t", replica_groups=["g1"])
            await admin.update_topic("t", perm=4, replica_group="g0")
            with pytest.raises(UnsafeShrinkError, match=r"in g0: .*queue 0 holds 1 messages, and no consumer group reads this topic"):
                await admin.update_topic("t", replica_groups=["g1"])
            await consumer.commit({("t", 0): 1}, replica_group="g0")
            await admin.update_topic("t", replica_groups=["g1"])
            assert await parts(admin) == {"g1": (2, 2, 6)}
            assert [part.replica_groups for part in await admin.describe_topic("t")] == [("g1",)]

    Rig(groups=2).run(scenario)


def test_a_group_is_not_left_while_messages_for_the_topic_wait_there() -> None:
    """docs/reference/semantics, row T3: delayed messages, those with a delivery time, open transactions."""

    async def scenario(rig: Rig) -> None:
        answers = [TransactionState.UNKNOWN]

        def check(_message: ReceivedMessage) -> TransactionState:
            return answers[-1]

        async with rig.admin() as admin, rig.transactions(check) as producer, rig.consumer("readers") as consumer:
            for name in ("t", "other"):
                await admin.create_topic(name, 1, replica_group="g0")
                await producer.send_in_transaction(Message(name, b"half"), lambda *_: TransactionState.UNKNOWN)
                await producer.send(Message(name, b"delayed", delay_level=4))
                await producer.send(Message(name, b"timed", deliver_at_ms=rig._clock.wall_ms() + 45_000))
                await producer.send(Message(name, b"soon", deliver_at_ms=rig._clock.wall_ms() + 2_000))
            await asyncio.sleep(5)
            await admin.update_topic("t", replica_groups=["g0", "g1"])
            await admin.update_topic("t", perm=4, replica_group="g0")

            async def leave() -> None:
                held = await consumer.offsets("t")
                await consumer.commit({("t", 0): held["g0", 0].max_offset}, replica_group="g0")
                await admin.update_topic("t", replica_groups=["g1"])

            with pytest.raises(
                UnsafeShrinkError,
                match=r"in g0: topic t: 1 delayed messages .*; 1 messages with a delivery time .*; 1 transactions are open",
            ):
                await leave()
            await asyncio.sleep(50)
            with pytest.raises(UnsafeShrinkError, match=r"in g0: topic t: 1 transactions are open \(--force"):
                await leave()
            answers.append(TransactionState.COMMIT)
            while (await consumer.offsets("t"))["g0", 0].max_offset < 4:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(1)
            assert {message.body for message in await consumer.fetch("t", 0, 0, replica_group="g0")} == {
                b"half",
                b"delayed",
                b"timed",
                b"soon",
            }
            await leave()
            assert await parts(admin) == {"g1": (1, 1, 6)}

    Rig(groups=2).run(scenario)


def test_queues_of_several_groups_go_in_two_steps() -> None:
    """docs/reference/semantics, row T1."""

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", 8)
            with pytest.raises(UnsafeShrinkError, match="first --write-queues 3, then, when they are drained, --read-queues 3"):
                await admin.update_topic("t", queues=3)
            await admin.update_topic("t", write_queues=3)
            assert await parts(admin) == {"g0": (4, 2, 6), "g1": (4, 1, 6)}
            await admin.update_topic("t", read_queues=3)
            assert await parts(admin) == {"g0": (2, 2, 6), "g1": (1, 1, 6)}

    Rig(groups=2).run(scenario)


def test_a_group_without_a_leader_leaves_nothing_half_done() -> None:
    """docs/reference/semantics, row T4."""

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("both", 2)
            await admin.create_topic("one", 2, replica_group="g0")
            kill_group(rig, "g1")
            with pytest.raises(NotLeaderError, match=r"replica group g1 has no leader .*nothing was created"):
                await admin.create_topic("t", 4)
            with pytest.raises(NotLeaderError, match=r"g1 .*nothing was changed"):
                await admin.update_topic("both", queues=8)
            with pytest.raises(NotLeaderError, match=r"g1 .*nothing was deleted"):
                await admin.delete_topic("both")
            await admin.update_topic("one", queues=4)  # it has nothing to do with g1
            listed = await admin.list_topics(partial=True)
            assert {each.topic for each in listed} == {"both", "one"}
            assert list(listed.unanswered) == ["g1"]
            ranges = await admin.topic_offsets("both", partial=True)
            assert ([each.replica_group for each in ranges], list(ranges.unanswered)) == (["g0"], ["g1"])
            assert not (await admin.topic_offsets("one")).unanswered
            with pytest.raises((NotLeaderError, UnreachableError)):
                await admin.list_topics()
            await start_group(rig, "g1")
            assert {each.topic for each in await admin.list_topics()} == {"both", "one"}
            assert (await admin.create_topic("t", 4)).parts[1].replica_group == "g1"

    Rig(groups=2).run(scenario)


def test_a_creation_that_fails_half_way_is_undone() -> None:
    """docs/reference/semantics, row T4."""

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            master = rig.master_of("g1")
            for node_id in rig.followers_of("g1"):
                rig.cluster.kill(node_id)  # the leader is still asked, and cannot commit
            with pytest.raises(Exception, match=r"topic t (was not created|may be left in g1) ") as raised:
                await admin.create_topic("t", 4)
            assert "g0" not in [each.replica_group for each in await admin.list_topics(partial=True) if each.topic == "t"]
            assert "creates the rest" in str(raised.value) or "was not created" in str(raised.value)
            for node_id in rig.cluster.groups["g1"].node_ids:
                if node_id != master:
                    rig.cluster.start(node_id)
            await until(lambda: rig.is_group_up("g1"))
            await admin.create_topic("t", 4, replica_groups=["g0", "g1"], if_not_exists=True)  # what the error says
            assert {group: write for group, (_, write, _) in (await parts(admin)).items()} == {"g0": 2, "g1": 2}

    Rig(groups=2).run(scenario)


def test_a_creation_whose_process_was_killed_half_way_is_told_with_the_command_that_completes_it() -> None:
    """docs/reference/semantics, row T4."""

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            part = admin_pb2.TopicSpec(name="t", group="g0", read_queues=2, write_queues=2, perm=6, groups=["g0", "g1"])
            await admin._calls.ask_leader("g0", methods.CREATE_TOPIC, part)
            again = "dledger topic create t --queues 4 --replica-groups g0,g1 --if-not-exists"
            rest = f"{again} creates the rest, dledger topic delete t deletes it"
            with pytest.raises(TopicExistsError) as raised:
                await admin.create_topic("t", 4)
            assert raised.value.message == f"topic 't' exists (in g0), but not in g1, since a command was broken off: {rest}"
            there = await admin.create_topic("t", 4, if_not_exists=True)
            assert [(part.replica_group, part.replica_groups) for part in there.parts] == [("g0", ("g0", "g1"))], "what is missing is told"
            await admin.create_topic("t", 4, replica_groups=["g0", "g1"], if_not_exists=True)
            assert await parts(admin) == {"g0": (2, 2, 6), "g1": (2, 2, 6)}
            with pytest.raises(TopicExistsError, match=r"^topic 't' exists \(in g0, g1\)$"):
                await admin.create_topic("t", 4)

    Rig(groups=2).run(scenario)


def test_producers_that_make_a_topic_at_the_same_time_make_the_same_one() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin, rig.producer() as one, rig.producer() as other:
            await asyncio.gather(one.send(Message("new", b"1")), other.send(Message("new", b"2")))
            assert {group: write for group, (_, write, _) in (await parts(admin, "new")).items()} == {"g0": 2, "g1": 2}

    Rig(groups=2, settings="broker: {autoCreateTopicEnable: true}\n").run(scenario)
    assert {by_name(f"topic{number}", ["g0", "g1", "g2"])[0] for number in range(30)} == {"g0", "g1", "g2"}
