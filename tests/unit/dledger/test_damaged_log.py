"""A replica whose log is damaged takes no part until a peer's bytes have made it whole (rows K3, K6); strangers are refused (N15)."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from broker.main import started
from dledger.core.types import EntryKind, NodeId, Role
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.log.index_units import EntryPlace
from dledger.log.segment import log_path
from dledger.membership.configuration_file import PATH
from dledger.node import RaftNode
from dledger.repair import PeerRepair
from dledger.runtime.env import BLOCK_BYTES
from dledger_wire.errors import StorageDamagedError
from dledger_wire.layout import CHAIN_CRC_AT
from tests.sim.disk_content import SECTOR, Unreadable
from tests.unit.dledger.raft_rig import Cluster, MemoryDisk, Recorder, Text, run

SEGMENT = 64 << 10
ALONE = 60_000  # no entry before it leaves room for this one in its segment
LOG = LogConfig(segment_bytes=SEGMENT, fill_window_bytes=0)
FIRST = "commitlog/00000000000000000000"


async def filled(count: int = 60, log: LogConfig = LOG) -> tuple[Cluster, NodeId]:
    """A group with several sealed segments on every disk, and the name of a follower."""
    cluster = Cluster(log=log, repair_limit_s=5.0)
    await cluster.start()
    leader = await cluster.leader()
    for number in range(count):
        await leader.propose(Text(f"m{number}", 4000))
    last = leader.log.last
    await cluster.until(lambda: all(node.log.last == last and node.commit_index == last.index for node in cluster.nodes.values()))
    return cluster, cluster.followers(leader)[0].identity.node_id


def flip(disk: MemoryDisk, *positions: int, path: str = FIRST) -> None:
    for pos in positions:
        disk.files[path][pos] ^= 0x10
    disk.synced[path] = bytes(disk.files[path])


@pytest.mark.parametrize("positions", [[20_000], [10], [9_000, 20_000, 20_001, 40_000]], ids=["a body", "a header", "several"])
def test_K3_a_flipped_byte_in_a_followers_sealed_segment_is_fetched_from_a_peer(positions: list[int]) -> None:
    async def scenario() -> None:
        cluster, name = await filled()
        await cluster.kill(name)
        flip(cluster.disks[name], *positions)
        node = await cluster.start_one(name)
        leader = await cluster.leader()
        assert cluster.disks[name].files[FIRST] == cluster.disks[leader.identity.node_id].files[FIRST]
        assert node.recovery.is_clean
        assert [path for path in cluster.disks[name].files if path.startswith("quarantine/")]
        await leader.propose(Text("after"))
        await cluster.until(lambda: cluster.machines[name].bodies[-1:] == [b"after"])
        assert len(cluster.machines[name].bodies) == 61
        await cluster.stop()

    run(scenario())


def break_sector(disk: MemoryDisk, pos: int, path: str = FIRST) -> None:
    """Reads of the sector fail, and writes of a part of it, until it is written whole."""
    disk.unreadable.setdefault(path, Unreadable()).add(pos - pos % SECTOR, SECTOR)


UNREADABLE = pytest.mark.parametrize(
    "positions", [[18_000], [0], [20_480], [9_000, 20_480, 41_000, SEGMENT - 1]], ids=["body", "header", "two", "several and the end"]
)


@UNREADABLE
@pytest.mark.parametrize("segment", [0, -1], ids=["sealed", "last"])
def test_K3_a_sector_that_cannot_be_read_is_written_again_by_a_start(segment: int, positions: list[int]) -> None:
    async def scenario() -> None:
        cluster, name = await filled()
        leader = await cluster.leader()
        start_pos = leader.log.segments[segment].start_pos
        path = f"commitlog/{start_pos:020d}"
        await asyncio.sleep(1)  # index units are synced a little later than their entries
        await cluster.kill(name)
        for pos in positions:
            break_sector(cluster.disks[name], pos, path)
        node = await cluster.start_one(name)
        written = leader.log.end_pos - start_pos
        assert cluster.disks[name].files[path][:written] == cluster.disks[leader.identity.node_id].files[path][:written]
        assert node.recovery.is_clean
        await leader.propose(Text("after"))
        await cluster.until(lambda: len(cluster.machines[name].bodies) == 61)
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("size", [10, 4000], ids=["small entries", "large entries"])
def test_K3_the_sector_that_the_log_ends_in_is_written_again_by_a_start(size: int) -> None:
    async def scenario() -> None:
        cluster, name = await filled(1)
        leader = await cluster.leader()
        for number in range(20):
            await leader.propose(Text(f"n{number}", size))
        await cluster.until(lambda: cluster.nodes[name].commit_index == leader.log.last.index)
        await asyncio.sleep(1)  # index units are synced a little later than their entries
        await cluster.kill(name)
        end = leader.log.end_pos
        assert end % BLOCK_BYTES, "the log ends within a block"
        break_sector(cluster.disks[name], end - 1)
        node = await cluster.start_one(name)
        assert node.recovery.is_clean
        assert cluster.disks[name].files[FIRST][:end] == cluster.disks[leader.identity.node_id].files[FIRST][:end]
        await leader.propose(Text("after"))
        await cluster.until(lambda: len(cluster.machines[name].bodies) == 22)
        await cluster.stop()

    run(scenario())


@UNREADABLE
def test_K3_a_sector_that_cannot_be_read_is_written_again_when_it_is_applied(positions: list[int]) -> None:
    async def scenario() -> None:
        cluster, name = await filled(log=LogConfig(segment_bytes=SEGMENT, fill_window_bytes=0, verify_bytes=10_000))
        await cluster.kill(name)
        for pos in positions:
            break_sector(cluster.disks[name], pos)
        node = await cluster.start_one(name)
        await cluster.until(lambda: len(cluster.machines[name].bodies) == 60)
        leader = await cluster.leader()
        assert cluster.disks[name].files[FIRST] == cluster.disks[leader.identity.node_id].files[FIRST]
        assert not node.status().damaged
        await cluster.stop()

    run(scenario())


def test_K3_what_stands_before_a_sector_that_cannot_be_read_is_applied_while_no_peer_has_its_bytes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once; the node goes on once a peer has them."""

    async def nowhere(_self: PeerRepair, _place: EntryPlace) -> RawEntry | None:
        return None

    async def scenario() -> None:
        cluster, name = await filled(log=LogConfig(segment_bytes=SEGMENT, fill_window_bytes=0, verify_bytes=10_000))
        await cluster.kill(name)
        break_sector(cluster.disks[name], 30_000)
        monkeypatch.setattr(PeerRepair, "_fetch", nowhere)
        node = await cluster.start_one(name)
        damaged = next(index for index in range(1, 60) if (place := node.log.locate(index)) and place.end_pos > 30_000)
        machine = cluster.machines[name]
        await cluster.until(lambda: machine.applied_index == damaged - 1)
        await asyncio.sleep(10)
        assert machine.applied_index == damaged - 1
        waits = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "apply_waits"]
        assert len(waits) == 1
        assert f"entry {damaged}: cannot be read: input/output error: no peer" in waits[0]
        assert node.status().damaged
        monkeypatch.undo()
        await cluster.until(lambda: len(machine.bodies) == 60)
        assert not node.status().damaged
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("beside", [7, 8], ids=["before", "behind"])
def test_K3_a_sector_that_two_entries_share_is_written_once_both_can_be_had(beside: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of it can be written; the node runs on until then."""
    fetch = PeerRepair._fetch

    async def without_one(self: PeerRepair, place: EntryPlace) -> RawEntry | None:
        return None if place.index == beside else await fetch(self, place)

    async def scenario() -> None:
        cluster, name = await filled(log=LogConfig(segment_bytes=SEGMENT, fill_window_bytes=0, verify_bytes=10_000))
        await cluster.kill(name)
        monkeypatch.setattr(PeerRepair, "_fetch", without_one)
        node = await cluster.start_one(name)
        seventh, eighth = node.log.locate(7), node.log.locate(8)
        assert seventh is not None
        assert eighth is not None
        shared = eighth.pos - eighth.pos % SECTOR
        assert seventh.pos < shared < eighth.pos
        await cluster.kill(name)
        break_sector(cluster.disks[name], shared)
        node = await cluster.start_one(name)
        machine = cluster.machines[name]
        await cluster.until(lambda: machine.applied_index == 6)
        await asyncio.sleep(10)
        assert (machine.applied_index, node.failed.done()) == (6, False)
        monkeypatch.undo()
        await cluster.until(lambda: len(machine.bodies) == 60)
        leader = await cluster.leader()
        assert cluster.disks[name].files[FIRST] == cluster.disks[leader.identity.node_id].files[FIRST]
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("positions", [[20_000], [10], [9_000, 20_000, 20_001, 40_000]], ids=["a body", "a header", "several"])
def test_K3_damage_that_a_start_does_not_look_for_is_put_right_when_it_is_applied(positions: list[int]) -> None:
    """The state has to be made from entries that lie before the end of the log which is verified."""

    async def scenario() -> None:
        cluster, name = await filled(log=LogConfig(segment_bytes=SEGMENT, fill_window_bytes=0, verify_bytes=10_000))
        await cluster.kill(name)
        flip(cluster.disks[name], *positions)
        node = await cluster.start_one(name)
        await cluster.until(lambda: len(cluster.machines[name].bodies) == 60)
        leader = await cluster.leader()
        assert cluster.disks[name].files[FIRST] == cluster.disks[leader.identity.node_id].files[FIRST]
        assert not node.status().damaged
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("kept", [-1, -8, 20_000], ids=["a byte", "the filler", "most of it"])
def test_K3_a_sealed_segment_that_was_cut_off_is_made_whole(kept: int) -> None:
    async def scenario() -> None:
        cluster, name = await filled()
        await cluster.kill(name)
        disk = cluster.disks[name]
        del disk.files[FIRST][kept:]
        disk.synced[FIRST] = bytes(disk.files[FIRST])
        node = await cluster.start_one(name)
        leader = await cluster.leader()
        sound = cluster.disks[leader.identity.node_id].files[FIRST]
        assert disk.files[FIRST].rstrip(b"\0") == sound.rstrip(b"\0")
        assert node.recovery.is_clean
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("kept", [-1, 20_000], ids=["the filler", "most of it"])
def test_K3_two_segments_in_a_row_that_were_cut_off_are_made_whole(kept: int) -> None:
    """The filler of the first is proven by the index units of the second, which has no header left to tell."""

    async def scenario() -> None:
        cluster, name = await filled()
        await cluster.kill(name)
        disk = cluster.disks[name]
        second = f"commitlog/{SEGMENT:020d}"
        for path, size in ((FIRST, kept), (second, 0)):
            del disk.files[path][size:]
            disk.synced[path] = bytes(disk.files[path])
        node = await cluster.start_one(name)
        assert node.recovery.is_clean
        sound = cluster.disks[(await cluster.leader()).identity.node_id]
        assert all(disk.files[path].rstrip(b"\0") == sound.files[path].rstrip(b"\0") for path in (FIRST, second))
        await cluster.stop()

    run(scenario())


def test_K3_a_segment_that_was_cut_off_waits_for_peers_that_have_its_entries_committed() -> None:
    """What stands behind them, the filler, is judged when they are whole."""

    async def scenario() -> None:
        cluster, name = await filled()
        for other in cluster.names:
            await cluster.kill(other)
        disk = cluster.disks[name]
        del disk.files[FIRST][20_000:]
        disk.synced[FIRST] = bytes(disk.files[FIRST])
        starting = asyncio.get_running_loop().create_task(cluster.start_one(name))
        await asyncio.sleep(2)
        assert not starting.done()
        await cluster.start(*(other for other in cluster.names if other != name))
        assert (await starting).recovery.is_clean
        await cluster.stop()

    run(scenario())


def test_K3_a_damaged_node_neither_votes_nor_acknowledges_until_it_is_whole() -> None:
    async def scenario() -> None:
        cluster, name = await filled(30)
        others = [other for other in cluster.names if other != name]
        for other in cluster.names:
            await cluster.kill(other)
        flip(cluster.disks[name], 20_000)
        starting = asyncio.get_running_loop().create_task(cluster.start_one(name))
        await cluster.start(others[0])
        await asyncio.sleep(3)
        assert not starting.done(), "nobody has the entry committed, as far as he knows"
        assert cluster.nodes[others[0]].role is not Role.LEADER, "one of three, the damaged one does not vote"
        await cluster.start(others[1])
        await starting
        leader = await cluster.leader()
        await leader.propose(Text("after"))
        assert cluster.disks[name].files[FIRST] == cluster.disks[others[0]].files[FIRST]
        await cluster.stop()

    run(scenario())


async def replaced_tail(size: int, damage_at: int) -> tuple[Cluster, NodeId]:
    """A stopped replica with an entry that it wrote as a leader cut off from the others, who committed ten others in its place meanwhile.

    ``size``: of that entry.  It has a flipped byte at ``damage_at``: nobody has its bytes, nobody needs them.
    """
    cluster, _ = await filled(3)
    leader = await cluster.leader()
    name, committed = leader.identity.node_id, leader.log.last.index
    cluster.net.isolate(name, cluster.names)
    waiting = leader.propose(Text("lost", size))
    await cluster.until(lambda: leader.role is not Role.LEADER and leader.log.durable == leader.log.last)
    assert leader.log.last.index > committed
    assert (len(leader.log.segments) > 1) is (size == ALONE)
    await asyncio.sleep(0.5)  # index units are synced a little later than their entries
    place = leader.log.locate(committed + 1)
    assert place is not None
    start_pos = leader.log.file_of(place.pos)[1]
    await cluster.kill(name)
    await asyncio.gather(waiting, return_exceptions=True)
    flip(cluster.disks[name], place.pos - start_pos + damage_at, path=f"commitlog/{start_pos:020d}")
    cluster.net.heal()
    successor = await cluster.leader()
    for number in range(10):
        await successor.propose(Text(f"kept {number}", 4000))
    return cluster, name


@pytest.mark.parametrize("size", [12_000, ALONE], ids=["in a segment with others", "alone in its segment"])
def test_K3_a_damaged_entry_that_never_was_committed_gives_way_to_what_was(size: int) -> None:
    async def scenario() -> None:
        cluster, name = await replaced_tail(size, damage_at=100)
        node = await cluster.start_one(name)
        assert node.recovery.torn is not None
        kept = [path for path in cluster.disks[name].files if path.startswith("quarantine/")]
        assert len(kept) == 1
        bodies = cluster.machines[name].bodies
        await cluster.until(lambda: len(bodies) == 13)
        assert [body[:6].decode() for body in bodies[3:]] == [f"kept {number}" for number in range(10)]
        other = (await cluster.leader()).identity.node_id
        logs = [
            {path: data.rstrip(b"\0") for path, data in cluster.disks[each].files.items() if path.startswith("commitlog/")}
            for each in (name, other)
        ]
        assert logs[0] == logs[1]
        await cluster.stop()

    run(scenario())


def lose_units(disk: MemoryDisk) -> None:
    """The file of the first segment's index units is gone."""
    for path in [path for path in disk.files if path.startswith("index-units/")]:
        del disk.files[path], disk.synced[path]


def test_K3_where_the_index_units_are_lost_too_the_chain_says_which_entry_is_damaged() -> None:
    """As after a write that the full disk cut short: its bytes are nowhere, and the node starts all the same."""

    async def scenario() -> None:
        cluster, name = await replaced_tail(12_000, damage_at=100)
        lose_units(cluster.disks[name])
        await cluster.start_one(name)
        assert [path for path in cluster.disks[name].files if path.startswith("quarantine/")]
        bodies = cluster.machines[name].bodies
        await cluster.until(lambda: len(bodies) == 13)
        assert [body[:6].decode() for body in bodies[3:]] == [f"kept {number}" for number in range(10)]
        await cluster.stop()

    run(scenario())


def test_K3_nothing_committed_is_cut_with_an_entry_that_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two entries are damaged and the index units lost; the peers say that the second was replaced, and cannot give the first."""
    fetch = PeerRepair._fetch

    async def without_the_third(self: PeerRepair, place: EntryPlace) -> RawEntry | None:
        return None if place.index == 3 else await fetch(self, place)

    async def scenario() -> None:
        cluster, name = await replaced_tail(12_000, damage_at=100)
        third = (await cluster.leader()).log.locate(3)
        assert third is not None
        flip(cluster.disks[name], third.pos + 100)
        lose_units(cluster.disks[name])
        monkeypatch.setattr(PeerRepair, "_fetch", without_the_third)
        with pytest.raises(StorageDamagedError, match="entry 3 bad entry"):
            await cluster.start_one(name)
        monkeypatch.undo()
        await cluster.start_one(name)
        bodies = cluster.machines[name].bodies
        await cluster.until(lambda: len(bodies) == 13)
        assert [body[:6].decode() for body in bodies[3:]] == [f"kept {number}" for number in range(10)]
        await cluster.stop()

    run(scenario())


def test_K3_a_committed_entry_is_fetched_where_the_index_units_are_lost_too() -> None:
    async def scenario() -> None:
        cluster, name = await filled(3)
        place = (log := cluster.nodes[name].log).locate(log.last.index - 1)
        assert place is not None
        await cluster.kill(name)
        flip(cluster.disks[name], place.pos + 100)
        lose_units(cluster.disks[name])
        node = await cluster.start_one(name)
        assert node.recovery.is_clean
        assert cluster.disks[name].files[FIRST] == cluster.disks[(await cluster.leader()).identity.node_id].files[FIRST]
        await cluster.stop()

    run(scenario())


def test_K3_a_damaged_header_names_nothing_where_the_index_units_are_lost() -> None:
    async def scenario() -> None:
        cluster, name = await replaced_tail(12_000, damage_at=10)
        lose_units(cluster.disks[name])
        before = bytes(cluster.disks[name].files[FIRST])
        with pytest.raises(StorageDamagedError, match="no peer could provide the bytes"):
            await cluster.start_one(name)
        assert cluster.disks[name].files[FIRST] == before
        await cluster.stop()

    run(scenario())


def test_K3_peers_with_other_folders_than_those_known_cut_nothing() -> None:
    """They may be a group that began anew with empty disks, and this one the last that has the messages."""

    async def scenario() -> None:
        cluster, name = await replaced_tail(ALONE, damage_at=100)
        disk = cluster.disks[name]
        peers = json.loads(disk.files["peers.json"])
        assert sorted(peers["stores"]) == [other for other in cluster.names if other != name]
        peers["stores"] = {peer: "another folder" for peer in peers["stores"]}
        await disk.write_atomic("peers.json", json.dumps(peers).encode())
        before = {path: bytes(data) for path, data in disk.files.items() if path.startswith("commitlog/")}
        with pytest.raises(StorageDamagedError, match="no peer could provide the bytes"):
            await cluster.start_one(name)
        assert {path: bytes(data) for path, data in disk.files.items() if path.startswith("commitlog/")} == before
        await cluster.stop()

    run(scenario())


def test_K3_an_index_units_word_alone_cuts_nothing() -> None:
    """The damage is in the header, which might have told another term."""

    async def scenario() -> None:
        cluster, name = await replaced_tail(12_000, damage_at=10)
        before = bytes(cluster.disks[name].files[FIRST])
        with pytest.raises(StorageDamagedError, match="no peer could provide the bytes"):
            await cluster.start_one(name)
        assert cluster.disks[name].files[FIRST] == before
        await cluster.stop()

    run(scenario())


async def damaged_leader(segment_bytes: int) -> tuple[Cluster, RaftNode, NodeId, NodeId]:
    """A cluster whose leader has a flipped bit in what it must send: (it, the leader, who lacks 60 entries, who has them)."""
    cluster = Cluster(log=LogConfig(segment_bytes=segment_bytes, fill_window_bytes=0, cache_bytes=1 << 12))
    await cluster.start()
    leader = await cluster.leader()
    late = cluster.followers(leader)[0].identity.node_id
    await cluster.kill(late)
    for number in range(60):
        await leader.propose(Text(f"m{number}", 4000))
    other = next(name for name in cluster.names if name not in (late, leader.identity.node_id))
    await cluster.until(lambda: cluster.nodes[other].commit_index == leader.log.last.index)
    flip(cluster.disks[leader.identity.node_id], 20_000)
    return cluster, leader, late, other


def test_K3_damage_found_while_serving_a_peer_is_repaired_and_the_peer_catches_up() -> None:
    async def scenario() -> None:
        cluster, leader, late, other = await damaged_leader(SEGMENT)
        await cluster.start_one(late)
        await cluster.until(lambda: len(cluster.machines[late].bodies) == 60)
        sound = cluster.disks[other].files[FIRST]
        assert cluster.disks[leader.identity.node_id].files[FIRST] == cluster.disks[late].files[FIRST] == sound
        assert (await cluster.leader()) is leader
        await cluster.stop()

    run(scenario())


def test_K3_damage_in_the_segment_being_written_is_repaired_too_and_the_peer_catches_up() -> None:
    async def scenario() -> None:
        cluster, leader, late, _ = await damaged_leader(1 << 20)
        assert len(leader.log.segments) == 1
        await cluster.start_one(late)
        for number in range(60, 90):
            await leader.propose(Text(f"m{number}", 4000))
        await cluster.until(lambda: len(cluster.machines[late].bodies) == 90)
        assert len({bytes(cluster.disks[name].files[FIRST]) for name in cluster.names}) == 1
        assert (await cluster.leader()) is leader
        await cluster.stop()

    run(scenario())


def test_a_start_that_waits_for_peers_ends_at_once_when_it_is_told_to_stop() -> None:
    async def scenario() -> None:
        cluster, name = await filled(20)
        for other in list(cluster.nodes):
            await cluster.kill(other)
        flip(cluster.disks[name], 20_000)
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        loop.call_later(3.0, told.set_result, None)
        begun_s = loop.time()
        assert not await started(start_alone(cluster, name), told)
        assert loop.time() - begun_s < 3.5
        assert not await started(asyncio.sleep(1000), told), "told before it began"

    async def start_alone(cluster: Cluster, name: NodeId) -> None:
        await cluster.start_one(name)

    run(scenario())


def test_a_start_that_fails_says_why_also_when_it_is_told_to_stop() -> None:
    async def scenario() -> None:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with pytest.raises(StorageDamagedError):
            await started(failing(), told)
        told.set_result(None)
        assert await started(asyncio.sleep(0), asyncio.get_running_loop().create_future())

    async def failing() -> None:
        raise StorageDamagedError("x")

    run(scenario())


def test_K6_damage_that_no_peer_can_put_right_is_in_the_status_until_one_can() -> None:
    async def scenario() -> None:
        cluster, leader, late, other = await damaged_leader(SEGMENT)
        flip(cluster.disks[other], 20_000)
        assert leader.status().damaged == ()
        await cluster.start_one(late)
        (told,) = await cluster.until(lambda: leader.status().damaged)
        assert f"{FIRST}: byte" in told
        assert "entry" in told
        flip(cluster.disks[other], 20_000)
        await cluster.until(lambda: len(cluster.machines[late].bodies) == 60)
        assert leader.status().damaged == ()
        await cluster.stop()

    run(scenario())


def test_K6_the_same_damage_on_every_copy_is_loud_and_nothing_is_dropped() -> None:
    async def scenario() -> None:
        cluster, _name = await filled(30)
        for other in cluster.names:
            await cluster.kill(other)
            flip(cluster.disks[other], 20_000)
        before = {other: bytes(cluster.disks[other].files[FIRST]) for other in cluster.names}
        results = await asyncio.gather(*(cluster.start_one(other) for other in cluster.names), return_exceptions=True)
        for result in results:
            assert isinstance(result, StorageDamagedError)
            assert "00000000000000000000" in str(result.details["file"])
            assert result.details["index"] == "7"
        assert {other: bytes(cluster.disks[other].files[FIRST]) for other in cluster.names} == before

    run(scenario())


def test_S20_damage_in_what_the_others_have_deleted_is_called_that(caplog: pytest.LogCaptureFixture) -> None:
    """They have no bytes for it; that it was never committed would be another thing, for which it would be cut."""

    async def scenario() -> None:
        cluster, name = await filled()
        await cluster.kill(name)
        for node in cluster.nodes.values():
            await cluster.machines[node.identity.node_id].save()
            assert await node.truncate_head(node.commit_index) > 16
        flip(cluster.disks[name], 20_000)
        with pytest.raises(StorageDamagedError, match="no peer could provide the bytes; replace this node as a member"):
            await cluster.start_one(name)
        await cluster.stop()

    with caplog.at_level(logging.INFO):
        run(scenario())
    told = [record.message for record in caplog.records if "cannot provide entry" in record.message]
    assert told
    assert all("was deleted here with the head of the log, which begins at" in message for message in told)


def test_K3_a_lost_file_is_not_taken_for_an_empty_one() -> None:
    async def scenario() -> None:
        cluster, name = await filled(30)
        await cluster.kill(name)
        del cluster.disks[name].files[FIRST]
        with pytest.raises(StorageDamagedError, match="the file is gone"):
            await cluster.start_one(name)
        await (await cluster.leader()).propose(Text("the others go on"))

    run(scenario())


def test_N15_a_peer_of_another_cluster_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start(*cluster.names[:2])
        leader = await cluster.leader()
        stranger = await cluster.start_one(cluster.names[2], cluster="another")
        await leader.propose(Text("x"))
        await asyncio.sleep(5)
        assert (stranger.leader, stranger.log.last.index) == (None, 0)
        assert leader.role is Role.LEADER
        await cluster.stop()

    run(scenario())
    assert any("cluster: expected" in record.message for record in caplog.records)


@pytest.mark.parametrize("file", ["lost", "unreadable"])
@pytest.mark.parametrize("damaged", [False, True], ids=["the log is whole", "its entry is damaged, too"])
def test_a_start_finds_the_membership_without_its_file(file: str, damaged: bool) -> None:
    async def scenario() -> None:
        cluster, name = await filled(log=LogConfig(segment_bytes=SEGMENT, fill_window_bytes=0, verify_bytes=10_000))
        leader = await cluster.leader()
        membership = leader.membership
        await cluster.kill(name)
        disk = cluster.disks[name]
        if file == "lost":
            disk.files.pop(PATH, None)
        else:
            disk.files.setdefault(PATH, bytearray(b"{}"))
            break_sector(disk, 0, PATH)
        if damaged:
            places = [leader.log.locate(index) for index in range(1, leader.log.last.index + 1)]
            flip(disk, *(place.end_pos - 3 for place in places if place is not None and place.kind is EntryKind.CONFIG))
        node = await cluster.start_one(name)
        assert node.membership == membership
        await leader.propose(Text("after"))
        await cluster.until(lambda: len(cluster.machines[name].bodies) == 61)
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("earlier", [0, 3], ids=["checked by the start", "read later"])
def test_K3_a_header_that_a_start_took_as_it_stood_does_not_stop_the_entries_behind_it(earlier: int) -> None:
    """The first entry that is applied is whole, and what it follows is damaged: that one is applied, so no read would ever find it."""

    async def scenario() -> None:
        checked_bytes = 10_000
        cluster, name = await filled(log=LogConfig(segment_bytes=SEGMENT, fill_window_bytes=0, verify_bytes=checked_bytes))
        log = cluster.nodes[name].log
        await cluster.until(lambda: log.durable == log.last)
        (last,) = [log.locate(log.last.index)]
        assert last is not None
        places = [place for index in range(1, log.last.index + 1) if (place := log.locate(index)) is not None]
        before = [place for place in places if place.pos < last.end_pos - checked_bytes][-1 - earlier]
        applied = [place for place in places if place.index <= before.index and place.kind is EntryKind.NORMAL]
        segment = max(each.start_pos for each in log.segments if each.start_pos <= before.pos)
        bodies = [body.hex() for body in cluster.machines[name].bodies[: len(applied)]]
        await cluster.nodes[name].stop(hand_over=False)
        await cluster.kill(name)
        disk = cluster.disks[name]
        disk.files[Recorder.STATE] = bytearray(json.dumps({"index": before.index, "bodies": bodies}).encode())
        flip(disk, before.pos - segment + CHAIN_CRC_AT, path=log_path(segment))
        node = await cluster.start_one(name)
        await cluster.until(lambda: len(cluster.machines[name].bodies) == 60, "applied")
        assert not node.status().damaged
        await cluster.stop()

    run(scenario())
