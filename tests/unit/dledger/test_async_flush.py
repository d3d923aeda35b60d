"""ASYNC_FLUSH: a replica that lost power with entries not synced decides nothing by its log until it has them again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dledger.core.types import Membership, NodeId, Role
from dledger.log.config import LogConfig
from dledger.log.log import Log
from dledger.node import RaftNode
from dledger.replica.unsynced import PATH, LogDivergedError
from tests.sim.disk_content import SECTOR, Unreadable
from tests.unit.dledger.raft_rig import Cluster, MemoryDisk, Text, run


def group(**settings: Any) -> Cluster:
    """Nothing is synced by itself for as long as a test takes."""
    return Cluster(sync_flush=False, flush_interval_ms=1_000_000, **settings)


async def one_behind(cluster: Cluster) -> tuple[RaftNode, NodeId, NodeId, MemoryDisk]:
    """A leader and a follower acknowledged b'kept'; the other follower is behind.  Also the holder's disk as it was before."""
    await cluster.start()
    leader = await cluster.leader()
    await leader.propose(Text("base"))
    await cluster.until(lambda: all(machine.bodies == [b"base"] for machine in cluster.machines.values()), "base everywhere")
    for node in cluster.nodes.values():
        await node.log.flush(sync=True)
    holder, behind = (node.identity.node_id for node in cluster.followers(leader))
    before = cluster.disks[holder].crash()
    cluster.disks[holder].dead = False
    cluster.net.isolate(behind, cluster.names)
    await leader.propose(Text("kept"))
    assert leader.commit_index == leader.log.last.index
    return leader, holder, behind, before


async def lose_power(cluster: Cluster, name: NodeId, disk: MemoryDisk) -> None:
    await cluster.kill(name)
    mark = cluster.disks[name].files[PATH]
    cluster.disks[name] = disk
    disk.files[PATH], disk.synced[PATH] = bytearray(mark), bytes(mark)


def test_what_one_replica_lost_with_its_power_is_not_lost_with_a_change_of_leader() -> None:
    async def scenario() -> None:
        cluster = group()
        leader, holder, behind, before = await one_behind(cluster)
        await lose_power(cluster, holder, before)
        cluster.net.isolate(leader.identity.node_id, cluster.names)
        cluster.net.cut = {pair for pair in cluster.net.cut if leader.identity.node_id in pair}
        node = await cluster.start_one(holder)
        others = [node, cluster.nodes[behind]]
        assert node._replica.core.suspect
        with pytest.raises(AssertionError, match="not within"):
            await cluster.until(lambda: any(each.role is Role.LEADER for each in others), "a leader without the entry", limit_s=20)
        cluster.net.heal()
        await cluster.leader()
        await cluster.until(lambda: all(machine.bodies == [b"base", b"kept"] for machine in cluster.machines.values()), "nothing lost")
        await cluster.until(lambda: not node._replica.core.suspect, "sound again")
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("back", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_leader_under_SYNC_FLUSH_lets_in_who_lost_unsynced_entries_with_its_power(back: str) -> None:
    """Flush modes differ while an operator changes them node by node; the one of the replica that lost power counts, in that life."""

    async def scenario() -> None:
        cluster = group()
        holder, other, name = cluster.names
        await cluster.start(holder, other)
        cluster.settings["sync_flush"] = True
        await cluster.start_one(name)
        if (leader := await cluster.leader()).identity.node_id != name:
            await leader.transfer(name, 30)
        leader = await cluster.leader()
        await leader.propose(Text("base"))
        await cluster.until(lambda: all(machine.bodies == [b"base"] for machine in cluster.machines.values()), "base everywhere")
        await cluster.nodes[holder].log.flush(sync=True)
        before = cluster.disks[holder].crash()
        cluster.disks[holder].dead = False
        await leader.propose(Text("kept"))
        await cluster.until(lambda: all(machine.bodies == [b"base", b"kept"] for machine in cluster.machines.values()), "kept everywhere")
        await lose_power(cluster, holder, before)
        cluster.settings["sync_flush"] = back == "SYNC_FLUSH"
        node = await cluster.start_one(holder)
        await cluster.until(lambda: cluster.machines[holder].bodies == [b"base", b"kept"], "fetched what it lost")
        await cluster.until(lambda: not node._replica.core.suspect, "sound again")
        assert not node.failed.done()
        await cluster.stop()

    run(scenario())


def test_a_group_that_lost_power_as_a_whole_starts_by_itself() -> None:
    async def scenario() -> None:
        cluster = group()
        leader, *_others = await one_behind(cluster)
        cluster.net.heal()
        for name in cluster.names:
            await cluster.kill(name)
        await cluster.start(*[name for name in cluster.names if name != leader.identity.node_id])
        leader = await cluster.leader()
        await leader.propose(Text("after"))
        await cluster.start_one(next(name for name in cluster.names if name not in cluster.nodes))
        await cluster.until(lambda: all(machine.bodies[-1:] == [b"after"] for machine in cluster.machines.values()), "everywhere")
        await cluster.until(lambda: not any(node._replica.core.suspect for node in cluster.nodes.values()), "all sound")
        await cluster.stop()
        assert not any(PATH in disk.files for disk in cluster.disks.values()), "an orderly stop leaves no mark"

    run(scenario())


def test_a_mark_that_cannot_be_read_counts_as_a_loss_of_power() -> None:
    async def scenario() -> None:
        cluster = group()
        _leader, holder, _behind, _before = await one_behind(cluster)
        await cluster.kill(holder)
        disk = cluster.disks[holder]
        disk.unreadable.setdefault(PATH, Unreadable()).add(0, SECTOR)
        node = await cluster.start_one(holder)
        assert node._replica.core.suspect
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("in_snapshot", [False, True])
def test_a_replica_that_applied_what_a_majority_lost_begins_anew(in_snapshot: bool) -> None:
    async def scenario() -> None:
        cluster = group()
        leader, holder, behind, before = await one_behind(cluster)
        name = leader.identity.node_id
        await leader.log.flush(sync=True)
        if in_snapshot:
            await cluster.machines[name].save()
        await lose_power(cluster, holder, before)
        await cluster.kill(behind)
        cluster.net.isolate(name, cluster.names)
        cluster.net.cut = {pair for pair in cluster.net.cut if name in pair}
        await cluster.start(holder, behind)
        new = await cluster.until(
            lambda: next((node for node in cluster.nodes.values() if node.role is Role.LEADER and node is not leader), None)
        )
        await new.propose(Text("other"))
        cluster.net.heal()
        assert isinstance(await leader.failed, LogDivergedError)
        cluster.net.kill(name)
        await cluster.nodes.pop(name).stop(hand_over=False)
        cluster.disks[name].files.pop("state.json", None)
        await cluster.start_one(name)
        await cluster.until(lambda: cluster.machines[name].bodies == [b"base", b"other"], "as the others have it")
        assert any(path.startswith("quarantine/diverged-") for path in cluster.disks[name].files)
        await cluster.until(lambda: not cluster.nodes[name]._replica.core.suspect, "sound")
        await cluster.stop()

    run(scenario())


def test_a_killed_process_loses_nothing_where_the_machine_is_known_to_have_stayed_up() -> None:
    async def scenario() -> None:
        cluster = group()
        cluster.boot_id = "one"
        _leader, holder, _behind, _before = await one_behind(cluster)
        mark = bytes(cluster.disks[holder].files[PATH])
        await cluster.kill(holder)
        assert PATH in cluster.disks[holder].files
        node = await cluster.start_one(holder)
        assert not node._replica.core.suspect
        await cluster.kill(holder)
        cluster.boot_id = "two"
        assert (await cluster.start_one(holder))._replica.core.suspect
        assert b'"one"' in mark
        await cluster.stop()

    run(scenario())


PIECES = LogConfig(segment_bytes=16 << 20, fill_window_bytes=0, flush_bytes=1)  # each entry is a flush of its own


@pytest.mark.parametrize("log", [LogConfig(segment_bytes=16 << 20, fill_window_bytes=0), PIECES], ids=["at once", "in pieces"])
def test_a_promotion_and_one_loss_of_power_lose_nothing(log: LogConfig) -> None:
    """The leader and the new voter have it all.  The leader loses power, and what it remembers of the members decides who may elect."""

    async def scenario() -> None:
        other, new = NodeId("n1"), NodeId("n2")
        cluster = group(membership=Membership((NodeId("n0"), other), (new,)), log=log)
        await cluster.start()
        leader = await cluster.leader()
        name, (other,) = leader.identity.node_id, [voter for voter in leader.membership.voters if voter != leader.identity.node_id]
        await leader.propose(Text("old"))
        await cluster.until(lambda: all(machine.bodies == [b"old"] for machine in cluster.machines.values()), "old everywhere")
        cluster.net.isolate(other, cluster.names)
        writes = [asyncio.ensure_future(leader.propose(Text(text))) for text in ("a", "b")]
        await asyncio.sleep(0)
        await leader.change_members([name, other, new], [], {}, 5)
        await asyncio.gather(*writes)
        await leader.propose(Text("kept"))
        cluster.net.heal()
        cluster.net.isolate(new, cluster.names)
        await cluster.kill(name)
        again = await cluster.start_one(name)
        assert again._replica.core.suspect
        assert set(again.membership.voters) == {name, other, new}
        pair = [again, cluster.nodes[other]]
        with pytest.raises(AssertionError, match="not within"):
            await cluster.until(lambda: any(node.role is Role.LEADER for node in pair), "a leader without the entry", limit_s=20)
        cluster.net.heal()
        await cluster.leader()
        everything = [b"old", b"a", b"b", b"kept"]
        await cluster.until(lambda: all(machine.bodies == everything for machine in cluster.machines.values()), "nothing lost")
        await cluster.stop()

    run(scenario())


def test_a_sole_voter_that_was_joined_and_lost_power_waits_for_the_other() -> None:
    async def scenario() -> None:
        name, new = NodeId("n0"), NodeId("n1")
        cluster = Cluster(2, sync_flush=False, flush_interval_ms=1_000_000, membership=Membership((name,), (new,)))
        await cluster.start()
        leader = await cluster.leader()
        await cluster.until(lambda: cluster.nodes[new].log.last == leader.log.last, "the learner has it")
        await leader.change_members([name, new], [], {}, 5)
        await leader.propose(Text("kept"))
        cluster.net.isolate(new, cluster.names)
        await cluster.kill(name)
        again = await cluster.start_one(name)
        with pytest.raises(AssertionError, match="not within"):
            await cluster.until(lambda: again.role is Role.LEADER, "a leader without the entry", limit_s=20)
        cluster.net.heal()
        await cluster.leader()
        await cluster.until(lambda: all(machine.bodies == [b"kept"] for machine in cluster.machines.values()), "nothing lost")
        await cluster.stop()

    run(scenario())


def test_a_replica_that_begins_anew_is_no_group_of_its_own() -> None:
    """It was the group's first voter and has given up the log that names the others."""

    async def scenario() -> None:
        first, others = NodeId("n0"), [NodeId("n1"), NodeId("n2")]
        cluster = group(membership=Membership((first,), tuple(others)))
        await cluster.start()
        leader = await cluster.leader()
        await leader.propose(Text("base"))
        await cluster.until(lambda: all(machine.bodies == [b"base"] for machine in cluster.machines.values()), "base everywhere")
        await leader.change_members([first, others[0]], [others[1]], {}, 5)
        await leader.change_members([first, *others], [], {}, 5)
        await cluster.kill(first)
        disk = cluster.disks[first]
        disk.files[PATH] = bytearray(json.dumps({"boot": "", "suspect": True, "diverged": 3}).encode())
        disk.synced[PATH] = bytes(disk.files[PATH])
        cluster.net.isolate(first, cluster.names)
        for _ in range(2):  # the second start finds nothing of what was given up
            await cluster.start_one(first)
            with pytest.raises(AssertionError, match="not within"):
                await cluster.until(lambda: cluster.nodes[first].role is Role.LEADER, "a group of its own", limit_s=20)
            await cluster.kill(first)
        again = await cluster.start_one(first)
        cluster.net.heal()
        await cluster.until(lambda: not again._replica.core.suspect and cluster.machines[first].bodies == [b"base"], "back again")
        await cluster.stop()

    run(scenario())


def test_an_orderly_stop_that_could_not_sync_leaves_the_mark() -> None:
    """The leader's disk is full: what it stops with is in memory only."""

    async def scenario() -> None:
        cluster = group()
        await cluster.start()
        leader = await cluster.leader()
        name = leader.identity.node_id
        await cluster.until(lambda: all(node.log.last == leader.log.last for node in cluster.nodes.values()), "the no-op everywhere")
        for node in cluster.nodes.values():
            await node.log.flush(sync=True)
        cluster.disks[name].full = True
        await leader.propose(Text("kept"))
        del cluster.nodes[name]
        await leader.stop(hand_over=False)
        assert PATH in cluster.disks[name].files
        await cluster.stop()
        assert [PATH in cluster.disks[other].files for other in cluster.names].count(True) == 1

    run(scenario())


class PowerLost(BaseException):
    """Between two steps of a start."""


def test_the_mark_stays_until_what_stands_in_the_log_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed under ASYNC_FLUSH, started again under SYNC_FLUSH: the log is in the page cache only until this start has synced it."""

    async def scenario() -> None:
        cluster = group()
        cluster.boot_id = "one"
        _leader, holder, _behind, _before = await one_behind(cluster)
        cluster.net.kill(holder)
        replica = cluster.nodes.pop(holder)._replica
        replica.driver.stop()
        await replica.tasks.stop()
        cluster.settings["sync_flush"] = True

        async def power_lost(*_args: object) -> None:
            raise PowerLost

        with monkeypatch.context() as patch:
            patch.setattr(Log, "open", power_lost)
            with pytest.raises(PowerLost):
                await cluster.start_one(holder)
        assert PATH in cluster.disks[holder].synced
        node = await cluster.start_one(holder)
        assert not node._replica.core.suspect, "the machine stayed up"
        disk = cluster.disks[holder]
        assert PATH not in disk.files
        assert all(bytes(disk.files[path]) == disk.synced[path] for path in disk.files if path.startswith("commitlog/"))
        await cluster.stop()

    run(scenario())
