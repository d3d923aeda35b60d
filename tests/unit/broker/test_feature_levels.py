"""Feature levels: raised once every member can, kept over restarts and copies, and refused to builds that cannot do them.

The build of the next release is played by this one with a range of its own (``tests/levels.py``), which is that of simulated nodes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from broker.process.identity import IDENTITY_FILE
from dledger.core.types import NodeId
from dledger.membership.boot_history import BootHistory
from dledger.membership.feature_levels import FeatureLevels, GroupLevel, refuses_build_of
from dledger.membership.handshake import Handshake, decode
from dledger_wire.batches.batch import encode_command
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError, NotReadyError
from dledger_wire.feature_levels import LEVELS, MAX_LEVEL, MIN_LEVEL, THIS_BUILD, LevelRange
from store.commands.feature_level import RaiseFeatureLevel
from store.commands.replica_group import SetReplicaGroup
from store.durability.snapshots import APPLIED, config_path
from store.state.feature_level import FeatureLevelState
from tests.levels import NEXT_BUILD, next_level
from tests.sim.test_runs import quiet
from tests.unit.client.sim_rig import Rig, until
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import TINY, StoreRig, run
from tests.unit.store.test_command_format import Raw
from tests.unit.store.test_store_recovery import fill, settled

__all__ = ["next_level", "quiet"]

pytestmark = pytest.mark.usefixtures("next_level")

NODES = (NodeId("n0"), NodeId("n1"), NodeId("n2"))


def content(rig: Rig, node_id: str, path: str) -> bytes:
    return rig.cluster.hosts[node_id].disk.names[path].current.whole()


def identity(rig: Rig, node_id: str) -> dict[str, Any]:
    return dict(json.loads(content(rig, node_id, IDENTITY_FILE)))


async def exchange(rig: Rig, node_id: str, levels: LevelRange) -> None:
    """Stop a node in order, and start another build on its folder."""
    await rig.cluster.stop(node_id)
    await until(lambda: rig.cluster.master() is not None)
    rig.cluster.hosts[node_id].levels = levels
    rig.cluster.start(node_id)


async def ended(rig: Rig, node_id: str) -> BaseException:
    """Why a node stopped by itself; it is no problem of the run."""
    host = rig.cluster.hosts[node_id]
    await until(lambda: bool(host.problems))
    reason = host.problems.pop()
    rig.cluster.kill(node_id)
    return reason


async def stamped(rig: Rig, *node_ids: str) -> None:
    await until(lambda: all(identity(rig, node_id)["feature_level"] == 1 for node_id in node_ids))


def test_the_level_rises_when_every_member_can_and_not_before() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 10)
        victim = rig.followers[0]
        await exchange(rig, victim, THIS_BUILD)
        await settled(rig)
        async with rig.admin() as admin:
            found = (await admin.upgrade_check()).groups[0]
            assert (found.level, found.can_rise_to, found.problems) == (0, 0, ())
            with pytest.raises(NotReadyError, match=f"stays at feature level 0: {victim} .* can do levels 0 to 0 only"):
                await admin.finish_upgrade()
            rig.cluster.kill(victim)
            await until(lambda: rig.cluster.master() is not None)
            with pytest.raises(NotReadyError, match=f"{victim} is away, and what its build can do is not known"):
                await admin.finish_upgrade(level=1)
            rig.cluster.hosts[victim].levels = NEXT_BUILD
            rig.cluster.start(victim)
            await settled(rig)
            found = (await admin.upgrade_check()).groups[0]
            assert (found.can_rise_to, found.waits_for, len(found.switches_on)) == (1, (), 1)
            (raised,) = await admin.finish_upgrade()
            assert (raised.old_level, raised.level, raised.release) == (0, 1, "0.2.0")
            (again,) = await admin.finish_upgrade()
            assert (again.old_level, again.level) == (1, 1)
            await stamped(rig, *NODES)
            assert {(identity(rig, node)["feature_level"], identity(rig, node)["release"]) for node in NODES} == {(1, "0.2.0")}
            with pytest.raises(NotReadyError, match=r"stays at feature level 1: .* can do levels 0 to 1 only"):
                await admin.finish_upgrade(level=2)

    Rig(31).run(scenario)


def test_the_level_outlives_restarts_and_its_snapshots_name_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin:
            await admin.finish_upgrade()
            await stamped(rig, *NODES)
            for node_id in NODES:
                await exchange(rig, node_id, NEXT_BUILD)
                await settled(rig)
                assert content(rig, node_id, config_path(APPLIED)).partition(b"\n")[2].startswith(b'{"format":1,')
                node = rig.cluster.hosts[node_id].node
                assert node is not None
                assert node.store.feature_level.now.level == 1
            await fill(rig, 0, 10)
            assert [node.feature_level for node in await admin.status()] == [1, 1, 1]

    Rig(32).run(scenario)


def test_a_build_that_cannot_do_the_level_does_not_start_on_the_folder() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin:
            await admin.finish_upgrade()
        await stamped(rig, *NODES)
        victim = rig.followers[0]
        await exchange(rig, victim, THIS_BUILD)
        reason = await ended(rig, victim)
        assert isinstance(reason, DataDirectoryError)
        text = "this build can do feature levels 0 to 0, and the replica group is at 1: start dledger 0.2.0 or newer"
        assert reason.message.startswith("data folder ")
        assert reason.message.endswith(text)
        await fill(rig, 0, 10)
        await exchange(rig, victim, NEXT_BUILD)
        await settled(rig)

    Rig(33).run(scenario)


def test_an_older_build_on_an_empty_folder_is_refused_by_its_peers_and_stops() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        victim = rig.followers[0]
        async with rig.admin() as admin:
            await admin.finish_upgrade()
            await stamped(rig, *NODES)
            await admin.remove_member(victim)
        rig.cluster.wipe(victim)
        rig.cluster.hosts[victim].levels = THIS_BUILD
        rig.cluster.start(victim)
        reason = await ended(rig, victim)
        assert isinstance(reason, DataDirectoryError)
        text = "can do feature levels 0 to 0, and the replica group is at 1: start dledger 0.2.0 or newer"
        assert reason.message.startswith(victim)
        assert text in reason.message
        await fill(rig, 0, 10)

    Rig(34).run(scenario)


def said(levels: LevelRange, group_level: int = 0, group_release: str = "") -> Handshake:
    return Handshake("s", 0, 0, 0, BootHistory(), levels, group_level, group_release, "0.9")


def test_a_peer_is_refused_by_name_with_the_release_it_needs() -> None:
    levels = FeatureLevels(LevelRange(1, 3), "0.4.0", lambda: GroupLevel(3, "0.4.0"))
    levels.check(NODES[1], said(LevelRange(2, 5)))
    with pytest.raises(InvalidArgumentError) as caught:
        levels.check(NODES[1], said(LevelRange(0, 2)))
    text = "n1 (0.9) can do feature levels 0 to 2, and the replica group is at 3: start dledger 0.4.0 or newer"
    assert caught.value.message == text
    assert refuses_build_of(caught.value, NODES[1])
    assert not refuses_build_of(caught.value, NODES[0])
    with pytest.raises(InvalidArgumentError, match="at 3: start a release that can do level 3, and raise the level with it first"):
        levels.check(NODES[1], said(LevelRange(4, 5)))


def test_a_node_takes_its_peers_word_for_a_level_that_it_cannot_do() -> None:
    levels = FeatureLevels(NEXT_BUILD, "0.2.0", lambda: GroupLevel(1, "0.2.0"))
    levels.check_own(NODES[0], said(LevelRange(0, 9), 1, "0.2.0"))
    with pytest.raises(DataDirectoryError, match=r"n0 \(0.2.0\) can do .* the replica group is at 2: start dledger 0.4.0 or newer"):
        levels.check_own(NODES[0], said(LevelRange(0, 9), 2, "0.4.0"))


def test_levels_travel_in_the_handshake() -> None:
    told = said(LevelRange(1, 4), 2, "0.4.0")
    assert decode(told.encode(NODES[0])) == (NODES[0], told)


def test_a_level_this_build_cannot_do_stops_the_replica_at_the_command_and_at_the_snapshot() -> None:
    text = "this build can do feature levels 0 to 0, and the replica group is at 1: start dledger 0.2.0 or newer"

    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        rig.promise()
        command = RaiseFeatureLevel(level=1, release="0.2.0")
        rig.append(rig.store.command(command))
        with pytest.raises(DataDirectoryError, match=text):
            await rig.commit()
        await rig.log.close()

    run(scenario)
    with pytest.raises(DataDirectoryError, match=text):
        FeatureLevelState().load({"level": 1, "release": "0.2.0", "since_ms": 1})


def test_a_command_that_a_replica_does_not_know_stops_it() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        rig.promise()
        rig.append(Raw(encode_command("grow_wings", {})))
        with pytest.raises(DataDirectoryError, match="entry 1 of the log: unknown command 'grow_wings': it is of a newer release"):
            await rig.commit()
        await rig.log.close()

    run(scenario)


def test_a_command_is_proposed_from_its_level_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk(), replace(TINY, levels=NEXT_BUILD))
        rig.promise()
        monkeypatch.setattr(SetReplicaGroup, "LEVEL", 1)
        with pytest.raises(NotReadyError, match="replica_group needs feature level 1, the replica group is at 0: upgrade all nodes"):
            rig.store.command(SetReplicaGroup(voters=3))
        await rig.command(RaiseFeatureLevel(level=1, release="0.2.0"))
        assert (await rig.command(SetReplicaGroup(voters=3))).voters == 3
        with pytest.raises(InvalidArgumentError, match="is at feature level 1; expected a higher one than 1"):
            await rig.command(RaiseFeatureLevel(level=1, release="0.2.0"))
        await rig.close()

    run(scenario)


def test_the_table_of_levels_is_whole() -> None:
    assert [each.number for each in LEVELS] == list(range(MAX_LEVEL + 1))
    assert MIN_LEVEL <= MAX_LEVEL
    assert all(each.release and each.switches_on for each in LEVELS)
