"""Sessions of consumer groups' members, spoken to by hand: what the master tells, whom it lets in, when it frees what."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.groups.lock_manager import LockManager
from broker.groups.session_table import Session
from broker.groups.term_sessions import SESSION_MS
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import BusyError, DledgerError, InvalidArgumentError, InvalidNameError, NotLeaderError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream
from store.commands.queue_locks import LockQueues
from store.state.consumer_offsets import ConsumerOffsets
from store.state.queue_locks import QueueLocks
from store.state.state_machine import CommandContext, ReplicatedState
from tests.unit.broker.test_schedule import lower_the_limit
from tests.unit.client.sim_rig import Rig, until

ATTEND = methods.JOIN_GROUP.path
DESCRIBE = methods.DESCRIBE_MEMBERS.path


class Attending:
    """One stream of a session; ``heard`` collects what the master says."""

    def __init__(self, rig: Rig, client_id: str, session_id: str = "", **more: Any) -> None:
        address = rig.cluster.hosts[rig.master].address
        self.stream: ByteStream = rig.router().channel(address).open(ATTEND)
        self.heard: list[sessions_pb2.MasterMessage] = []
        self.error: DledgerError | None = None
        self.ended = False
        values: dict[str, Any] = {
            "group": "g",
            "client_id": client_id,
            "session_id": session_id or f"s-{client_id}",
            "orderly": True,
        } | more
        self._join = sessions_pb2.SessionJoin(**values)

    async def join(self) -> None:
        await self.say(join=self._join)
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def say(self, **body: Any) -> None:
        await self.stream.write(sessions_pb2.MemberMessage(**body).SerializeToString())

    async def _read(self) -> None:
        try:
            while (message := await self.stream.read()) is not None:
                self.heard.append(sessions_pb2.MasterMessage.FromString(message))
        except DledgerError as error:
            self.error = error
        self.ended = True

    def of(self, kind: str) -> list[Any]:
        return [getattr(message, kind) for message in self.heard if message.WhichOneof("body") == kind]

    @property
    def members(self) -> list[str]:
        told = self.of("members")
        return [member.client_id for member in told[-1].members] if told else []


def lock_of(rig: Rig, queue_id: int = 0) -> str:
    """The session that holds a queue, at the master."""
    node = rig.cluster.hosts[rig.master].node
    assert node is not None
    lock = node.store.queue_locks.get("g", "t", queue_id)
    return lock.owner if lock is not None else ""


PLACE = sessions_pb2.QueuePlace(topic="t", queue_id=0)


def test_members_hear_of_each_other_and_of_silence() -> None:
    async def scenario(rig: Rig) -> None:
        first, second = Attending(rig, "a"), Attending(rig, "b")
        await first.join()
        await second.join()
        await until(lambda: first.members == second.members == ["a", "b"])
        await second.say(queues=sessions_pb2.SessionQueues(queues=[PLACE]))
        await until(lambda: len(first.of("members")[-1].members[1].queues) == 1)
        received_s = rig.cluster.loop.now_s
        while not second.ended:  # it says nothing any more
            await first.say(heartbeat=sessions_pb2.SessionHeartbeat(number=1))
            await asyncio.sleep(0.05)
        assert SESSION_MS / 1000 - 0.1 <= rig.cluster.loop.now_s - received_s < SESSION_MS / 1000 + 0.3
        assert second.error is not None
        await until(lambda: first.members == ["a"])

    Rig().run(scenario)


def test_a_large_group_that_starts_is_not_told_of_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list goes to every member: one for each change would be more than a master can send."""
    monkeypatch.setattr("broker.groups.term_sessions.LIST_BYTES_PER_S", 50_000)
    count = 20

    async def scenario(rig: Rig) -> None:
        everybody = [Attending(rig, f"c{number:02}") for number in range(count)]
        for each in everybody:
            await each.join()
            await until(lambda each=each: bool(each.of("welcome")))
            await asyncio.sleep(0.01)
        await until(lambda: all(len(each.members) == count for each in everybody))
        first = everybody[0].of("members")
        assert 1 < len(first) < count - 3
        await everybody[-1].say(leave=sessions_pb2.SessionLeave())
        await until(lambda: len(everybody[0].members) == count - 1)

    Rig().run(scenario)


def test_locks_are_granted_waited_for_and_freed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        first, second = Attending(rig, "a"), Attending(rig, "b")
        await first.join()
        await second.join()
        await first.say(wish=sessions_pb2.LockWish(queues=[PLACE]))
        await until(lambda: lock_of(rig) == "s-a")
        await second.say(wish=sessions_pb2.LockWish(queues=[PLACE]))
        await asyncio.sleep(0.3)
        assert lock_of(rig) == "s-a"
        (held,) = first.of("granted")[0].locks
        wrong, right = (sessions_pb2.QueuePlace(topic="t", queue_id=0, epoch=epoch) for epoch in (held.epoch - 1, held.epoch))
        await first.say(release=sessions_pb2.LockRelease(queues=[wrong]))
        await asyncio.sleep(0.2)
        assert lock_of(rig) == "s-a"
        await first.say(release=sessions_pb2.LockRelease(queues=[right]))
        await until(lambda: lock_of(rig) == "s-b")
        assert second.of("granted")[0].locks[0].epoch > held.epoch
        left_s = rig.cluster.loop.now_s
        await second.say(leave=sessions_pb2.SessionLeave())
        await until(lambda: second.ended)
        assert lock_of(rig) == ""
        assert rig.cluster.loop.now_s - left_s < 0.2

    Rig().run(scenario)


def test_a_session_goes_on_over_another_stream_and_the_old_one_counts_no_more() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        old = Attending(rig, "a")
        await old.join()
        await old.say(wish=sessions_pb2.LockWish(queues=[PLACE]))
        await until(lambda: lock_of(rig) == "s-a")
        new = Attending(rig, "a")
        await new.join()
        await until(lambda: bool(new.of("welcome")))
        (held,) = new.of("welcome")[0].locks
        late = sessions_pb2.QueuePlace(topic="t", queue_id=0, epoch=held.epoch)
        with contextlib.suppress(DledgerError):  # it is told that the stream has ended
            await old.say(release=sessions_pb2.LockRelease(queues=[late]))
        await until(lambda: old.ended)
        await asyncio.sleep(0.3)
        assert lock_of(rig) == "s-a"

    Rig().run(scenario)


def test_who_is_not_let_in() -> None:
    async def scenario(rig: Rig) -> None:
        await Attending(rig, "a").join()
        await asyncio.sleep(0.1)
        for wrong, error in (
            (Attending(rig, "a", "another"), BusyError),
            (Attending(rig, ""), InvalidArgumentError),
            (Attending(rig, "c" * 256), InvalidArgumentError),
        ):
            await wrong.join()
            await until(lambda wrong=wrong: wrong.ended)
            assert isinstance(wrong.error, error)
        mute = Attending(rig, "b")
        await mute.say(heartbeat=sessions_pb2.SessionHeartbeat(number=1))
        with pytest.raises(InvalidArgumentError, match="begins with a join"):
            await mute.stream.read()
        follower = rig.router().channel(rig.cluster.hosts[rig.followers[0]].address)
        with pytest.raises(NotLeaderError):
            await follower.call(DESCRIBE, b"", timeout_s=1)

    Rig().run(scenario)


def test_what_is_on_its_way_to_be_freed_is_not_told_as_held() -> None:
    async def scenario() -> None:
        locks = QueueLocks(lambda _topic, _queue: True)
        rows = (("t", 0), ("t", 1))
        ReplicatedState([locks]).apply(LockQueues(group="g", owner="s", client="a", queues=rows), CommandContext(1, 1, 77, 0))
        store = SimpleNamespace(queue_locks=locks, consumer_offsets=ConsumerOffsets(lambda _topic: 1))
        keeper = LockManager(SimpleNamespace(store=store), lambda _session, _locks: None)  # type: ignore[arg-type]
        session = Session("g", "a", "s", 0)
        assert [lock.queue_id for lock in keeper.held(session)] == [0, 1]
        keeper.release(session, [("t", 0, 77)])
        assert [lock.queue_id for lock in keeper.held(session)] == [1]
        keeper.free(session)
        assert keeper.held(session) == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "wrong",
    [
        {"release": sessions_pb2.LockRelease(queues=[PLACE] * 10_001)},
        {"wish": sessions_pb2.LockWish(queues=[sessions_pb2.QueuePlace(topic="t", queue_id=number) for number in range(10_001)])},
        {"wish": sessions_pb2.LockWish(queues=[sessions_pb2.QueuePlace(topic="not a topic")])},
    ],
    ids=["too many to release", "too many wishes", "no topic"],
)
def test_what_can_never_be_done_is_refused_and_holds_nobody_up(wrong: dict[str, Any]) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        bad, good = Attending(rig, "bad"), Attending(rig, "good")
        await bad.join()
        await good.join()
        if "release" in wrong:
            for place in wrong["release"].queues:
                place.epoch = 5
        await bad.say(**wrong)
        await until(lambda: bad.ended)
        assert isinstance(bad.error, InvalidArgumentError | InvalidNameError)
        await good.say(wish=sessions_pb2.LockWish(queues=[PLACE]))
        await asyncio.sleep(0.5)
        assert lock_of(rig) == "s-good"

    Rig().run(scenario)


def test_more_locks_than_one_message_may_have_are_granted_and_released() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1024)
        await lower_the_limit(rig, 2048)
        node = rig.cluster.hosts[rig.master].node
        assert node is not None
        await until(lambda: bool(node.roles.services_term))
        member = Attending(rig, "a")
        await member.join()
        places = [sessions_pb2.QueuePlace(topic="t", queue_id=number) for number in range(1024)]
        await member.say(wish=sessions_pb2.LockWish(queues=places))

        def granted() -> list[sessions_pb2.HeldLock]:
            return [lock for each in member.of("granted") for lock in each.locks]

        async def heard(condition: Callable[[], bool]) -> None:
            while not condition():
                await member.say(heartbeat=sessions_pb2.SessionHeartbeat(number=1))
                await asyncio.sleep(0.1)

        await asyncio.wait_for(heard(lambda: len(granted()) == 1024), 30)
        held = [sessions_pb2.QueuePlace(topic="t", queue_id=lock.queue_id, epoch=lock.epoch) for lock in granted()]
        await member.say(release=sessions_pb2.LockRelease(queues=held[1:]))
        await asyncio.wait_for(heard(lambda: not any(lock_of(rig, number) for number in range(1, 1024))), 30)
        assert lock_of(rig) == "s-a"

    Rig().run(scenario)


def test_only_who_is_orderly_has_locks() -> None:
    async def scenario(rig: Rig) -> None:
        for wrong in (
            {"release": sessions_pb2.LockRelease(queues=[PLACE])},
            {"wish": sessions_pb2.LockWish(queues=[PLACE])},
        ):
            member = Attending(rig, "a", orderly=False)
            await member.join()
            await member.say(**wrong)
            await until(lambda member=member: member.ended)
            assert isinstance(member.error, InvalidArgumentError)

    Rig().run(scenario)


def test_releases_that_are_repeated_or_of_others_locks_wait_for_nothing() -> None:
    async def scenario() -> None:
        locks = QueueLocks(lambda _topic, _queue: True)
        ReplicatedState([locks]).apply(LockQueues(group="g", owner="s", client="a", queues=(("t", 0),)), CommandContext(1, 1, 77, 0))
        keeper = LockManager(SimpleNamespace(store=SimpleNamespace(queue_locks=locks)), lambda _session, _locks: None)  # type: ignore[arg-type]
        for session_id, epoch in (("s", 78), ("other", 77), ("s", 77), ("s", 77)):
            keeper.release(Session("g", "a", session_id, 0), [("t", 0, epoch)] * 3)
        assert [(release.owner, release.queues) for release in keeper._releases] == [("s", (("t", 0, 77),))]

    asyncio.run(scenario())
