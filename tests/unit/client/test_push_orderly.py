"""Orderly push consumers against real nodes in virtual time: locks with epochs, takeovers, refusals, retries in place."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import Action
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import StaleLockError
from dledger_wire.rpc import methods
from tests.unit.client.push_rig import Group, send
from tests.unit.client.sim_rig import Rig, until

COMMIT = methods.COMMIT_OFFSETS


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def assert_in_order(group: Group, count: int) -> None:
    """Every queue was consumed whole, in order but for repeats, and epochs never went back."""
    queues: dict[int, list[tuple[int, int]]] = {}
    for each in group.seen:
        queues.setdefault(each.queue_id, []).append((each.epoch, int(each.body)))
    assert sorted({number for rows in queues.values() for _, number in rows}) == list(range(count))
    for rows in queues.values():
        assert [epoch for epoch, _ in rows] == sorted(epoch for epoch, _ in rows)
        for epoch in {epoch for epoch, _ in rows}:
            owned = [number for each, number in rows if each == epoch]
            assert owned == sorted(set(owned))


def test_one_owner_a_queue_in_order_and_a_clean_stop_frees_at_once() -> None:
    """docs/reference/semantics, row K1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        group = Group(rig, orderly=True)
        group.pause_s = 0.005
        await send(rig, 400, 4)
        await group.start("a")
        await until(lambda: len(group.seen) > 40)
        await group.start("b")
        await until(lambda: group.shares == {"a": [0, 1], "b": [2, 3]})
        stopped_s = rig.cluster.loop.now_s
        await group.stop("a")
        await until(lambda: group.share("b") == [0, 1, 2, 3])
        assert rig.cluster.loop.now_s - stopped_s < 0.5
        await until(lambda: len(group.seen) >= 400)
        await group.stop()
        assert group.bodies() != numbers(400)
        assert len(group.seen) == 400
        assert_in_order(group, 400)

    Rig().run(scenario)


@pytest.mark.parametrize("silent", [False, True])
def test_a_killed_owner_is_followed_in_less_than_two_seconds(silent: bool) -> None:
    """docs/reference/semantics, row K2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig, orderly=True)
        await group.start("a", "b")
        await until(lambda: group.shares == {"a": [0], "b": [1]})
        await send(rig, 20, 2)
        await until(lambda: len(group.seen) == 20)
        killed_s = rig.cluster.loop.now_s
        group.kill("a", silent=silent)
        await send(rig, 20, 2, first=20)
        await until(lambda: set(group.bodies()) == set(numbers(40)))
        assert 1.0 < rig.cluster.loop.now_s - killed_s < 2.0
        await group.stop()
        assert_in_order(group, 40)

    Rig().run(scenario)


def test_locks_survive_a_failover_with_their_epochs() -> None:
    """docs/reference/semantics, row K3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig, orderly=True)
        await group.start("a", "b")
        await until(lambda: group.shares == {"a": [0], "b": [1]})
        await send(rig, 20, 2)
        rig.cluster.kill(rig.master)
        await send(rig, 20, 2, first=20)
        await until(lambda: len(group.seen) >= 40)
        await asyncio.sleep(3)
        assert group.shares == {"a": [0], "b": [1]}
        assert len({each.epoch for each in group.seen}) == 2
        assert group.bodies() != []
        assert_in_order(group, 40)
        await group.stop()

    Rig().run(scenario)


def test_an_owner_that_died_with_the_master_is_followed_too() -> None:
    """docs/reference/semantics, row K2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig, orderly=True)
        await group.start("a", "b")
        await until(lambda: group.shares == {"a": [0], "b": [1]})
        group.kill("a", silent=True)
        rig.cluster.kill(rig.master)
        await until(lambda: group.share("b") == [0, 1])
        await send(rig, 20, 2)
        await until(lambda: len(group.seen) == 20)
        await group.stop()

    Rig().run(scenario)


def test_a_paused_owner_does_nothing_more_when_it_wakes() -> None:
    """docs/reference/semantics, row K4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        group = Group(rig, orderly=True)
        group.pause_s = 0.01
        await send(rig, 1000)
        await group.start("a", "b")
        await until(lambda: len(group.seen) > 30)
        owner = group.seen[0].member
        other = "b" if owner == "a" else "a"
        rig.cluster.loop.pause(group.members[owner].process)
        paused_s = rig.cluster.loop.now_s
        await until(lambda: bool(group.members[other].seen))
        assert rig.cluster.loop.now_s - paused_s < 2.0
        await asyncio.sleep(1)
        rig.cluster.loop.resume(group.members[owner].process)
        await until(lambda: set(group.bodies()) == set(numbers(1000)))
        await group.stop()
        assert_in_order(group, 1000)

    Rig().run(scenario)


def test_commits_and_fetches_of_an_older_epoch_are_refused() -> None:
    """docs/reference/semantics, row K4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, orderly=True)
        await send(rig, 10)
        await group.start("a")
        await until(lambda: len(group.seen) == 10)
        epoch = group.seen[0].epoch
        await group.stop()
        await group.start("b")
        await until(lambda: group.share("b") == [0])
        async with rig.consumer("g") as outsider:
            with pytest.raises(StaleLockError, match="commit in epoch none, the current one is"):
                await outsider.commit({("t", 0): 5})
            replicas, router = outsider._fetcher, outsider._router
            fetch = broker_pb2.FetchRequest(topic="t", group="g", max_bytes=1000, lock_epoch=epoch)
            with pytest.raises(StaleLockError, match=f"fetch in epoch {epoch}"):
                await replicas.read("g0", fetch, router.clock.monotonic_ms() + 5000)
            request = broker_pb2.CommitOffsetsRequest(group="g")
            request.offsets.add(topic="t", offset=3, lock_epoch=epoch)
            answer = await router.call_leader("g0", COMMIT, request, deadline_ms=router.clock.monotonic_ms() + 5000)
            (refused,) = answer.refused
            assert refused.error.code == StaleLockError.code
        await group.stop()

    Rig().run(scenario)


def test_an_orderly_listener_tries_again_in_place() -> None:
    """docs/reference/semantics, row K5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, orderly=True, suspend_current_queue_time_ms=200)
        group.answers = [Action.COMMIT, Action.SUSPEND, None, Action.COMMIT]
        await send(rig, 4)
        await group.start("a")
        await until(lambda: len(group.seen) == 6)
        assert group.bodies() == [b"0", b"1", b"1", b"1", b"2", b"3"]
        gaps = [later.at_s - sooner.at_s for sooner, later in zip(group.seen[1:3], group.seen[2:4], strict=True)]
        assert all(0.2 <= gap < 0.3 for gap in gaps)
        await group.stop()

    Rig().run(scenario)


def test_a_message_that_blocks_an_orderly_queue_is_skipped_by_a_reset() -> None:
    """docs/reference/semantics, rows G4 and K5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, orderly=True, suspend_current_queue_time_ms=50)
        group.answers = [Action.COMMIT, *[Action.SUSPEND] * 1000]
        await send(rig, 4)
        await group.start("a")
        await until(lambda: len(group.seen) > 3)
        async with rig.admin() as admin:
            await admin.reset_offsets("g", "t", {0: 2})
        await until(lambda: b"2" in group.bodies())
        group.answers = []
        await until(lambda: b"3" in group.bodies())
        assert sorted(group.bodies()) == group.bodies(), "what was skipped does not come again"
        await group.stop()

    Rig().run(scenario)


def test_a_listener_that_hangs_is_seen_by_operators_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Its queue waits for it, whatever is done to the positions of the group."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, orderly=True)
        group.pause_s = 130.0
        await send(rig, 1)
        await group.start("a")
        async with rig.admin() as admin:

            async def runs_ms() -> int:
                (member,) = (await admin.describe_group("g")).members
                return member.oldest_call_ms

            await until(lambda: len(group.seen) == 1)
            await asyncio.sleep(60)
            assert 55_000 <= await runs_ms() <= 61_000
            await asyncio.sleep(80)
            assert await runs_ms() == 0
        await group.stop()

    with caplog.at_level("WARNING", "dledger_client.consumer.listener"):
        Rig().run(scenario)
    told = [record.getMessage() for record in caplog.records if "listener call" in record.getMessage()]
    runs = "consumer group g: a listener call of t queue 0 at g0 runs for"
    assert [each.partition(";")[0] for each in told] == [f"{runs} 60 s", f"{runs} 120 s"]


def test_an_orderly_message_with_its_attempts_used_up_goes_to_the_dead_letters() -> None:
    """docs/reference/semantics, row K5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, orderly=True, suspend_current_queue_time_ms=50, max_reconsume_times=2)
        group.answers = [Action.SUSPEND] * 3
        await send(rig, 2)
        await group.start("a")
        await until(lambda: len(group.seen) == 4)
        assert group.bodies() == [b"0", b"0", b"0", b"1"]
        async with rig.admin() as admin:
            (letters,) = await admin.dead_letters("g")
            assert letters.max_offset - letters.min_offset == 1
        await group.stop()

    Rig().run(scenario)


def test_an_orderly_group_follows_a_reset() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, orderly=True)
        await send(rig, 50)
        await group.start("a")
        await until(lambda: len(group.seen) == 50)
        async with rig.consumer("g") as operator:
            await operator.commit({("t", 0): 20}, reset=True)
        await until(lambda: len(group.seen) == 80)
        assert group.bodies() == numbers(50) + numbers(30, 20)
        await group.stop()

    Rig().run(scenario)


def test_a_deposed_master_that_wakes_up_renews_no_lease() -> None:
    """docs/reference/semantics, row K4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, orderly=True)
        group.pause_s = 0.01
        await send(rig, 900)
        await group.start("a")
        await until(lambda: len(group.seen) > 20)
        old = rig.master
        for node_id in rig.followers:  # neither of them hears of another master
            for source in (group.members["a"].process.host, rig.cluster.hosts[old].ip):
                rig.cluster.net.cut(source, rig.cluster.hosts[node_id].ip)
                rig.cluster.net.cut(rig.cluster.hosts[node_id].ip, source)
        process = rig.cluster.hosts[old].process
        assert process is not None
        rig.cluster.loop.pause(process)
        await until(lambda: rig.cluster.master() not in (old, None))
        await group.start("b")
        await until(lambda: bool(group.members["b"].seen))
        done = len(group.members["a"].seen)
        rig.cluster.loop.resume(process)  # with heartbeats of a waiting to be read
        await asyncio.sleep(3)
        assert len(group.members["a"].seen) == done < 900
        rig.cluster.net.heal_all()
        await until(lambda: set(group.bodies()) == set(numbers(900)))
        assert_in_order(group, 900)
        await group.stop()

    Rig().run(scenario)


def test_a_shutdown_that_gives_up_waiting_does_not_free_the_lock_under_its_listener() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 10)
        group = Group(rig, orderly=True, await_termination_ms=500)
        await group.start("a")
        await until(lambda: len(group.seen) == 10)
        group.pause_s = 30.0
        await send(rig, 2, first=10)
        await until(lambda: len(group.seen) == 11)
        await group.start("b")
        stopped_s = rig.cluster.loop.now_s
        await group.stop("a")
        group.pause_s = 0.0
        assert rig.cluster.loop.now_s - stopped_s < 3
        await until(lambda: len(group.seen) == 13)
        assert rig.cluster.loop.now_s - stopped_s > 1.3
        assert group.bodies()[10:] == [b"10", b"10", b"11"]
        await group.stop()

    Rig().run(scenario)
