"""Lineages: what a recovery or a restore parted stays apart, whatever the terms; an empty node joins the leader that it copies from."""

from __future__ import annotations

import asyncio
import json

import pytest

from dledger.core.types import HardState, Membership, NodeId, Role
from dledger.log.config import LogConfig
from dledger.log.hard_state import HardStateFile
from dledger.log.log import Log
from dledger.membership.configuration import Configuration
from dledger.membership.lineage import PATH, Lineage, Origin, read_lineage
from dledger.node import RaftNode
from dledger.repair import serve_entry
from dledger_offline.recovery.new_members import append_members, begin_lineage, terms_ahead
from dledger_wire._pb import raft_pb2
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError
from tests.unit.dledger.raft_rig import Cluster, MemoryDisk, Text, run
from tests.unit.dledger.test_copy import SMALL, write

FIRST, SECOND = "0001" + "a" * 28, "0002" + "b" * 28


async def recover(group: Cluster, name: NodeId, lineage: str) -> str:
    """Make a stopped node the only voter of its group; its new store id."""
    disk, store = group.disks[name], f"recovered-{name}"
    config = group.settings.get("log", LogConfig(segment_bytes=16 << 20, fill_window_bytes=0))
    log, _report = await Log.open(disk, config)
    end = (log.last, log.chain_crc)
    await log.close()
    configuration = Configuration(Membership((name,)).with_stores({name: store}), {name: group.addresses[name]})
    term = await begin_lineage(disk, lineage, end[0].term, log_is_empty=False)
    await append_members(disk, config, end, term, configuration, at_ms=1)
    return store


async def with_entries(group: Cluster) -> None:
    """All nodes have run and are killed, with five messages each."""
    await group.start()
    leader = await group.leader()
    for number in range(5):
        await leader.propose(Text(f"both{number}"))
    await group.until(lambda: all(len(machine.bodies) == 5 for machine in group.machines.values()))
    for name in list(group.names):
        await group.kill(name)


async def promise(disk: MemoryDisk, term: int) -> None:
    file = await HardStateFile.open(disk, log_is_empty=False)
    await file.save(HardState(term, None))
    await file.close()


async def leads_alone(group: Cluster, name: NodeId, lineage: str) -> RaftNode:
    store = await recover(group, name, lineage)
    node = await group.start_one(name, store_id=store)
    await group.until(lambda: node.is_confirmed_leader)
    return node


def refusal(node: RaftNode, peer: NodeId) -> str:
    return next((each.refused for each in node.status().peers if each.node_id == peer), "")


def test_members_of_before_neither_depose_the_survivor_nor_copy_from_it() -> None:
    async def scenario() -> None:
        group = Cluster(3)
        await with_entries(group)
        n0, n1, n2 = group.names
        survivor = await leads_alone(group, n0, FIRST)
        term = survivor.term
        await survivor.propose(Text("new"))
        for name in (n1, n2):
            await promise(group.disks[name], 1 << 20)  # whatever the term
            await group.start_one(name)
        old = [group.nodes[name] for name in (n1, n2)]
        await survivor.change_members([n0], [n1], {}, 5)  # as `member add` does when the node was down
        await group.until(lambda: "lineage: n0 has the log of lineage 0001aaaa, n1 that of the first lineage" in refusal(survivor, n1))
        await group.until(lambda: all("lineage 0001aaaa" in refusal(node, n0) for node in old))
        await asyncio.sleep(10)
        assert [node.role for node in old] == [Role.FOLLOWER] * 2, "clients that reach both sides write to the newer one"
        await survivor.propose(Text("newer"))
        assert (survivor.role, survivor.term) == (Role.LEADER, term)
        assert group.machines[n0].bodies[6:] == [b"new", b"newer"]
        assert group.machines[n1].bodies[5:] == []
        await group.stop()

    run(scenario())


def test_a_leader_that_was_left_behind_steps_down() -> None:
    async def scenario() -> None:
        group = Cluster(3)
        await with_entries(group)
        n0, n1, n2 = group.names
        store = await recover(group, n0, FIRST)
        for name in (n1, n2):
            await group.start_one(name)
        old = await group.until(lambda: next((group.nodes[name] for name in (n1, n2) if group.nodes[name].is_confirmed_leader), None))
        await old.propose(Text("while the survivor is down"))
        survivor = await group.start_one(n0, store_id=store)
        await group.until(lambda: survivor.is_confirmed_leader and old.role is Role.FOLLOWER)
        await asyncio.sleep(10)
        assert [group.nodes[name].role for name in (n1, n2)] == [Role.FOLLOWER] * 2
        await group.kill(n0)  # a recovery by mistake: without its survivor the others lead once they start again
        for name in (n1, n2):
            await group.kill(name)
            await group.start_one(name)
        await group.until(lambda: any(group.nodes[name].is_confirmed_leader for name in (n1, n2)))
        await group.stop()

    run(scenario())


def test_a_survivor_that_adds_another_survivor_goes_on_leading() -> None:
    """Only voters count: the other one was added by mistake, and begins in a later term."""

    async def scenario() -> None:
        group = Cluster(3)
        await with_entries(group)
        n0, n1, _n2 = group.names
        one, _other = await leads_alone(group, n0, FIRST), await leads_alone(group, n1, SECOND)
        await one.change_members([n0], [n1], {}, 5)
        await group.until(lambda: "lineage 0002bbbb" in refusal(one, n1))
        await asyncio.sleep(10)
        assert one.is_confirmed_leader
        await group.stop()

    run(scenario())


def test_an_empty_node_joins_the_lineage_before_it_stores_anything() -> None:
    async def scenario() -> None:
        group = Cluster(3)
        await with_entries(group)
        n0, n1, n2 = group.names
        survivor = await leads_alone(group, n0, FIRST)
        group.disks[n1] = MemoryDisk()
        group.settings["membership"] = Membership((n0,), (n1,))
        node = await group.start_one(n1, store_id="new-n1")
        await group.start_one(n2)  # of before: it dials both
        await group.until(lambda: node.is_connected(n0) or survivor._replica.links.store_of(n1) != "")
        assert (await read_lineage(group.disks[n1])).lineage == "", "a handshake decides nothing"
        await survivor.change_members([n0], [n1], {}, 5)
        await group.until(lambda: group.machines[n1].bodies == group.machines[n0].bodies)
        assert (await read_lineage(group.disks[n1])).lineage == FIRST
        await group.until(lambda: any(peer.node_id == n1 and peer.acknowledges for peer in survivor.status().peers))
        await survivor.change_members([n0, n1], [], {}, 5)
        await survivor.propose(Text("by both"))
        await group.until(lambda: group.machines[n1].bodies[-1:] == [b"by both"])
        await group.stop()

    run(scenario())


def test_an_empty_node_joins_the_lineage_before_it_fetches_a_copy() -> None:
    async def scenario() -> None:
        group = Cluster(3, log=SMALL)
        await with_entries(group)
        n0, n1, _n2 = group.names
        survivor = await leads_alone(group, n0, FIRST)
        await write(survivor, 5, 80)
        await group.machines[n0].save()
        assert await survivor.truncate_head(survivor.commit_index - 20) > 15
        group.disks[n1] = MemoryDisk()
        group.settings["membership"] = Membership((n0,), (n1,))
        node = await group.start_one(n1, store_id="new-n1")
        await survivor.change_members([n0], [n1], {}, 5)
        await group.until(lambda: group.machines[n1].bodies == group.machines[n0].bodies)
        assert node.log.first_index > 15
        assert (await read_lineage(group.disks[n1])).lineage == FIRST
        await group.stop()

    run(scenario())


def test_two_survivors_have_no_entry_in_common_behind_the_recovery() -> None:
    async def scenario() -> None:
        group = Cluster(3)
        await with_entries(group)
        n0, n1, _n2 = group.names
        one, other = await leads_alone(group, n0, FIRST), await leads_alone(group, n1, SECOND)
        assert one.log.last.index == other.log.last.index
        for name, node in ((n0, one), (n1, other)):
            await node.propose(Text(f"only {name}"))
        assert {one.log.entry_id(index) for index in range(8, 12)}.isdisjoint(other.log.entry_id(index) for index in range(8, 12))
        terms = one.term, other.term
        await one.change_members([n0], [n1], {}, 5)
        await other.change_members([n1], [n0], {}, 5)
        await group.until(lambda: "lineage 0002bbbb" in refusal(one, n1) and "lineage 0001aaaa" in refusal(other, n0))
        await one.propose(Text("after"))
        await other.propose(Text("after"))
        assert (one.term, other.term) == terms
        await group.stop()

    run(scenario())


def test_a_recovered_node_and_its_new_member_start_again() -> None:
    async def scenario() -> None:
        group = Cluster(3)
        await with_entries(group)
        n0, n1, _n2 = group.names
        survivor = await leads_alone(group, n0, FIRST)
        group.disks[n1] = MemoryDisk()
        group.settings["membership"] = Membership((n0,), (n1,))
        await group.start_one(n1, store_id="new-n1")
        await survivor.change_members([n0], [n1], {}, 5)
        await group.until(lambda: group.machines[n1].bodies == group.machines[n0].bodies)
        for name in (n0, n1):
            await group.kill(name)
        for name, store in ((n0, f"recovered-{n0}"), (n1, "new-n1")):
            await group.start_one(name, store_id=store)
        leader = await group.leader()
        await leader.propose(Text("again"))
        await group.until(lambda: all(machine.bodies[-1:] == [b"again"] for name, machine in group.machines.items() if name in (n0, n1)))
        await group.stop()

    run(scenario())


def test_entries_and_copies_of_another_lineage_are_refused() -> None:
    async def scenario() -> None:
        group = Cluster(1)
        await group.start()
        node = await group.leader()
        await node.propose(Text("a"))
        replica, request = node._replica, raft_pb2.EntryRequest(cluster="c", group="g", lineage=FIRST)
        request.entry.index, request.entry.term = node.log.last.index, node.log.last.term
        ours = Lineage(group.disks[group.names[0]])
        with pytest.raises(InvalidArgumentError, match="has the log of the first lineage, not that of lineage 0001aaaa"):
            await serve_entry(node.identity, ours, node.log, node.commit_index, request.SerializeToString())
        await ours.join(Origin(FIRST, 65537))
        assert await serve_entry(node.identity, ours, node.log, node.commit_index, request.SerializeToString())
        with pytest.raises(InvalidArgumentError, match="lineage: n0 has the log of lineage 0001aaaa"):
            replica._check_copier("n0", FIRST)
        replica._check_copier("n0", "")
        await group.stop()

    run(scenario())


def test_terms_follow_from_the_lineage() -> None:
    assert (terms_ahead("0000" + "0" * 28), terms_ahead(FIRST), terms_ahead("f" * 32)) == (65536, 65537, 131071)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'{"lineage": 7, "term": 9}', b'{"lineage": "A", "term": 9}', b'{"lineage": "%s"}' % FIRST.encode(), b"[" * 100_000],
)
def test_a_damaged_file_is_refused(content: bytes) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await disk.write_atomic(PATH, content)
        with pytest.raises(DataDirectoryError, match="damaged"):
            await read_lineage(disk)
        await disk.write_atomic(PATH, json.dumps({"lineage": FIRST, "term": 65537}).encode())
        assert (await read_lineage(disk)).lineage == FIRST

    asyncio.run(scenario())
