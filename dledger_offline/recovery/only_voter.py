"""A replica group whose majority is lost for good goes on with what one node has: that node becomes the only voter.

Owns the look at the stopped node's folder and the order of the steps.  Raft cannot allow this: entries that only the lost nodes had
acknowledged are gone, and those that the node has without knowing whether they were committed become so.  The node begins a lineage
(``dledger/membership/lineage.py``) and its store id changes, so that lost members that come back are refused, and refuse it.

A crash in between leaves a folder that does not vote for the old members any more; the command is given again.
"""

from __future__ import annotations

import os
import pwd
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from broker.config.cluster_file import ClusterConfig, NodeSettings
from broker.config.layer_settings import raft_settings_of
from broker.membership.spare_binding import bound_settings, read_binding
from broker.process.data_dir_lock import DataFolderLock
from broker.process.folder_formats import refuse_newer_files
from broker.process.identity import IDENTITY_FILE, RESTORING_MARK, FolderIdentity, own_identity, write_identity
from dledger.core.state import DrawSource
from dledger.core.types import EntryId, Membership, NodeId
from dledger.log.config import LogConfig
from dledger.log.log import Log
from dledger.membership.configuration import Configuration
from dledger.membership.configuration_file import PATH as CONFIGURATION_PATH
from dledger.membership.configuration_file import ConfigurationFile
from dledger.replica.unsynced import PATH as UNSYNCED_PATH
from dledger.runtime.env import Disk
from dledger.runtime.folders import LOG_FOLDER, SNAPSHOT_FOLDER
from dledger.runtime.real_disk import RealDisk
from dledger.snapshot import install
from dledger_offline.recovery.new_members import append_members, begin_lineage
from dledger_wire.clock import SystemClock
from dledger_wire.errors import ConfigError, DataDirectoryError, StorageDamagedError

_SECRET = secrets.SystemRandom()


@dataclass(frozen=True, slots=True)
class Survivor:
    """A stopped node and what it has.  ``last`` is compared by term, then index: of several survivors the greatest one has the most."""

    disk: Disk
    log: LogConfig
    settings: NodeSettings
    identity: FolderIdentity
    last: EntryId
    chain_crc: int
    configuration: Configuration

    @property
    def node_id(self) -> NodeId:
        return NodeId(self.settings.node.id)

    @property
    def others(self) -> tuple[NodeId, ...]:
        """The members that it goes on without."""
        return tuple(member for member in self.configuration.members if member != self.node_id)


async def recover(cluster: ClusterConfig, node_id: str, data: str | Path) -> EntryId:
    """Let a replica group that lost its majority for good go on with one stopped node, which becomes its only voter.

    Entries that only the lost nodes had acknowledged are gone.  Of several survivors, ``look_at`` each first and choose the one with the
    greatest ``last``.

    Args:
        cluster: The cluster file, in which all other nodes of the group have ``spare: true``.
        data: Folder above the node's, which is ``data/NODE_ID``.

    Returns:
        The last entry of the log, which names the new member.

    Raises:
        DataDirectoryError: The node runs, or its folder is not one that can go on.
        StorageDamagedError: Its log is damaged.
        ConfigError: The cluster file does not have the node, or other nodes would begin a group of their own.
    """
    cluster.addresses_of(node_id)
    folder = Path(data) / node_id
    with locked(folder):
        survivor = await look_at(cluster, node_id, folder)
        check_others_wait(cluster, survivor)
        return await make_only_voter(survivor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """No node starts in the folder meanwhile; DataDirectoryError when one runs."""
    lock = DataFolderLock(str(folder))
    if folder.is_dir():  # else there is no node to lock out
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


async def look_at(cluster: ClusterConfig, node_id: str, folder: Path) -> Survivor:
    """What the node has.  DataDirectoryError or StorageDamagedError when its group cannot go on with that.

    As at a start, an incomplete last write is cut off, and a copy of the log that had come whole takes its place.
    """
    _check_owner(folder)
    return await look_at_disk(cluster, node_id, RealDisk(str(folder), direct_folders=(LOG_FOLDER, SNAPSHOT_FOLDER)))


async def look_at_disk(cluster: ClusterConfig, node_id: str, disk: Disk, config: LogConfig | None = None) -> Survivor:
    """``look_at`` of a folder that this process may read; ``config``: of its log, where that does not follow from the cluster file."""
    folder = disk.local_path("")
    await refuse_newer_files(disk)
    names = await disk.list("")
    if RESTORING_MARK in names or IDENTITY_FILE not in names:
        raise DataDirectoryError(f"{folder} is not the folder of a node; expected --data with the folder above it")
    settings = await _settings_of(cluster, node_id, disk)
    identity = await own_identity(disk, cluster.cluster, settings.group.name, node_id)
    await install.finish(disk, CONFIGURATION_PATH)
    config = config or LogConfig(segment_bytes=settings.cluster.store.mappedFileSizeCommitLog, fill_window_bytes=0)
    log, report = await Log.open(disk, config)
    try:
        if report.damaged:
            first = report.damaged[0]
            text = f"{first}; no other node can repair it: use another survivor, or restore a backup"
            raise StorageDamagedError(text, file=first.file, pos=first.pos, index=first.index)
        found = await ConfigurationFile(disk).find_all(log, 0)
        configuration = found[-1][1] if found else _of_file(settings)
        if node_id not in configuration.members:
            raise DataDirectoryError(f"{folder}: node {node_id} was removed from replica group {settings.group.name}")
        if not log.last.index:
            raise DataDirectoryError(f"{folder}: the log is empty; start with an empty folder")
        return Survivor(disk, config, settings, identity, log.last, log.chain_crc, configuration)
    finally:
        await log.close()


def check_others_wait(cluster: ClusterConfig, survivor: Survivor) -> None:
    """ConfigError when others of the group, with empty folders, would take each other for the members that a new group begins with."""
    node_id, name = survivor.node_id, survivor.identity.group
    nodes = [node for group in cluster.groups if group.name == name for node in group.nodes]
    others = ", ".join(node.id for node in nodes if node.id != node_id and not node.spare)
    if others:
        text = f"{cluster.file}: with empty folders {others} would begin a replica group {name} of their own"
        move = "" if cluster.spare(node_id) is None else f"list {node_id} among its nodes, not in spares, "
        raise ConfigError(f"{text}: {move}give every node of it but {node_id} spare: true there, and start the nodes with that file")


async def make_only_voter(survivor: Survivor, draws: DrawSource = _SECRET, now_ms: int | None = None) -> EntryId:
    """Let the group of a node that was looked at consist of it alone; the log's last entry then."""
    disk, node_id = survivor.disk, survivor.node_id
    now_ms = SystemClock().wall_ms() if now_ms is None else now_ms
    store_id, lineage = f"{draws.getrandbits(128):032x}", f"{draws.getrandbits(128):032x}"
    membership = Membership((node_id,)).with_stores({node_id: store_id})
    configuration = Configuration(membership, {node_id: survivor.configuration.addresses[node_id]})
    end = survivor.last, survivor.chain_crc
    term = await begin_lineage(disk, lineage, survivor.last.term, log_is_empty=False)
    last = await append_members(disk, survivor.log, end, term, configuration, at_ms=now_ms)
    await write_identity(disk, replace(survivor.identity, store_id=store_id))
    if await disk.exists(UNSYNCED_PATH):  # it would wait for what it may have lost
        await disk.remove(UNSYNCED_PATH)
    return last


def _check_owner(folder: Path) -> None:
    """DataDirectoryError unless the folder is there, and this process's user's: the node could not read what another one writes."""
    if not folder.is_dir():
        raise DataDirectoryError(f"{folder}: no such folder; expected --data with the folder above the node's")
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = str(owner)
        raise DataDirectoryError(f"{folder} belongs to user {name}; expected that user to give this command (sudo -u {name} ...)")


async def _settings_of(cluster: ClusterConfig, node_id: str, disk: Disk) -> NodeSettings:
    spare = cluster.spare(node_id)
    if spare is None:
        return cluster.node(node_id)
    binding = await read_binding(disk)
    if binding is None:
        raise DataDirectoryError(f"{disk.local_path('')}: spare node {node_id} belongs to no replica group yet")
    return bound_settings(cluster, spare, binding)


def _of_file(settings: NodeSettings) -> Configuration:
    """A group whose log has no members yet: as the cluster file says."""
    membership = raft_settings_of(settings).membership
    return Configuration(membership, {member: settings.peers[member] for member in membership.members})
