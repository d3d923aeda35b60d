"""Changes that an administrator makes while answers are lost: what was carried out is not told as a failure, nor the other way round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dledger_client.aio import Message, security_admin
from dledger_client.cluster.leader_calls import LeaderCalls
from dledger_client.cluster.routes import ReplicaGroup
from dledger_wire._pb import admin_pb2, retry_pb2, security_pb2
from dledger_wire.errors import (
    DledgerError,
    InvalidArgumentError,
    NotLeaderError,
    OutcomeUnknownError,
    TopicNotFoundError,
    UnreachableError,
)
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import UnaryMethod
from tests.sim.spread.users import create_users
from tests.unit.client.sim_rig import Rig, until


class LostAnswers:
    """Each next call of the methods in ``next`` reaches the leader, and its answer is lost; with ``before`` also the request is.

    ``then`` is done before the caller learns that.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.next: list[UnaryMethod[Any, Any]] = []
        self.before = False
        self.then: Callable[[], Awaitable[object]] | None = None
        watched = LeaderCalls._watched

        async def lossy(calls: LeaderCalls, leader: ReplicaGroup, method: Any, request: Any, left_s: float) -> bytes:
            if method not in self.next:
                return await watched(calls, leader, method, request, left_s)
            self.next.remove(method)
            if not self.before:
                await watched(calls, leader, method, request, left_s)
            if self.then is not None:
                await self.then()
            raise UnreachableError(f"{leader.leader_address}: the connection broke", address=leader.leader_address)

        patch.setattr(LeaderCalls, "_watched", lossy)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> LostAnswers:
    return LostAnswers(monkeypatch)


@pytest.mark.parametrize("before", [True, False])
def test_a_deleted_topic_is_deleted(lost: LostAnswers, before: bool) -> None:
    lost.before = before

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin:
            lost.next = [methods.DELETE_TOPIC]
            await admin.delete_topic("t")
            assert not lost.next
            with pytest.raises(TopicNotFoundError):
                await admin.describe_topic("t")
            with pytest.raises(TopicNotFoundError):
                await admin.delete_topic("t")

    Rig().run(scenario)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_topic_made_anew_meanwhile_is_not_deleted_by_the_repeated_call(lost: LostAnswers, groups: int) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2 * groups)
        async with rig.admin() as admin, rig.admin() as other, rig.producer() as producer:
            deleted = 0

            async def made_anew() -> None:
                nonlocal deleted
                deleted += 1
                if deleted < groups:
                    await until(lambda: not lost.next and deleted == groups)
                    return
                await other.create_topic("t", 2 * groups)
                await producer.send(Message("t", b"of the new one"), queue_id=0)

            lost.next, lost.then = [methods.DELETE_TOPIC] * groups, made_anew
            await admin.delete_topic("t")
            assert not lost.next
            assert sum(queue.messages for queue in await admin.topic_offsets("t")) == 1

    Rig(groups=groups).run(scenario)


@pytest.mark.parametrize("before", [True, False])
def test_a_deleted_group_is_deleted(lost: LostAnswers, before: bool) -> None:
    lost.before = before

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer("audit") as consumer:
            await producer.send(Message("t", b"x"))
            await consumer.commit({("t", 0): 1})
            await admin.update_group("audit", retry_max_times=3)
            lost.next = [methods.DELETE_GROUP]
            await admin.delete_group("audit")
            assert (lost.next, await admin.list_groups()) == ([], [])
            with pytest.raises(InvalidArgumentError, match="has no settings and no positions"):
                await admin.delete_group("audit")

    Rig().run(scenario)


def test_a_group_made_anew_meanwhile_is_not_deleted_by_the_repeated_call(lost: LostAnswers) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer("audit") as consumer:
            await producer.send(Message("t", b"x"))
            await consumer.commit({("t", 0): 1})

            async def made_anew() -> None:
                await consumer.commit({("t", 0): 1})
                await admin.update_group("audit", retry_max_times=3)
                await rig.restart(rig.master)

            lost.next, lost.then = [methods.DELETE_GROUP], made_anew
            await admin.delete_group("audit")
            assert not lost.next
            assert await consumer.committed("t") == {("g0", 0): 1}
            assert (await admin.group_settings("audit"))[0].retry_max_times == 3
            await admin.delete_group("audit")
            assert await consumer.committed("t") == {}

    Rig().run(scenario)


def test_a_deletion_that_begins_before_another_has_ended_does_all_of_it() -> None:
    """The other one may be of a call that was given up, and end between settings and positions."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.consumer("audit") as consumer:
            await consumer.commit({("t", 0): 0})
            await admin.update_group("audit", retry_max_times=3)
            seen = await admin._calls.ask_leader("g0", methods.LIST_GROUPS, retry_pb2.GroupSettings(name="audit"))
            request = retry_pb2.GroupSettings(name="audit", seen_index=seen.applied_index)
            await asyncio.gather(*(admin._calls.ask_leader("g0", methods.DELETE_GROUP, request) for _ in range(2)))
            assert await admin.list_groups() == []

    Rig().run(scenario)


def test_a_leader_that_was_cut_off_does_not_tell_the_index_by_which_a_deletion_is_done_once() -> None:
    """An index from before the group was deleted and made anew would have its next deletion taken for a repeated one."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin:
            await admin.update_group("audit", retry_max_times=3)
            master = rig.master
            for other in rig.followers:
                rig.cluster.net.cut(rig.cluster.hosts[master].ip, rig.cluster.hosts[other].ip)
                rig.cluster.net.cut(rig.cluster.hosts[other].ip, rig.cluster.hosts[master].ip)
            channel = admin._router.channel(rig.cluster.hosts[master].address)
            with pytest.raises(DledgerError):
                await methods.LIST_GROUPS.call(channel, retry_pb2.GroupSettings(name="audit"), timeout_s=20)

    Rig().run(scenario)


@pytest.mark.parametrize("before", [True, False])
def test_users_are_made_and_deleted(lost: LostAnswers, before: bool) -> None:
    lost.before = before

    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        async with rig.admin() as admin:
            lost.next = [methods.PUT_USER]
            made = await admin.create_user("billing")
            assert "billing" in [user.name for user in await admin.list_users()]
            with pytest.raises(InvalidArgumentError, match="user 'billing' exists already"):
                await admin.create_user("billing")
            lost.next = [methods.DELETE_USER]
            deleted = await admin.delete_user("billing")
            assert deleted.version > made.version > 0
            assert (deleted.waiting, lost.next) == ((), [])
            assert "billing" not in [user.name for user in await admin.list_users()]
            with pytest.raises(InvalidArgumentError, match="there is no user 'billing'"):
                await admin.delete_user("billing")

    Rig(secured=True).run(scenario)


def test_whose_password_a_user_has_is_not_known(lost: LostAnswers) -> None:
    """The attempt may have made the user, or found one of before, with another password: the one must not be told for the other."""

    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        kept, user = rig.cluster.security.verifier("billing"), security_pb2.SecurityUser(name="billing")
        user.verifier.salt, user.verifier.stored_key, user.verifier.server_key = kept.salt, kept.stored_key, kept.server_key
        user.verifier.iterations = kept.iterations
        request = security_pb2.PutUserRequest(user=user, create=True)
        async with rig.admin() as admin:
            for existed in (False, True):
                lost.next, lost.before = [methods.PUT_USER], existed
                with pytest.raises(
                    OutcomeUnknownError, match="'billing' exists: created by an attempt whose answer was lost, or by another"
                ):
                    await security_admin._change(admin._calls, methods.PUT_USER, request, "billing", security_admin._is_done("billing"))
                assert not lost.next
            lost.next = [methods.PUT_USER]
            with pytest.raises(OutcomeUnknownError):
                await admin.create_user("billing")  # without a password, and it has one
            lost.next, lost.before = [methods.PUT_USER], False
            request.create = False
            await security_admin._change(admin._calls, methods.PUT_USER, request, "billing")

    Rig(secured=True).run(scenario)


NEW = "n9"
NEW_ADDRESS = "10.0.0.99:10911"


@pytest.mark.parametrize("before", [True, False])
def test_members_are_added_replaced_and_removed(lost: LostAnswers, before: bool) -> None:
    lost.before = before

    async def scenario(rig: Rig) -> None:
        gone, other = rig.followers
        rig.cluster.kill(gone)
        async with rig.admin() as admin:
            lost.next = [methods.CHANGE_MEMBER]
            changed = await admin.replace_member(NEW, NEW_ADDRESS, replaces=gone)
            assert (set(changed.voters), changed.learners) == ({rig.master, other}, (NEW,))
            lost.next = [methods.CHANGE_MEMBER]
            changed = await admin.remove_member(NEW)
            assert (set(changed.voters), changed.learners) == ({rig.master, other}, ())
            lost.next = [methods.CHANGE_MEMBER]
            changed = await admin.add_member(gone, rig.cluster.hosts[gone].address)
            assert (changed.learners, lost.next) == ((gone,), [])
            assert changed.changed

    Rig().run(scenario)


@pytest.mark.parametrize("answer", [NotLeaderError, UnreachableError])
def test_a_replacement_goes_on_after_its_first_half(monkeypatch: pytest.MonkeyPatch, answer: type[DledgerError]) -> None:
    """The leader fails between the removal of the lost member and the addition of the new one; its successor carries out the rest."""
    watched, halves = LeaderCalls._watched, 0

    async def half(calls: LeaderCalls, leader: ReplicaGroup, method: Any, request: Any, left_s: float) -> bytes:
        nonlocal halves
        if method is methods.CHANGE_MEMBER and request.action == "replace" and not halves:
            halves = 1
            await watched(calls, leader, method, admin_pb2.MemberRequest(action="remove", id=request.replaces), left_s)
            raise answer("the leader failed")
        return await watched(calls, leader, method, request, left_s)

    async def scenario(rig: Rig) -> None:
        gone, other = rig.followers
        rig.cluster.kill(gone)
        async with rig.admin() as admin:
            monkeypatch.setattr(LeaderCalls, "_watched", half)
            changed = await admin.replace_member(NEW, NEW_ADDRESS, replaces=gone)
            assert (set(changed.voters), changed.learners, halves) == ({rig.master, other}, (NEW,), 1)
            with pytest.raises(InvalidArgumentError) as refused:
                await admin.replace_member("n8", "10.0.0.98:10911", replaces=gone)
            assert refused.value.message.endswith("; if it was removed already: dledger member add --id n8")

    Rig().run(scenario)


def test_members_that_are_as_asked_are_left_alone() -> None:
    """A call that is repeated is no error; a wrong id or address is."""

    async def scenario(rig: Rig) -> None:
        voter, other = rig.followers
        async with rig.admin() as admin:
            assert not (await admin.promote_member(voter)).changed
            assert not (await admin.promote_member(rig.master)).changed
            assert not (await admin.add_member(voter, rig.cluster.hosts[voter].address)).changed
            assert not (await admin.remove_member(NEW)).changed
            made, again = [await admin.add_member(NEW, NEW_ADDRESS) for _ in range(2)]
            assert (made.changed, again.changed, again.learners) == (True, False, (NEW,))
            for node in (voter, NEW):
                with pytest.raises(InvalidArgumentError, match=f"{node} is already a member at "):
                    await admin.add_member(node, "10.0.0.98:10911")
            with pytest.raises(InvalidArgumentError, match="n8 is not a learner; the learners are n9"):
                await admin.promote_member("n8")
            members = await admin.remove_member(NEW)
            assert (members.changed, set(members.voters), members.learners) == (True, {rig.master, voter, other}, ())

    Rig().run(scenario)


def test_a_replacement_repeated_after_it_was_made_changes_nothing() -> None:
    """Who does not know whether the command went through repeats it."""

    async def scenario(rig: Rig) -> None:
        gone, other = rig.followers
        rig.cluster.kill(gone)
        async with rig.admin() as admin:
            made = await admin.replace_member(NEW, NEW_ADDRESS, replaces=gone)
            again = await admin.replace_member(NEW, NEW_ADDRESS, replaces=gone)
            assert (made.changed, again.changed) == (True, False)
            assert (set(again.voters), again.learners) == ({rig.master, other}, (NEW,))
            with pytest.raises(InvalidArgumentError, match=f"{NEW} is already a member"):
                await admin.replace_member(NEW, NEW_ADDRESS, replaces=other)

    Rig().run(scenario)
