"""What ``Admin`` does beside topics and messages, against real nodes in virtual time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

import pytest

import dledger_client
import dledger_client.aio
from broker.leadership.transfer import AWAY_MS, unfit_voters
from dledger_client.admin import replica_comparison
from dledger_client.admin.calls import ClusterCalls, answers_of
from dledger_client.admin.consumer_groups import OffsetReset
from dledger_client.admin.send_back import SentBack
from dledger_client.admin.topics import ranges_of
from dledger_client.aio import Message, TransactionOutcome, TransactionState, consumer_group_admin
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import (
    ClientClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    InvalidNameError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from dledger_wire.rpc import methods
from tests.unit.client.sim_rig import Rig, context_of, until


def test_nodes_and_replica_groups_are_described() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            cluster = await admin.describe_cluster()
            assert [group.name for group in cluster.replica_groups] == ["g0"]
            (group,) = await admin.cluster_status()
            assert (group.healthy, group.takes_messages, group.quorum, group.spare) == (True, True, 2, 1)
            assert group.leader is not None
            assert group.leader.id == rig.master
            assert sorted(group.acknowledging) == sorted(group.voters) == sorted(rig.cluster.hosts)
            assert {group.lag(node) is None for node in group.nodes if node.id == rig.master} == {True}
            assert all(group.lag(node) is not None for node in group.nodes if node.id != rig.master)
            rig.cluster.kill(rig.followers[0])
            statuses = await admin.status()
            assert [node.reachable for node in statuses].count(False) == 1
            assert next(node.error for node in statuses if not node.reachable)

    Rig().run(scenario)


def test_nodes_that_are_named_are_asked_although_no_other_answers() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            (group,) = await admin.cluster_status(nodes={"g0": {"n7": "10.9.9.9:1"}}, timeout_ms=300)
            assert [(node.id, node.reachable) for node in group.nodes] == [("n7", False)]
            assert (group.leader, group.takes_messages) == (None, False)

    Rig().run(scenario)


def test_a_closed_admin_says_so_at_once_and_calls_no_node_unreachable() -> None:
    """docs/reference/semantics, row R10."""

    async def scenario(rig: Rig) -> None:
        admin = rig.admin()
        await admin.list_topics()
        await admin.close()
        began_s = asyncio.get_running_loop().time()
        for call in (admin.list_topics, admin.cluster_status, admin.status, admin.describe_cluster, admin.list_groups, admin.name_servers):
            with pytest.raises(ClientClosedError):
                await call()
        never_used = rig.admin()
        await never_used.close()
        with pytest.raises(ClientClosedError):
            await never_used.list_topics()
        assert asyncio.get_running_loop().time() - began_s < 1

    Rig().run(scenario)


def test_a_call_that_is_cancelled_as_it_begins_leaves_no_question_unasked() -> None:
    """Python warned of a coroutine that nobody had awaited."""
    asked: list[Coroutine[Any, Any, None]] = []

    async def answer(_group: str) -> None: ...

    def ask(group: str) -> Coroutine[Any, Any, None]:
        asked.append(answer(group))
        return asked[-1]

    async def scenario() -> None:
        calling = asyncio.ensure_future(answers_of(ask, ["g0", "g1"]))
        await asyncio.sleep(0)  # the questions are tasks that have not begun
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    asyncio.run(scenario())
    begun = [inspect.getcoroutinestate(each) for each in asked]
    for each in asked:
        each.close()
    assert set(begun) <= {inspect.CORO_CLOSED}


def test_leaders_and_members_are_changed() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            old, (new, last) = rig.master, rig.followers
            address = next(each.address for each in await admin.status() if each.id == old)
            done = await admin.transfer_leader(new)
            assert (done.replica_group, done.old_leader, done.new_leader) == ("g0", old, new)
            await until(lambda: rig.cluster.master() == new)
            with pytest.raises(InvalidArgumentError, match="no node 'n9' in replica group g0; expected one of"):
                await admin.transfer_leader("n9")
            with pytest.raises(InvalidArgumentError, match="no replica group 'g9'"):
                await admin.transfer_leader(replica_group="g9")
            with pytest.raises(InvalidArgumentError, match="no replica group 'g9' in cluster"):
                await admin.update_topic("t", perm=4, replica_group="g9")
            left = await admin.remove_member(old)
            assert old not in left.voters
            assert len(left.voters) == 2
            await admin.add_member(old, address)
            with pytest.raises(InvalidArgumentError, match="only another voter can take leadership over, no learner"):
                await admin.transfer_leader(old)
            await admin.remove_member(last)
            with pytest.raises(InvalidArgumentError, match="without a name, one that answers"):
                await admin.transfer_leader()

    Rig().run(scenario)


def test_leadership_is_not_handed_to_a_member_that_is_away() -> None:
    """Each attempt would hold up writes for an election timeout, until the caller's time is up."""

    async def scenario(rig: Rig) -> None:
        away, back = rig.followers
        rig.cluster.kill(away)
        await asyncio.sleep(2 * AWAY_MS / 1000)
        async with rig.admin() as admin:
            with pytest.raises(InvalidArgumentError, match=f"{away} must not lead now: it does not answer, the last time 1[0-9] s ago"):
                await admin.transfer_leader(away)
            rig.cluster.start(away)
            assert (await admin.transfer_leader(back)).new_leader == back
            assert (await admin.transfer_leader(away)).new_leader == away

    Rig().run(scenario)


def test_leadership_is_not_handed_to_a_voter_that_must_not_lead_unless_that_is_forced() -> None:
    async def scenario(rig: Rig) -> None:
        full, wrong = rig.followers
        disk = rig.cluster.hosts[full].disk
        disk.settings.capacity_bytes = disk.used_bytes() * 100 // 95
        rig.cluster.hosts[wrong].clock.jump_wall(3_600_000)
        async with rig.admin() as admin:
            leader = context_of(rig, rig.master)
            await until(lambda: all(unfit_voters(leader).values()))
            with pytest.raises(
                InvalidArgumentError, match=f"{full} must not lead now: its disk has no room for new messages; expected .*--force"
            ):
                await admin.transfer_leader(full)
            with pytest.raises(
                InvalidArgumentError, match=f"{wrong} must not lead now: its clock is off by .60 min from the group's majority"
            ):
                await admin.transfer_leader(wrong)
            with pytest.raises(InvalidArgumentError, match=f"no other voter may lead now .*{full}: its disk.*"):
                await admin.transfer_leader()
            assert (await admin.transfer_leader(full, force=True)).new_leader == full

    Rig(store="cleanResourceInterval: 1s, diskSpaceEnoughFree: 0").run(scenario, limit_s=120)


def test_retention_and_comparison() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.producer() as producer, rig.admin() as admin:
            await producer.send(Message("t", b"x"))
            done = await admin.expire_messages(older_than_ms=0)
            assert sorted(each.node_id for each in done) == sorted(rig.cluster.hosts)
            assert all(each.error is None for each in done)
            with pytest.raises(InvalidArgumentError, match="no node 'n9'"):
                await admin.expire_messages(node_ids=["n9"])
            seen: list[str] = []
            (compared,) = await admin.compare_replicas(on_progress=lambda each: seen.append(each.replica_group))
            assert (compared.equal, compared.unreachable, seen) == (True, (), ["g0"])
            victim = rig.followers[0]
            told, late = replica_comparison._checksums, next(each.address for each in await admin.status() if each.id == victim)

            async def silent(calls: ClusterCalls, address: str, *rest: Any) -> Any:
                if address == late:
                    raise DeadlineExceededError("no answer")
                return await told(calls, address, *rest)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(replica_comparison, "_checksums", silent)
                (compared,) = await admin.compare_replicas()
            assert (compared.equal, compared.unreachable) == (True, (victim,)), "a node that is late is not damaged"
            rig.cluster.kill(victim)
            (without,) = await admin.expire_messages(node_ids=[victim])
            assert without.error is not None

    Rig().run(scenario)


def test_nodes_that_are_no_members_are_not_compared() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.producer() as producer, rig.admin() as admin:
            nodes = {"g0": {node.id: node.address for node in await admin.status()}}
            removed = rig.followers[0]
            await admin.remove_member(removed)
            await producer.send(Message("t", b"x"))
            (group,) = await admin.cluster_status(nodes=nodes)
            assert any(node.id == removed and node.reachable for node in group.nodes)
            (compared,) = await admin.compare_replicas(nodes=nodes)
            assert (compared.equal, compared.unreachable) == (True, ())
            assert sorted(compared.replicas) == sorted(group.voters)
            assert group.leader is not None
            assert compared.end_pos > next(node.committed_pos for node in group.nodes if node.id == removed)

    Rig().run(scenario)


def test_a_member_that_a_leader_never_heard_is_told_apart() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            dead, next_leader = rig.followers
            rig.cluster.kill(dead)
            await admin.transfer_leader(next_leader)

            async def unheard() -> set[str]:
                (group,) = await admin.cluster_status()
                assert group.leader is not None
                assert group.leader.id == next_leader
                return {peer.id for peer in group.leader.peers if peer.unheard}

            assert await unheard() == {dead}
            rig.cluster.start(dead)
            while await unheard():  # noqa: ASYNC110 - virtual time costs nothing
                await asyncio.sleep(0.1)

    Rig().run(scenario)


def test_consumer_groups_are_listed_described_reset_and_deleted() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=2)
        async with rig.producer() as producer, rig.admin() as admin, rig.consumer("audit") as consumer:
            for number in range(6):
                await producer.send(Message("t", b"%d" % number), queue_key="same")
            ranges = await admin.topic_offsets("t")
            (busy,) = [each for each in ranges if each.messages == 6]
            await consumer.commit({("t", busy.queue_id): 2})
            (group,) = await admin.list_groups()
            assert (group.name, group.topics, group.members) == ("audit", ("t",), 0)
            described = await admin.describe_group("audit")
            assert (described.lag, {row.queue_id: row.offset for row in described.queues}) == (
                4,
                {busy.queue_id: 2, 1 - busy.queue_id: None},
            )
            moves = await admin.reset_offsets("audit", "t", "first", dry_run=True)
            assert [(move.before, move.after, move.repeated, move.skipped) for move in moves if move.before is not None] == [(2, 0, 2, 0)]
            assert (await admin.describe_group("audit")).lag == 4
            await admin.reset_offsets("audit", "t", "last")
            assert (await admin.describe_group("audit")).lag == 0
            to: Any
            for to in ({busy.queue_id: 3}, {("g0", busy.queue_id): 3}):
                (move,) = await admin.reset_offsets("audit", "t", to)
                assert (move.queue_id, move.before, move.after, move.repeated) in ((busy.queue_id, 6, 3, 3), (busy.queue_id, 3, 3, 0))
            positions = {row.queue_id: row.offset for row in (await admin.describe_group("audit")).queues}
            assert positions == {busy.queue_id: 3, 1 - busy.queue_id: 0}, "other queues stay"
            wrong: Any
            for wrong, error, text in (
                ({2: 0}, InvalidArgumentError, "no queue 2; expected one of g0/0, g0/1"),
                ({busy.queue_id: 7}, OffsetOutOfRangeError, "offset 7; expected 0 .* to 6"),
                ({}, InvalidArgumentError, "expected first, last"),
                (17, InvalidArgumentError, "13 digits"),
            ):
                with pytest.raises(error, match=text):
                    await admin.reset_offsets("audit", "t", wrong)
            with pytest.raises(InvalidArgumentError, match="no consumer group 'nosuch'"):
                await admin.reset_offsets("nosuch", "t", "last")
            with pytest.raises(InvalidArgumentError, match="expected first, last"):
                await admin.reset_offsets("audit", "t", "middle")  # type: ignore[arg-type]
            with pytest.raises(TopicNotFoundError):
                await admin.reset_offsets("audit", "gone", "last")
            fresh = await admin.reset_offsets("fresh", "t", "last", dry_run=True, create=True)
            assert sum(move.skipped for move in fresh) == 6
            await admin.delete_group("audit")
            assert await admin.list_groups() == []
            with pytest.raises(InvalidArgumentError, match="has no settings and no positions"):
                await admin.delete_group("audit")

    Rig().run(scenario)


def test_a_reset_does_not_move_a_group_in_a_topic_made_anew_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row T2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer("audit") as consumer:

            async def fill() -> None:
                for _ in range(3):
                    await producer.send(Message("t", b"x"))

            async def made_anew_behind(*args: Any, **more: Any) -> Any:
                found = await ranges_of(*args, **more)
                await admin.delete_topic("t")
                await rig.topic()
                await fill()
                await consumer.commit({("t", 0): 1})
                return found

            await fill()
            await consumer.commit({("t", 0): 1})
            monkeypatch.setattr(consumer_group_admin, "ranges_of", made_anew_behind)
            with pytest.raises(TopicNotFoundError, match="topic 't' was deleted and recreated"):
                await admin.reset_offsets("audit", "t", "last")
            monkeypatch.undo()
            assert (await consumer.committed("t")) == {("g0", 0): 1}
            await admin.reset_offsets("audit", "t", "last")
            assert (await consumer.committed("t")) == {("g0", 0): 3}

    Rig().run(scenario)


@pytest.mark.parametrize(
    ("before", "after", "oldest", "repeated", "skipped"),
    [(5, 2, 0, 3, 0), (2, 5, 0, 0, 3), (None, 9, 4, 0, 5), (None, 4, 4, 0, 0), (1, 6, 4, 0, 2), (3, 3, 0, 0, 0)],
)
def test_a_reset_counts_what_is_read_again_and_what_is_skipped(
    before: int | None, after: int, oldest: int, repeated: int, skipped: int
) -> None:
    move = OffsetReset("g0", 0, before, after, oldest)
    assert (move.repeated, move.skipped) == (repeated, skipped)


def test_dead_letters_are_opened_and_messages_sent_back() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.producer() as producer, rig.admin() as admin:
            await producer.send(Message("t", b"x"))
            (done,) = await admin.send_back("audit", "t", 0, [0], delay_level=-1)
            assert done.outcome is SentBack.DEAD
            (letters,) = await admin.dead_letters("audit")
            assert (letters.readable, letters.waiting) == (False, 1)
            await admin.open_dead_letters("audit")
            assert [each.readable for each in await admin.dead_letters("audit")] == [True]
            await admin.open_dead_letters("audit", readable=False)
            assert [each.readable for each in await admin.dead_letters("audit")] == [False]
            assert await admin.open_dead_letters("nosuch") == []

    Rig().run(scenario)


def test_an_open_transaction_is_resolved_by_hand() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.transactions(lambda _: TransactionState.UNKNOWN) as producer, rig.admin() as admin:
            await producer.send_in_transaction(Message("t", b"x"), lambda *_: TransactionState.UNKNOWN)
            (group,) = await admin.transactions()
            (transaction,) = group.transactions
            assert await admin.resolve_transaction(transaction, TransactionState.ROLLBACK) is TransactionOutcome.ROLLED_BACK
            assert [each.open for each in await admin.transactions(max_transactions=1)] == [0]

    Rig().run(scenario)


@pytest.mark.parametrize("name", ["%RETRY%audit", "%DLQ%audit", "-x"])
def test_names_of_others_are_not_given_to_new_topics(name: str) -> None:
    """The nodes themselves create what a consumer group needs."""

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            with pytest.raises(InvalidNameError):
                await admin._calls.ask_leader("g0", methods.CREATE_TOPIC, admin_pb2.TopicSpec(name=name, write_queues=1))
            with pytest.raises(InvalidNameError):
                await admin.create_topic(name)

    Rig().run(scenario)


def test_both_admins_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, str]:
        public = {name: value for name, value in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
        return {name: str(inspect.signature(value)) for name, value in public.items()}

    assert methods(dledger_client.Admin) == methods(dledger_client.aio.Admin)
