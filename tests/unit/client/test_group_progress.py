"""Whether consumer groups move, and what the checks of consumers find: slow, stuck, stopped and unknown are four different things."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dledger_client.admin.calls import Listed
from dledger_client.admin.consumer_checks import CONSUMER_DEFAULTS, ConsumersStatus, find_consumers
from dledger_client.admin.consumer_groups import ConsumerGroupDescription, QueueLag
from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.group_answers import GroupMember, QueueLeases
from dledger_client.admin.group_progress import GroupProgress
from dledger_client.admin.open_transactions import GroupTransactions
from dledger_client.admin.status_checks import find, parse_checks
from dledger_client.aio import Message
from dledger_client.cluster.followers_first import ReadAt
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, UnreachableError
from store.state.offset_history import OffsetHistory
from tests.unit.broker.test_send_back import send
from tests.unit.client.push_rig import Group
from tests.unit.client.sim_rig import Rig, until

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000
NO_LEADER = NotLeaderError("g0 has no leader")


def group(
    name: str = "audit", *, behind: int = 6, moved_min: int = 20, stored_min: int = 20, joined_min: int | None = 60, queues: int = 2
) -> GroupProgress:
    """One whose queue 0 has messages, and which has not moved for some minutes; ``joined_min`` None: without members."""
    rows = tuple(
        QueueLag("t", "g0", number, 10, 0, 10 + (0 if number else behind), moved_at_ms=NOW_MS - moved_min * MINUTE_MS)
        for number in range(queues)
    )
    members: tuple[GroupMember, ...] = ()
    if joined_min is not None:
        owned = {row.key: 0 for row in rows}
        members = (GroupMember("m<1>", "10.0.0.9:1", "concurrent", "", {"t": "*"}, NOW_MS - joined_min * MINUTE_MS, owned),)
    stored = {("t", "g0", 0): NOW_MS - stored_min * MINUTE_MS} if behind else {}
    return GroupProgress(ConsumerGroupDescription(name, members, rows), NOW_MS, stored)


def leasing(in_flight: int, *, moved_min: int = 20) -> GroupProgress:
    """Its consumers are no members, and acknowledge messages one by one."""
    found = group(joined_min=None, moved_min=moved_min)
    leased = replace(found.group.queues[0], leases=QueueLeases(in_flight, 1, 60_000, 2))
    return replace(found, group=replace(found.group, queues=(leased, *found.group.queues[1:])))


def unanswered(progress: GroupProgress) -> GroupProgress:
    """Its replica group has no leader: a follower has the positions."""
    described = replace(progress.group, members=(), unanswered={"g0": NO_LEADER}, read_at={"g0": ReadAt("n1", leader=False)})
    return replace(progress, group=described)


@pytest.mark.parametrize(
    ("progress", "text", "kind"),
    [
        (group(behind=0), "has read everything", "good"),
        (group(joined_min=None), "no member reads it", "warn"),
        (group(queues=1), "stuck: no progress for 20 min, members connected", "bad"),
        (group(), "stuck in 1 of 2 queues: no progress for 20 min, members connected", "bad"),
        (group(moved_min=1), "is reading", "good"),
        (group(stored_min=1), "is reading", "good"),  # idle until just now
        (group(joined_min=1), "is reading", "good"),  # its consumers were started just now
        (leasing(3), "is reading: 3 in flight", "good"),
        (leasing(0, moved_min=1), "is reading", "good"),
        (leasing(0), "no consumer receives messages", "warn"),
        (unanswered(leasing(3)), "unknown", ""),
        (unanswered(group()), "unknown", ""),
        (unanswered(group(behind=0)), "unknown", ""),
    ],
)
def test_what_a_group_does(progress: GroupProgress, text: str, kind: str) -> None:
    assert (progress.state().text, progress.state().kind) == (text, kind)


def test_what_is_not_known_of_a_group_without_a_leader_is_not_said() -> None:
    progress = unanswered(group())
    assert (progress.members, progress.unread, progress.standing(0), progress.lag) == (None, [], [], 6)
    assert (group(joined_min=None).members, len(group(joined_min=None).unread)) == (0, 1)
    nothing = replace(progress, group=ConsumerGroupDescription("audit", (), (), {"g0": NO_LEADER}))
    assert nothing.lag is None


def found(checks: str, *groups: GroupProgress, **more: object) -> list[str]:
    seen = replace(ConsumersStatus(Listed(groups)), **more)  # type: ignore[arg-type]
    return [str(each) for each in find([], parse_checks(checks), NOW_MS, consumers=seen)]


def test_groups_that_lag_or_are_stuck() -> None:
    slow = group("slow", moved_min=0)
    assert found("group-lag", slow, group("fresh", stored_min=4)) == [
        "group-lag: slow: 6 messages behind, the oldest waits for 20 min (limit 5m)"
    ]
    assert found("group-lag=1h", slow) == []
    assert found("group-lag=5", slow) == ["group-lag: slow: 6 messages behind, the oldest waits for 20 min (limit 5)"]
    assert found("group-lag=6", slow) == []
    assert found("group-stuck", slow, group("dead", joined_min=None)) == []
    state = "stuck in 1 of 2 queues: no progress for 20 min, members connected"
    assert found("group-stuck=15m", group("jam")) == [f"group-stuck: jam: {state} (limit 15m); m<1> stands in t g0/0 at offset 10"]
    assert found("group-stuck=21m", group("jam")) == []


def test_what_waits_for_somebody() -> None:
    letters = Listed([DeadLetters("packing", name, "%DLQ%packing", 2, 0, 9, 4) for name in ("g0", "g1")])
    transactions = Listed([GroupTransactions("g0", 3, 6, [], {}), GroupTransactions("g1", 1, 0, [], {})])
    more = {"dead_letters": letters, "transactions": transactions}
    assert found("dead-letters,transactions", **more) == [
        "dead-letters: packing: 10 dead letters wait (limit 0): dledger dlq list packing",
        "transactions: g0: 6 transactions were put aside, no producer knew their outcome (limit 0)",
    ]
    assert found("dead-letters=10,transactions=6", **more) == []


def test_what_cannot_be_told_is_found() -> None:
    checks = ",".join(CONSUMER_DEFAULTS)
    behind = unanswered(group())
    listed = Listed([behind], behind.group.unanswered, behind.group.read_at)
    assert found(checks, groups=listed) == [  # a follower has the positions
        "unanswered: g0: g0 has no leader; not checked: group-stuck",
        "group-lag: audit: 6 messages behind, the oldest waits for 20 min (limit 5m)",
    ]
    gone = UnreachableError("no node answers")
    assert found(checks, problems=dict.fromkeys(CONSUMER_DEFAULTS, gone)) == [
        f"unanswered: no node answers; not checked: {', '.join(CONSUMER_DEFAULTS)}"
    ]
    assert found("no-leader", problems=dict.fromkeys(CONSUMER_DEFAULTS, gone)) == []
    assert find_consumers(ConsumersStatus(), parse_checks("all")) == []


@pytest.mark.parametrize("text", ["group-lag=x", "group-lag=5y", "group-stuck=5", "dead-letters=5m", "transactions=-1", "group-stuck=1.5m"])
def test_limits_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"check {text}: expected a "):
        parse_checks(text)


def test_a_listener_that_hangs_is_stuck_and_one_that_works_is_not() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=2)
        consumers = Group(rig, name="hung")
        await consumers.start("m")
        async with rig.producer() as producer, rig.admin(read_from="follower") as admin:
            await producer.send(Message("t", b"fine"), queue_id=0)
            await until_passed(rig, "hung", 0)
            consumers.pause_s = 1_000_000.0
            await producer.send(Message("t", b"poison"), queue_id=1)
            await until(lambda: b"poison" in consumers.bodies())
            consumers.pause_s = 0.0
            await asyncio.sleep(8)
            await producer.send(Message("t", b"fine"), queue_id=0)
            await asyncio.sleep(6)
            (progress,) = await admin.group_progress(await admin.describe_groups())
            (standing,) = progress.standing(10_000)
            assert (standing.queue.queue_id, standing.offset, standing.member.client_id) == (1, 0, "m")
            assert 13_000 <= standing.for_ms <= 20_000
            assert progress.state(10_000).text.startswith("stuck in 1 of 2 queues: no progress for 1")
            seen = await admin.consumers_status()
            assert [each.check for each in find([], parse_checks("group-lag=10s,group-stuck=10s"), 0, consumers=seen)] == [
                "group-lag",
                "group-stuck",
            ]
            await admin.reset_offsets("hung", "t", {1: 1})  # skipped: nothing is left to be read
            await asyncio.sleep(5)
            (progress,) = await admin.group_progress(await admin.describe_groups())
            assert progress.state().text == "has read everything"
        consumers.kill("m")

    Rig().run(scenario)


async def until_passed(rig: Rig, name: str, queue: int) -> None:
    def passed() -> bool:
        node = rig.cluster.hosts[rig.master].node
        return node is not None and node.store.consumer_offsets.position(name, "t", queue) == 1

    await until(passed)


def test_a_group_that_was_taken_back_is_not_stuck_since_it_was_there_before() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        await send(rig, 10)
        async with rig.consumer("audit") as consumer, rig.admin() as admin:
            await consumer.commit({("t", 0): 5})
            await asyncio.sleep(20)
            before = (await admin.describe_group("audit")).queues[0].moved_at_ms
            await admin.reset_offsets("audit", "t", "first")
            (row,) = (await admin.describe_group("audit")).queues
            assert row.moved_at_ms - before >= 20_000
            await admin.reset_offsets("audit", "t", "last")
            assert (await admin.describe_group("audit")).queues[0].moved_at_ms >= row.moved_at_ms

    Rig().run(scenario)


def test_times_of_many_messages_come_with_one_call_and_without_what_is_gone() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        await rig.topic("closed", perm=2)
        await send(rig, 3)
        async with rig.admin() as admin, rig.consumer() as consumer:
            messages = await consumer.fetch("t", 0, 0)
            places = [("t", "g0", 0, offset) for offset in range(4)] + [("nowhere", "g0", 0, 0), ("closed", "g0", 0, 0)]
            times = await admin.stored_times(places)
            assert times == {("t", "g0", 0, message.queue_offset): message.store_timestamp for message in messages}

    Rig().run(scenario)


def test_the_time_of_a_position_is_that_of_its_last_change() -> None:
    times = OffsetHistory()
    assert times.moved_at_ms("g", "t", 0) == 0
    for offset, at_ms in ((5, 100), (9, 200), (9, 300)):
        times.committed("g", "t", 0, offset, at_ms)
    assert times.moved_at_ms("g", "t", 0) == 200
