"""Opening a replica's data folder: every asynchronous step before its parts are wired together.

Owns the order of these steps, and the teardown when one fails: the log is closed again, nothing else is left open.  The order matters:
the mark of unsynced data is read before the log is opened and removed only after that, an interrupted snapshot install is finished before
anything of the folder is opened, and the state machine recovers before the core learns what is applied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from dledger.core.raft import Raft
from dledger.log.log import Log
from dledger.log.report import RecoveryReport
from dledger.measures import RaftMeasures
from dledger.membership.boot_history import BootHistory, record_boot
from dledger.membership.configuration_file import PATH as CONFIGURATION_PATH
from dledger.membership.configuration_file import ConfigurationFile
from dledger.membership.lineage import Lineage
from dledger.membership.members import Members
from dledger.membership.peer_stores import PeerStores
from dledger.repair import PeerRepair
from dledger.replica.applier import StateMachine
from dledger.replica.core_view import CoreLogView, saved_of
from dledger.replica.unsynced import UnsyncedMark
from dledger.runtime.env import Environment
from dledger.runtime.folders import SNAPSHOT_FOLDER
from dledger.settings import RaftSettings
from dledger.snapshot import install
from dledger.transport.link import NodeIdentity
from dledger_wire.errors import DataDirectoryError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetup:
    """What the caller of ``RaftNode.open`` gives."""

    identity: NodeIdentity
    settings: RaftSettings
    env: Environment
    machine: StateMachine
    log_opened: Callable[[Log], Awaitable[None]] | None  # awaited with each log that is opened, before anything is applied from it
    state_paths: Sequence[str]  # files and folders of the state machine
    measures: RaftMeasures = field(default_factory=RaftMeasures)

    async def recover_state(self, log: Log) -> None:
        if self.log_opened is not None:
            await self.log_opened(log)


@dataclass(slots=True, kw_only=True)
class OpenedFolder:
    """A data folder that has been read."""

    unsynced: UnsyncedMark
    unfinished_snapshot: bool
    lineage: Lineage
    stores: PeerStores
    stores_changed: bool
    boots: BootHistory
    members: Members
    configurations: ConfigurationFile
    log: Log
    recovery: RecoveryReport
    view: CoreLogView
    core: Raft


async def open_folder(setup: ReplicaSetup) -> OpenedFolder:
    """Read the folder and build the core.  Raises what is wrong with it; nothing is left open then."""
    env, settings, identity = setup.env, setup.settings, setup.identity
    unsynced = UnsyncedMark(env, (CONFIGURATION_PATH, *setup.state_paths), sync_flush=settings.sync_flush)
    await unsynced.load()
    await install.finish(env.disk, CONFIGURATION_PATH)
    unfinished_snapshot = bool(await env.disk.list(SNAPSHOT_FOLDER))
    stores = PeerStores(env.disk, identity.node_id)
    await stores.load()
    lineage = Lineage(env.disk)
    await lineage.load()
    boots = await record_boot(env.disk, env.random, env.clock.wall_ms())
    members = Members(settings.peers, settings.links)
    repair = peer_repair(setup, members, stores, lineage)
    log, recovery = await open_log(setup, repair)
    try:
        await unsynced.log_opened()
        await setup.recover_state(log)
        configurations, view = ConfigurationFile(env.disk), CoreLogView(log)
        core, stores_changed = await _open_core(setup, log, view, configurations, members, repair, unsynced)
    except BaseException:
        await log.close()
        raise
    return OpenedFolder(
        unsynced=unsynced,
        unfinished_snapshot=unfinished_snapshot,
        lineage=lineage,
        stores=stores,
        stores_changed=stores_changed,
        boots=boots,
        members=members,
        configurations=configurations,
        log=log,
        recovery=recovery,
        view=view,
        core=core,
    )


async def open_log(setup: ReplicaSetup, repair: PeerRepair) -> tuple[Log, RecoveryReport]:
    """The log, repaired from peers if it is damaged."""
    log, recovery = await Log.open(setup.env.disk, setup.settings.log, setup.measures.log)
    if recovery.damaged:
        log, recovery = await repair.run(log, recovery)
    return log, recovery


def peer_repair(setup: ReplicaSetup, members: Members, stores: PeerStores, lineage: Lineage) -> PeerRepair:
    """A repair that asks the peers known now."""
    settings = setup.settings
    return PeerRepair(setup.identity, setup.env, members.links, stores, lineage, settings.log, limit_s=settings.repair_limit_s)


async def _open_core(
    setup: ReplicaSetup,
    log: Log,
    view: CoreLogView,
    configurations: ConfigurationFile,
    members: Members,
    repair: PeerRepair,
    unsynced: UnsyncedMark,
) -> tuple[Raft, bool]:
    """The core, and whether the folders of peers have changed."""
    applied, settings, env, identity = setup.machine.applied_index, setup.settings, setup.env, setup.identity
    if applied > log.last.index:
        raise DataDirectoryError(f"the state machine has applied {applied}, but the log ends at {log.last.index}")
    found, stores_changed = await repair.reading(log, lambda: configurations.find_all(log, applied)), False
    for index, configuration in found:
        members.learn(index, configuration)
        if index <= applied:
            stores_changed |= repair.stores.settle(configuration.membership)
    members.committed(applied)
    saved = replace(saved_of(log, applied, found), settled=configurations.newest[0], suspect=unsynced.suspect, discarded=unsynced.discarded)
    config, now_ms = replace(settings.core, loses_unsynced=not settings.sync_flush), env.clock.monotonic_ms()
    core = Raft(config, identity.node_id, settings.membership, saved, env.random, view, store=identity.store_id, now_ms=now_ms)
    return core, stores_changed
