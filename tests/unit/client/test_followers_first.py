"""A client that reads at followers leaves the leader alone: counted at the leader, call by call."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from dledger_client.admin.send_back import DEAD_LETTER
from dledger_client.aio import Admin, Message, TransactionState
from dledger_client.cluster.followers_first import MAX_SILENT_MS
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, TopicNotFoundError, UnreachableError
from tests.unit.broker.test_send_back import GROUP, back, send
from tests.unit.client.sim_rig import Rig, until

MEMBERS, PRODUCERS = "Sessions/DescribeMembers", "Transactions/DescribeTransactions"


def asked(rig: Rig, node_id: str) -> Counter[str]:
    """How often each call was made at a node; the name service aside, which may run on any of them and counts apart."""
    node = rig.cluster.hosts[node_id].node
    assert node is not None
    found: Counter[str] = Counter()
    for (method, _code), took in node.measures.requests.items():
        if not method.startswith("NameService/"):
            found[method] += took.count
    return found


def asked_names(rig: Rig) -> int:
    """How often names were looked up, wherever that was."""
    found = 0
    for host in rig.cluster.hosts.values():
        requests = host.node.measures.requests if host.node is not None else {}
        found += sum(took.count for (method, _), took in requests.items() if method in ("NameService/Routes", "NameService/Directory"))
    return found


async def everything(admin: Admin) -> None:
    """All lists and figures that pages show again and again."""
    names = {each.topic for each in await admin.list_topics()}
    await admin.offsets_of_topics(names)
    await admin.describe_topic("t")
    await admin.topic_offsets("t", timestamp_ms=0)
    await admin.list_groups()
    await admin.describe_groups()
    await admin.describe_group(GROUP)
    await admin.dead_letters()
    await admin.transactions()
    await admin.waiting_delays()
    await admin.query_by_key("t", "k")
    await admin.query_by_offset("t", 0, 0)


async def filled(rig: Rig) -> None:
    """Messages, a consumer group with positions and a dead letter, an open transaction."""
    await rig.topic("t", queues=2)
    await send(rig, 5)
    await back(rig, [0], level=DEAD_LETTER)
    async with rig.producer() as producer:
        await producer.send(Message("t", b"found", keys="k"))
    async with rig.consumer(GROUP) as consumer:
        await consumer.commit({("t", 0): 3})
    async with rig.transactions(lambda _: TransactionState.UNKNOWN) as producer:
        await producer.send_in_transaction(Message("t", b"half"), lambda *_: TransactionState.UNKNOWN)


def test_lists_reach_the_leader_for_members_and_producers_alone_and_seldom() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.admin(read_from="follower") as admin:
            await everything(admin)
            before, began_s, names_before = asked(rig, rig.master), rig.cluster.loop.now_s, asked_names(rig)
            for _ in range(6):
                await everything(admin)
                await asyncio.sleep(2)
            took_s = rig.cluster.loop.now_s - began_s
            told, names = asked(rig, rig.master) - before, asked_names(rig) - names_before
        most = took_s / 5 + 1
        assert 1 <= told.pop(MEMBERS) <= 2 * most  # of all groups, and of one
        assert 1 <= told.pop(PRODUCERS) <= most
        assert not told
        assert names <= 3 * most

    Rig().run(scenario)


def test_followers_tell_what_the_leader_tells_and_who_they_are() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.consumer(GROUP), rig.admin() as at_leader, rig.admin(read_from="follower") as admin:
            await asyncio.sleep(1)
            for one, other in (
                (await admin.list_topics(), await at_leader.list_topics()),
                (await admin.topic_offsets("t", timestamp_ms=0), await at_leader.topic_offsets("t", timestamp_ms=0)),
                (await admin.list_groups(), await at_leader.list_groups()),
                (await admin.describe_groups(), await at_leader.describe_groups()),
                (await admin.dead_letters(), await at_leader.dead_letters()),
                (await admin.transactions(), await at_leader.transactions()),
            ):
                assert list(one) == list(other)
                assert one
                assert one.read_at["g0"].node in rig.followers
                assert one.read_at["g0"].is_current
                assert other.read_at["g0"].node == rig.master
            assert await admin.offsets_of_topics(["t"]) == await at_leader.offsets_of_topics(["t"])
            assert await admin.describe_topic("t") == await at_leader.describe_topic("t")
            assert (await admin.waiting_delays()).read_at["g0"].node in rig.followers

    Rig().run(scenario)


def cut_off(rig: Rig, node_id: str) -> None:
    """From the other nodes; clients still reach it."""
    for other in rig.cluster.hosts:
        if other != node_id:
            rig.cluster.net.cut(rig.cluster.hosts[node_id].ip, rig.cluster.hosts[other].ip)
            rig.cluster.net.cut(rig.cluster.hosts[other].ip, rig.cluster.hosts[node_id].ip)


def test_a_follower_that_hears_nothing_is_left_for_another_one() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.admin(read_from="follower") as admin:
            first = (await admin.dead_letters()).read_at["g0"].node
            cut_off(rig, first)
            await asyncio.sleep(MAX_SILENT_MS / 1000 + 1)
            await rig.topic("new")
            found = await admin.list_topics()
            assert "new" in {each.topic for each in found}
            assert found.read_at["g0"].node not in (first, rig.master)
            before = asked(rig, first)
            await admin.list_topics()
            assert asked(rig, first) - before == Counter()  # not asked for some time

    Rig().run(scenario)


def test_without_a_leader_followers_answer_and_say_since_when_they_heard_none() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.admin(read_from="follower") as admin:
            await everything(admin)
            last, *others = rig.followers
            for node_id in (rig.master, *others):
                rig.cluster.kill(node_id)
            await asyncio.sleep(MAX_SILENT_MS / 1000 + 1)
            found = await admin.dead_letters(partial=True)
            assert [letters.consumer_group for letters in found] == [GROUP]
            assert not found.read_at["g0"].is_current
            assert found.read_at["g0"].node == last
            described = await admin.describe_groups(partial=True)
            assert [group.name for group in described] == [GROUP]
            assert list(described.unanswered) == ["g0"]  # its members are not known
            with pytest.raises((NotLeaderError, UnreachableError)):
                await admin.describe_groups()

    Rig().run(scenario)


def test_whoever_asks_leaders_is_answered_by_followers_while_there_is_none() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.admin() as admin:
            (before,) = await admin.describe_groups(partial=True, or_followers=True)
            assert (before.unanswered, before.read_at["g0"].leader) == ({}, True)
            _, *others = rig.followers
            for node_id in (rig.master, *others):
                rig.cluster.kill(node_id)
            await asyncio.sleep(MAX_SILENT_MS / 1000 + 1)
            found = await admin.describe_groups(partial=True, or_followers=True)
            (progress,) = await admin.group_progress(found)
            assert (progress.name, progress.group.queues, progress.lag) == (before.name, before.queues, before.lag)
            assert (progress.members, progress.state().text) == (None, "unknown")
            assert (list(found.unanswered), found.read_at["g0"].leader) == (["g0"], False)
            assert (await admin.describe_group(GROUP, partial=True, or_followers=True)).queues == before.queues
            with pytest.raises(NotLeaderError):
                await admin.describe_groups(partial=True)

    Rig().run(scenario)


def test_a_new_leader_is_spared_as_the_old_one_was() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.admin(read_from="follower") as admin:
            await everything(admin)
            old = rig.master
            async with rig.admin() as operator:
                await operator.transfer_leader(rig.followers[0])
            await until(lambda: rig.cluster.master("g0") not in (None, old))
            await asyncio.sleep(1)
            assert (await admin.query_by_offset("t", 0, 0)).replica != rig.master  # type: ignore[union-attr]
            for _ in range(4):  # the first one may find out
                await everything(admin)
            before = asked(rig, rig.master)
            for _ in range(4):
                await everything(admin)
                at = await admin.query_by_offset("t", 0, 0)
                assert at is not None
                assert at.replica != rig.master
            told = asked(rig, rig.master) - before
        assert set(told) <= {MEMBERS, PRODUCERS}, told

    Rig().run(scenario)


def test_a_follower_that_was_elected_is_asked_once_more_and_then_spared() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin(read_from="follower") as admin, rig.admin() as operator:
            await admin.list_topics()
            elected = (await admin.list_topics()).read_at["g0"].node
            assert elected != rig.master
            await operator.transfer_leader(elected)
            await until(lambda: rig.cluster.master("g0") == elected)
            found = [(await admin.list_topics()).read_at["g0"] for _ in range(3)]
        assert (found[0].node, found[0].leader) == (elected, True)
        assert all(each.node != elected and not each.leader for each in found[1:])

    Rig().run(scenario)


def test_what_no_follower_knows_is_looked_for_at_the_leader() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.admin(read_from="follower") as admin:
            await admin.list_topics()
            lagging = rig.followers[0]
            rig.cluster.net.cut(rig.cluster.hosts[rig.master].ip, rig.cluster.hosts[lagging].ip)
            await rig.topic("new")
            assert [queue.messages for queue in (await admin.offsets_of_topics(["new"]))["new"]] == [0]
            assert [part.topic for part in await admin.describe_topic("new")] == ["new"]
            assert len(await admin.topic_offsets("new")) == 1
            async with rig.consumer("fresh") as consumer:
                await consumer.commit({("t", 0): 0})
            assert (await admin.describe_group("fresh")).name == "fresh"
            with pytest.raises(TopicNotFoundError):
                await admin.topic_offsets("nowhere")
            with pytest.raises(InvalidArgumentError, match="nobody"):
                await admin.describe_group("nobody")

    Rig().run(scenario)


def test_a_search_goes_on_to_others_when_the_follower_hangs() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.admin(read_from="follower") as admin:
            first, *_ = [message.replica for message in await admin.query_by_key("t", "k")]
            assert first in rig.followers
            rig.cluster.net.cut(rig.process.host, rig.cluster.hosts[first].ip)
            found = await admin.query_by_key("t", "k")
            assert [message.body for message in found.messages] == [b"found"]
            assert found.complete
            assert found.messages[0].replica != first
            began_s = rig.cluster.loop.now_s
            assert await admin.query_by_key("t", "k")
            await admin.list_topics()
            assert rig.cluster.loop.now_s - began_s < 0.5  # it is not asked again for some time

    Rig().run(scenario)


def test_a_search_at_a_follower_that_is_far_behind_is_done_again_elsewhere() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.admin(read_from="follower") as admin, rig.producer() as producer:
            behind = (await admin.query_by_key("t", "k")).messages[0].replica
            cut_off(rig, behind)
            await asyncio.sleep(MAX_SILENT_MS / 1000 + 1)
            await producer.send(Message("t", b"newer", keys="k"))
            found = await admin.query_by_key("t", "k")
            assert [message.body for message in found.messages] == [b"newer", b"found"]
            for node_id in (rig.master, *rig.followers):
                if node_id != behind:
                    rig.cluster.kill(node_id)
            found = await admin.query_by_key("t", "k")
            assert [message.body for message in found.messages] == [b"found"]
            assert not found.complete

    Rig().run(scenario)


def test_followers_that_hang_do_not_use_up_the_time_for_the_leader() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.admin(read_from="follower", timeout_ms=2000) as admin:
            await admin.list_topics()
            master = rig.master
            for node_id in rig.followers:
                rig.cluster.net.cut(rig.process.host, rig.cluster.hosts[node_id].ip)
            found = [(await admin.list_topics()).read_at["g0"]]
            began_s = rig.cluster.loop.now_s
            found += [(await admin.list_topics()).read_at["g0"] for _ in range(2)]
            assert [each.node for each in found] == [master] * 3
            assert rig.cluster.loop.now_s - began_s < 0.5

    Rig().run(scenario)
