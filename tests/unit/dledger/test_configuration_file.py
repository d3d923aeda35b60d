"""The newest applied configuration on disk, while a start after a crash applies again what was applied before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dledger.core.types import EntryKind, Membership, NodeId
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.log.segment import units_path
from dledger.membership.configuration import Configuration
from dledger.membership.configuration_file import ConfigurationFile
from dledger.node import RaftNode
from dledger_wire.errors import NotReadyError, StorageDamagedError
from dledger_wire.layout import INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC_CONFIG
from tests.unit.dledger.raft_rig import Cluster, MemoryDisk, Recorder, Text, run

OLDER, NEWER, LAST = 20, 60, 100
SNAPSHOT = 10  # what the state machine has after a start
D = NodeId("d")


def configuration(voters: str, learners: str = "") -> Configuration:
    membership = Membership(tuple(map(NodeId, voters)), tuple(map(NodeId, learners)))
    return Configuration(membership, {member: f"{member}:1" for member in membership.members})


async def logged(disk: MemoryDisk) -> Log:
    """A log with two configurations among other entries."""
    log, _ = await Log.open(disk, LogConfig(segment_bytes=1 << 20, fill_window_bytes=0))
    log.save_hard_state(1, None)
    bodies = {OLDER: configuration("abc", "d").encode(), NEWER: configuration("abcd").encode()}
    for index in range(1, LAST + 1):
        kind = EntryKind.CONFIG if index in bodies else EntryKind.NORMAL
        log.append(log.encode(1, kind, [bodies.get(index, b"x")]))
    await log.flush()
    return log


async def apply(file: ConfigurationFile, log: Log, first: int, last: int) -> None:
    entries = await log.read(first, 1 << 20, last)
    assert entries[-1].index == last
    if file.applied(entries):
        await file.save()


def test_a_replay_stopped_before_the_newest_configuration_leaves_that_one_in_the_file() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        log = await logged(disk)
        first = ConfigurationFile(disk)
        await first.find_all(log, 0)
        await apply(first, log, 1, LAST)
        for stopped_at in (OLDER - 1, OLDER, NEWER - 1, NEWER, LAST):
            file = ConfigurationFile(disk)
            assert (await file.find_all(log, SNAPSHOT))[-1] == (NEWER, configuration("abcd"))
            await apply(file, log, SNAPSHOT + 1, stopped_at)
            await file.save()  # as an orderly stop does
            assert file.newest == (NEWER, configuration("abcd"))
        assert (await ConfigurationFile(disk).find_all(log, SNAPSHOT))[-1] == (NEWER, configuration("abcd"))
        await log.close()

    run(scenario())


def test_a_log_that_ends_before_what_the_file_covers_has_lost_entries() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        log = await logged(disk)
        file = ConfigurationFile(disk)
        await file.find_all(log, 0)
        await apply(file, log, 1, LAST)
        await file.save()
        log.cut(LAST)
        await log.flush()
        with pytest.raises(StorageDamagedError, match=f"configuration.json was made from the log up to entry {LAST}, but the log ends at"):
            await ConfigurationFile(disk).find_all(log, 0)
        await log.close()

    run(scenario())


def test_a_newer_configuration_than_the_one_read_counts_once_it_is_applied() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        log = await logged(disk)
        file = ConfigurationFile(disk)
        await file.find_all(log, 0)
        await apply(file, log, 1, NEWER - 1)
        assert file.newest == (OLDER, configuration("abc", "d"))
        await apply(file, log, NEWER, LAST)
        assert file.newest == (NEWER, configuration("abcd"))
        await log.close()

    run(scenario())


class Halting(Recorder):
    """Applies entry by entry, up to one, and then no further."""

    last = 1 << 62

    async def apply(self, entries: Sequence[RawEntry]) -> None:
        for entry in entries:
            if entry.index > self.last:
                await asyncio.get_running_loop().create_future()
            await super().apply([entry])


async def restarted(cluster: Cluster, name: NodeId, *, applied_to: int) -> RaftNode:
    """A replica stopped in an orderly way, and started with a state machine that applies from the first entry up to this one."""
    await cluster.nodes[name].stop(hand_over=False)
    await cluster.kill(name)
    Halting.last = applied_to
    node = await cluster.start_one(name)
    await cluster.until(lambda: node._replica.applier.applied == min(applied_to, node.commit_index) > 0)
    return node


def test_the_membership_is_the_newest_after_a_replay_that_was_stopped_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.dledger.raft_rig.Recorder", Halting)
    monkeypatch.setattr("dledger.replica.applier.BATCH_BYTES", 0)
    monkeypatch.setattr(Halting, "last", Halting.last)

    async def scenario() -> None:
        cluster = Cluster(4, membership=Membership(tuple(NodeId(f"n{number}") for number in range(3))))
        voters, learner = cluster.names[:3], cluster.names[3]
        await cluster.start(*voters)
        leader = await cluster.leader()
        name, places = cluster.followers(leader)[0].identity.node_id, []
        for learners in ([learner], []):
            await leader.change_members(voters, learners, cluster.addresses, 10)
            places.append(leader.log.last.index)
            await leader.propose(Text("between"))
        applier = cluster.nodes[name]._replica.applier
        await cluster.until(lambda: applier.applied > places[1])
        expected = cluster.nodes[name]._replica.core.membership
        assert learner not in expected

        node = await restarted(cluster, name, applied_to=places[0])
        assert node._replica.core.membership == expected
        with pytest.raises(NotReadyError, match="applying again"):
            await node._replica.capture()
        node = await restarted(cluster, name, applied_to=places[0] + 1)
        assert node._replica.core.membership == expected
        node = await restarted(cluster, name, applied_to=1 << 62)
        assert node._replica.core.membership == expected
        captured = await node._replica.capture()
        assert captured.configuration_index == places[1]
        await cluster.stop()

    run(scenario())


def test_an_index_unit_alone_makes_no_configuration() -> None:
    """Units have no checksum: one whose kind has flipped made a start read a message as a configuration."""

    async def scenario() -> None:
        disk = MemoryDisk()
        await (await logged(disk)).close()
        units, at = disk.files[units_path(0)], (OLDER + 4) * INDEX_UNIT_SIZE
        _kind, *rest = INDEX_UNIT.unpack_from(units, at)
        INDEX_UNIT.pack_into(units, at, MAGIC_CONFIG, *rest)
        disk.synced[units_path(0)] = bytes(units)
        log, report = await Log.open(disk, LogConfig(segment_bytes=1 << 20, fill_window_bytes=0, verify_bytes=0))
        assert report.is_clean
        file = ConfigurationFile(disk)
        assert [index for index, _ in await file.find_all(log, 0)] == [OLDER, NEWER]
        await log.close()

    run(scenario())
