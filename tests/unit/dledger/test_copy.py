"""Head truncation and catch-up by copy on whole nodes (rows S1, S10, S11, S14, S16, S20)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from dledger.core.events import Tick
from dledger.core.types import EntryId, NodeId
from dledger.log.config import LogConfig
from dledger.node import RaftNode
from dledger.snapshot.plan import SnapshotPlan
from dledger_wire._pb import copy_pb2
from dledger_wire.errors import InvalidArgumentError, NotReadyError, OutcomeUnknownError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import Channel
from tests.byte_streams import TaskwiseStream
from tests.unit.dledger.raft_rig import Cluster, MemoryDisk, Text, run
from tests.unit.dledger.test_replace_member import change

SMALL = LogConfig(segment_bytes=4096, cache_bytes=4096, fill_window_bytes=0, piece_bytes=1024)
BODY_BYTES = 300
KEPT = 50  # entries


async def write(node: RaftNode, first: int, upto: int) -> None:
    for number in range(first, upto):
        await node.propose(Text(f"{number}:", BODY_BYTES))


def numbers(cluster: Cluster, name: NodeId) -> list[int]:
    return [int(body.split(b":")[0]) for body in cluster.machines[name].bodies]


async def truncate_everywhere(cluster: Cluster) -> int:
    """Save the state and delete what may go, on every node that runs; the highest first entry."""
    firsts = []
    for name, node in cluster.nodes.items():
        await cluster.machines[name].save()
        firsts.append(await node.truncate_head(node.commit_index - KEPT))
    return max(firsts)


async def lagging(cluster: Cluster) -> tuple[RaftNode, NodeId]:
    """A leader whose log no longer has what a node that is down needs."""
    await cluster.start()
    leader = await cluster.leader()
    await write(leader, 0, 5)
    victim = cluster.followers(leader)[0].identity.node_id
    await cluster.until(lambda: numbers(cluster, victim) == list(range(5)))
    await cluster.kill(victim)
    await write(leader, 5, 80)
    others = [node for node in cluster.nodes.values() if node is not leader]
    await cluster.until(lambda: all(node.log.last == leader.log.last and node.commit_index == leader.commit_index for node in others))
    await asyncio.sleep(0.5)
    assert await truncate_everywhere(cluster) > 15
    return leader, victim


async def assert_same_files(cluster: Cluster, name: NodeId, leader: RaftNode) -> None:
    """Replicas are the same bytes, from the higher of both starts on."""
    node, disks = cluster.nodes[name], cluster.disks
    await cluster.until(lambda: node.log.durable == leader.log.durable == node.log.last == leader.log.last)
    common = [s for s in node.log.segments if s.start_pos >= leader.log.first_pos and s in leader.log.segments]
    assert common
    for segment in common:
        path = f"commitlog/{segment.start_pos:020d}"
        contents = [bytes(disks[one].files[path]).rstrip(b"\0") for one in (name, leader.identity.node_id)]
        assert contents[0] == contents[1], path


def test_S20_a_follower_that_needs_deleted_entries_gets_a_copy_and_follows() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        node = await cluster.start_one(victim)
        cluster.disks[victim].files["old-state.json"] = bytearray(b"x")
        writing = asyncio.get_running_loop().create_task(write(leader, 80, 100))
        await cluster.until(lambda: numbers(cluster, victim)[:80] == list(range(80)), "the copy and what follows it")
        await writing
        await cluster.until(lambda: numbers(cluster, victim) == list(range(100)))
        assert node.log.first_index > 15
        assert "old-state.json" not in cluster.disks[victim].files
        assert not [path for path in cluster.disks[victim].files if path.startswith("copy/")]
        assert cluster.machines[victim].suspended == 1
        await assert_same_files(cluster, victim, leader)
        # From disk it is the same again.
        await cluster.kill(victim)
        await cluster.start_one(victim)
        await write(leader, 100, 103)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(103)))
        await cluster.stop()

    run(scenario())


def test_S20_the_follower_asks_another_follower_first_and_the_leader_when_that_is_down() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        other = next(name for name in cluster.nodes if name != leader.identity.node_id)
        asked = watch_plans(cluster)
        await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        assert asked == [other]
        await cluster.stop()
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        asked = watch_plans(cluster)
        await cluster.kill(next(name for name in cluster.nodes if name != leader.identity.node_id))
        await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        assert asked == [leader.identity.node_id]
        await cluster.stop()

    run(scenario())


def watch_plans(cluster: Cluster) -> list[NodeId]:
    asked: list[NodeId] = []
    for name, node in cluster.nodes.items():
        capture = node._replica.source._capture

        async def watched(name: NodeId = name, capture: Callable[[], Any] = capture) -> Any:
            asked.append(name)
            return await capture()

        node._replica.source._capture = watched
    return asked


def test_an_empty_node_joins_as_a_learner_by_copy_and_is_promoted() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        others = [name for name in cluster.names if name != victim]
        await change(leader, cluster, others, [])
        cluster.disks[victim] = MemoryDisk()
        node = await cluster.start_one(victim, store_id="new folder")
        await change(leader, cluster, others, [victim])
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        assert node.membership.learners == (victim,)
        await change(leader, cluster, [*others, victim], [])
        await cluster.kill(next(name for name in others if name != leader.identity.node_id))
        await write(leader, 80, 85)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(85)))
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("writes", range(0, 64, 3))
def test_a_crash_at_any_step_of_a_copy_leaves_the_old_state_or_the_new_one(writes: int) -> None:
    """The disk dies after so many operations that change names or sync; the restart finishes or begins again."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        disk = cluster.disks[victim]
        await cluster.start_one(victim)
        count = 0
        died = asyncio.Event()

        def counted(name: str) -> None:
            method = getattr(disk, name)

            async def operation(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count > writes:
                    died.set()
                    await asyncio.sleep(3600)
                return await method(*arguments, **options)

            setattr(disk, name, operation)

        for name in ("rename", "remove", "write_atomic"):
            counted(name)
        await asyncio.wait([asyncio.ensure_future(died.wait())], timeout=5)
        await cluster.kill(victim)
        await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        await write(leader, 80, 82)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(82)))
        await assert_same_files(cluster, victim, leader)
        await cluster.stop()

    run(scenario())


def tampered(cluster: Cluster, change_piece: Callable[[int, bytes], bytes]) -> list[int]:
    """Every piece of a log goes through ``change_piece`` on its way; the positions asked for."""
    starts: list[int] = []
    for node in cluster.nodes.values():
        serve = node._replica.source.log

        async def watched(stream: Any, context: Any, serve: Callable[..., Any] = serve) -> None:
            written = 0
            write_through, read_through = stream.write, stream.read

            class Between(TaskwiseStream):
                async def read(self) -> bytes | None:
                    data: bytes | None = await read_through()
                    if data is not None:
                        starts.append(copy_pb2.CopyLogRequest.FromString(data).from_pos)
                    return data

                async def write(self, piece: bytes) -> None:
                    nonlocal written
                    written += 1
                    await write_through(change_piece(written, piece))

            await serve(Between(), context)

        _name, handlers = cluster.net.servers[node.identity.address]
        handlers[methods.COPY_LOG.path] = watched
    return starts


def flip(piece: bytes) -> bytes:
    at = len(piece) - 100
    return piece[:at] + bytes([piece[at] ^ 4]) + piece[at + 1 :]


def test_S14_a_piece_with_a_bit_flipped_is_refused_and_the_copy_goes_on_where_it_was() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        _leader, victim = await lagging(cluster)
        flips = [(1, 2), (2, 2), (3, 1)]  # which piece of which attempt

        def change_piece(number: int, piece: bytes) -> bytes:
            return flip(piece) if (len(starts), number) in flips else piece

        starts = tampered(cluster, change_piece)
        await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        assert len(starts) == 4
        assert starts[0] < starts[1] < starts[2] == starts[3]
        await cluster.stop()

    run(scenario())


def test_S14_an_entry_that_is_damaged_at_the_source_is_not_believed() -> None:
    """The piece has a right checksum, the entry in it has not: another source is asked."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        other = next(name for name in cluster.nodes if name != leader.identity.node_id)
        segment = cluster.nodes[other].log.segments[1]
        cluster.disks[other].files[f"commitlog/{segment.start_pos:020d}"][500] ^= 1
        asked = watch_plans(cluster)
        await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        assert asked == [other, leader.identity.node_id]
        await assert_same_files(cluster, victim, leader)
        await cluster.stop()

    run(scenario())


def test_a_copy_that_went_on_from_a_source_with_a_later_start_does_not_count_what_it_gave_up() -> None:
    """The plan of the first source begins earlier; between two attempts with it comes one with another plan, which fails too."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        other = next(node for node in cluster.nodes.values() if node is not leader)
        await other.truncate_head(other.log.segments[2].first_index)
        first_pos = {leader.log.first_pos, other.log.first_pos}
        assert len(first_pos) == 2
        fails = {1: 1, 2: 4, 3: 1}  # attempt -> the piece that is damaged

        def change_piece(number: int, piece: bytes) -> bytes:
            return flip(piece) if fails.get(len(starts)) == number else piece

        starts = tampered(cluster, change_piece)
        await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        await assert_same_files(cluster, victim, leader)
        await write(leader, 80, 83)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(83)))
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"cluster": "other", "group": "g", "node_id": "n1"}, "expected c/g, got other/g"),
        ({"cluster": "c", "group": "other", "node_id": "n1"}, "expected c/g, got c/other"),
        ({"cluster": "c", "group": "g", "node_id": "n9"}, "knows no member 'n9'"),
    ],
)
def test_S14_a_foreign_node_gets_no_copy(request_: dict[str, str], text: str) -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        await cluster.start()
        leader = await cluster.leader()
        asked = copy_pb2.CopyPlanRequest(**request_).SerializeToString()
        with pytest.raises(InvalidArgumentError, match=text):
            await leader._replica.source.plan(asked, None)  # type: ignore[arg-type]
        stale = copy_pb2.CopyStateRequest(cluster="c", group="g", copy_id="0123", path="state.json").SerializeToString()
        with pytest.raises(InvalidArgumentError, match="has no snapshot"):
            await leader._replica.source.state(stale, None)  # type: ignore[arg-type]
        await cluster.stop()

    run(scenario())


async def backup_plan(node: RaftNode) -> SnapshotPlan:
    asked = copy_pb2.CopyPlanRequest(cluster="c", group="g", node_id="20260131T021500000Z-5f0c2a91").SerializeToString()
    return SnapshotPlan.decode(await node._replica.source.backup_plan(asked, None))  # type: ignore[arg-type]


def test_a_backup_has_everything_that_was_committed_before_it_whichever_replica_gives_it() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        await cluster.start()
        leader = await cluster.leader()
        behind = 0
        for number in range(10):
            await write(leader, number, number + 1)
            committed = leader.commit_index
            for follower in cluster.followers(leader):
                behind += follower._replica.applier.applied < committed
                assert (await backup_plan(follower)).last.index >= committed
        assert behind, "a follower learns of a commit with the next message only"
        await cluster.stop()

    run(scenario())


def test_a_replica_that_is_cut_off_gives_no_backup() -> None:
    """It counts as complete up to its beginning: a restore as of then would miss what was acknowledged, and not know it."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        await cluster.start()
        leader = await cluster.leader()
        await write(leader, 0, 5)
        lonely = cluster.followers(leader)[0]
        await cluster.until(lambda: lonely._replica.applier.applied == leader.commit_index)
        cluster.net.isolate(lonely.identity.node_id, cluster.names)
        await write(leader, 5, 10)
        for _ in range(2):
            with pytest.raises(NotReadyError, match=r"^it may lack what the group has committed \("):
                await backup_plan(lonely)
            await asyncio.sleep(20)  # of virtual time: it knows no leader any more
        assert (await backup_plan(leader)).last.index >= 10
        cluster.net.heal()
        await cluster.until(lambda: lonely._replica.applier.applied == leader.commit_index)
        assert (await backup_plan(lonely)).last.index == leader.commit_index
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("kind", ["another copy", "another place"])
def test_S11_a_stale_or_foreign_piece_is_refused(kind: str) -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        _leader, victim = await lagging(cluster)
        first: list[bytes] = []

        def change_piece(_number: int, piece: bytes) -> bytes:
            if not first:
                first.append(piece)
                header, payload = envelope.decode(copy_pb2.CopyPiece, piece)
                if kind == "another copy":
                    header.copy_id = "0123456789abcdef"
                else:
                    header.pos += 48
                return envelope.encode(header, (payload,))
            return piece

        starts = tampered(cluster, change_piece)
        await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        assert len(starts) == 2
        await cluster.stop()

    run(scenario())


def test_S11_a_copy_that_is_not_wanted_any_more_is_given_up_and_cleared() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        node = await cluster.start_one(victim)
        await cluster.until(lambda: node._replica.core.snapshot_wanted is not None)
        plan_served = asyncio.Event()
        decide = node._replica.decide_snapshot

        async def too_late(plan: Any) -> None:
            node._replica.core._core.following.snapshot_wanted = None
            plan_served.set()
            await decide(plan)

        node._replica.decide_snapshot = too_late  # type: ignore[method-assign]
        await plan_served.wait()
        last = node.log.last
        assert last.index < 20
        await cluster.until(lambda: "interrupted" in node._replica.catch_up.state)
        node._replica.decide_snapshot = decide  # type: ignore[method-assign]
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        await write(leader, 80, 81)
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize(("code", "written"), [(errno.ENOSPC, False), (errno.ENOSPC, True), (errno.EIO, True)])
def test_a_node_goes_on_with_its_old_log_only_when_nothing_was_decided(code: int, written: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        disk = cluster.disks[victim]
        write_atomic, failures = disk.write_atomic, [1]

        async def failing(path: str, data: bytes) -> None:
            if not path.endswith("install.json") or not failures:
                await write_atomic(path, data)
                return
            failures.pop()
            if written:
                await write_atomic(path, data)
            raise OSError(code, "the disk says no")

        disk.write_atomic = failing  # type: ignore[method-assign]
        node = await cluster.start_one(victim)
        if code == errno.EIO:
            await cluster.until(node.failed.done)
            last = node.log.last
            await write(leader, 80, 82)
            assert node.log.last == last
            await cluster.kill(victim)
            await cluster.start_one(victim)
        else:
            await write(leader, 80, 82)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(82)))
        assert not failures
        await assert_same_files(cluster, victim, leader)
        await cluster.stop()

    run(scenario())


def test_a_copy_that_would_take_acknowledged_entries_away_is_refused() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        node = await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        captured = await leader._replica.capture()
        plan = await leader._replica.source._made("x", captured)
        assert node._replica.incompatibility(plan) is not None
        with pytest.raises(NotReadyError):
            await node._replica.decide_snapshot(plan)
        await write(leader, 80, 82)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(82)))
        await cluster.stop()

    run(scenario())


def test_head_truncation_waits_for_a_copy_and_for_members_that_follow() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL, snapshot_bytes_per_s=2000)
        leader, victim = await lagging(cluster)
        await write(leader, 80, 120)
        other = next(node for node in cluster.nodes.values() if node is not leader)
        await cluster.until(lambda: other.commit_index == leader.commit_index)
        first = other.log.first_index
        node = await cluster.start_one(victim)
        await cluster.until(lambda: "fetching a snapshot from" in node.status().copying)
        await cluster.machines[other.identity.node_id].save()
        assert await other.truncate_head(other.commit_index) == first
        await cluster.until(lambda: numbers(cluster, victim) == list(range(120)), limit_s=60)
        await asyncio.sleep(130)
        assert await other.truncate_head(other.commit_index) > first
        await cluster.stop()

    run(scenario())


def test_a_source_gives_no_more_than_its_budget() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL, snapshot_bytes_per_s=4000)
        leader, victim = await lagging(cluster)
        loop = asyncio.get_running_loop()
        began = loop.time()
        node = await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)), limit_s=60)
        copied = node.log.end_pos - node.log.first_pos
        assert loop.time() - began > copied / 4000 * 0.8
        await write(leader, 80, 81)
        await cluster.stop()

    run(scenario())


def test_what_was_in_flight_when_a_copy_came_is_not_called_not_stored() -> None:
    """The copy brings no terms of entries before its end: whether such an entry is in it, nobody here knows."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        committed = leader.log.entry_id(60)
        assert committed is not None
        node = await cluster.start_one(victim)
        future: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()
        node._replica.proposer.proposals.add_round(committed, future)  # as if it had led until a moment ago
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        with pytest.raises(OutcomeUnknownError):
            await future
        await cluster.stop()

    run(scenario())


def test_nothing_of_the_old_log_is_under_way_when_a_copy_takes_its_place() -> None:
    """A write of the old log that ends later would go into the new one's files, or be taken for one of its entries."""

    async def scenario() -> None:
        cluster = Cluster(size=1)
        await cluster.start()
        leader = await cluster.leader()
        driver = leader._replica.driver
        written = leader.propose(Text("x"))
        await asyncio.sleep(0)  # the entry is made in the next turn of the loop
        assert driver._durable < driver._written
        await driver.pause()
        assert driver._durable == driver._written
        assert leader.log.durable == leader.log.last
        assert driver.step(Tick()) == [], "and no event begins another one"
        driver.resume(leader.log)
        await written
        await leader.propose(Text("y"))
        await cluster.stop()

    run(scenario())


def test_an_operator_who_deletes_while_a_copy_takes_the_place_of_the_log_does_no_harm() -> None:
    """What a deletion writes would be of the old log, and stand beside the new one."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        disk = cluster.disks[victim]
        remove, deletions = disk.remove, []

        async def watched(path: str) -> None:
            if path.endswith("install.json"):
                deletions.append(asyncio.get_running_loop().create_task(node.truncate_head(node.log.last.index)))
            await remove(path)

        disk.remove = watched  # type: ignore[method-assign]
        node = await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)) or node.failed.done())
        assert not node.failed.done(), node.failed.result()
        (deletion,) = deletions
        with pytest.raises(NotReadyError):
            await deletion
        await write(leader, 80, 82)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(82)))
        await assert_same_files(cluster, victim, leader)
        await cluster.stop()

    run(scenario())


def test_a_log_that_is_trimmed_while_its_replica_is_paused_is_known_to_begin_there() -> None:
    """What peers lack is offered to them as a copy only where the log is known not to have it any more."""

    async def scenario() -> None:
        cluster = Cluster(size=1, log=SMALL)
        await cluster.start()
        leader = await cluster.leader()
        await write(leader, 0, 60)
        await cluster.machines[leader.identity.node_id].save()
        deletion = asyncio.get_running_loop().create_task(leader.truncate_head(leader.commit_index))
        await asyncio.sleep(0)
        await leader._replica.driver.pause()
        first = await deletion
        leader._replica.driver.resume(leader.log)
        assert first == leader.log.first_index > 1
        assert leader._replica.core.status().first_index == first
        await cluster.stop()

    run(scenario())


def test_a_node_without_room_for_the_copy_it_needs_tells_its_leader() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        disk = cluster.disks[victim]
        free_bytes = disk.free_bytes

        async def none_free() -> int:
            return 0

        disk.free_bytes = none_free  # type: ignore[method-assign]
        node = await cluster.start_one(victim)

        def seen() -> bool:
            """As a store does that looks at its disk."""
            node.low_on_space(on=False)
            return any(peer.low_on_space for peer in leader.status().peers if peer.node_id == victim)

        await cluster.until(seen)
        disk.free_bytes = free_bytes  # type: ignore[method-assign]
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        await cluster.until(lambda: not seen())
        await cluster.stop()

    run(scenario())


def test_a_node_that_fetches_a_copy_for_which_it_has_room_is_not_out_of_room() -> None:
    """However full its disk is: a spare node would be given up in the middle of a long copy."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        _, victim = await lagging(cluster)
        disk = cluster.disks[victim]
        free_bytes, none_free = disk.free_bytes, asyncio.Event()

        async def without_room() -> int:
            none_free.set()
            return 0

        disk.free_bytes = without_room  # type: ignore[method-assign]
        node = await cluster.start_one(victim)
        catch_up = node._replica.catch_up
        fetch_log, fetching, go_on = catch_up._fetch_log, asyncio.Event(), asyncio.Event()

        async def held_up(*how: Any) -> None:
            fetching.set()
            await go_on.wait()
            await fetch_log(*how)

        def told(*, on: bool) -> bool:
            node.low_on_space(on=on)
            return node._replica.core._core.low_on_space

        catch_up._fetch_log = held_up  # type: ignore[assignment, method-assign]
        await none_free.wait()
        await cluster.until(lambda: told(on=False))
        disk.free_bytes = free_bytes  # type: ignore[method-assign]
        await fetching.wait()
        assert not told(on=True)
        go_on.set()
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        await cluster.until(lambda: told(on=True))
        await cluster.stop()

    run(scenario())


def test_a_node_without_room_for_the_state_behind_the_log_copies_neither() -> None:
    """It would fetch the state again in every attempt, which a leader takes for progress of a spare node."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        _, victim = await lagging(cluster)
        disk = cluster.disks[victim]
        free_bytes, wanted = disk.free_bytes, list[SnapshotPlan]()

        async def room_for_the_log() -> int:
            return wanted[-1].size_bytes if wanted else 0

        disk.free_bytes = room_for_the_log  # type: ignore[method-assign]
        catch_up = (await cluster.start_one(victim))._replica.catch_up
        fetch = catch_up._fetch

        async def noted(channel: Channel, node: NodeId, plan: SnapshotPlan) -> None:
            wanted.append(plan)
            await fetch(channel, node, plan)

        catch_up._fetch = noted  # type: ignore[method-assign]
        await cluster.until(lambda: len(wanted) > 3)
        assert any(file.size_bytes > 0 for file in wanted[-1].files)
        assert catch_up.lacks_room
        assert catch_up.copied_bytes == 0
        disk.free_bytes = free_bytes  # type: ignore[method-assign]
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        await cluster.stop()

    run(scenario())
