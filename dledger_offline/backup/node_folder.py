"""The data folder of a new node, made from a backup: its log and state, and its identity from now on.

Owns the order of the steps.  The log and the state get here as a replica's copy does (``dledger/snapshot``): every entry is checked, and
the folder's files are those a node would have written.  Behind the last entry comes a configuration with the members of the new cluster,
in a term that the old one does not reach, and all its folders are of a new lineage.  ``identity.json`` is last.  From before the first
byte until then there is a mark, with which no node starts: what a restore leaves that is killed may have nothing else that tells it from
an empty folder.

Every node of a group gets the same log, whichever machine it is made on: nothing in it is drawn.  The lineage and the store ids follow from
the backup, the point and the members, so that nodes restored from different backups, or to different points, never count for each other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.config.cluster_file import NodeSettings
from broker.config.layer_settings import raft_settings_of, store_settings_of
from broker.process.identity import RESTORING_MARK, FolderIdentity, write_identity
from dledger.core.types import EntryId, NodeId
from dledger.log.config import LogConfig
from dledger.membership.configuration import Configuration
from dledger.membership.configuration_file import PATH as CONFIGURATION_PATH
from dledger.membership.configuration_file import content
from dledger.runtime.env import is_full
from dledger.runtime.folders import LOG_FOLDER, SNAPSHOT_FOLDER
from dledger.runtime.real_disk import RealDisk
from dledger.snapshot import install
from dledger.snapshot.plan import PlanSegment, SnapshotPlan, state_files
from dledger.snapshot.receiver import SnapshotReceiver, received_state_path
from dledger_offline.backup.manifest import GroupBackup
from dledger_offline.backup.point import Point
from dledger_offline.backup.reading import damaged, pieces, state_content
from dledger_offline.backup.repository import Repository
from dledger_offline.recovery.new_members import append_members, begin_lineage
from dledger_wire.errors import ConfigError, CorruptEntryError, DataDirectoryError, StorageFullError
from dledger_wire.formats import IDENTITY
from store.durability.persistence import ABORT_PATH

VERIFIED_AGAIN_BYTES = 16 << 20  # everything was checked as it came


def new_configuration(backup_id: str, point: Point, node: NodeSettings) -> Configuration:
    """The members of the node's group, with the store ids they get."""
    membership = raft_settings_of(node).membership
    addresses = {member: node.peers[member] for member in membership.voters}
    stores = {member: _drawn_from(*_restored_as(backup_id, point, node), member) for member in membership.voters}
    return Configuration(membership.with_stores(stores), addresses)


def new_lineage(backup_id: str, point: Point, node: NodeSettings) -> str:
    """The same for all nodes of the group."""
    return _drawn_from(*_restored_as(backup_id, point, node), [])  # no node id: store ids are drawn with one


def _restored_as(backup_id: str, point: Point, node: NodeSettings) -> tuple[object, ...]:
    """What names the group that the node belongs to from then on."""
    addresses = sorted((member, node.peers[member]) for member in raft_settings_of(node).membership.voters)
    return node.cluster.cluster, node.group.name, backup_id, point.index, point.term, point.chain_crc, addresses


def _drawn_from(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def check_settings(node: NodeSettings, point: Point) -> None:
    """ConfigError when a node with this cluster file could not read what is restored."""
    if node.node.spare:
        raise ConfigError(f"node {node.node.id} is spare: it starts empty and gets the log when it is added")
    wanted, found = store_settings_of(node).queue_file_units, point.state.queue_file_units if point.state is not None else 0
    if found and wanted != found:
        unit = node.cluster.store.mappedFileSizeConsumeQueue // wanted
        raise ConfigError(f"mappedFileSizeConsumeQueue: the backup has files of {found * unit} bytes, expected that in the cluster file")


class NodeFolder:
    """Makes one node's folder; ``progress`` gets the number of bytes that arrived."""

    def __init__(self, repository: Repository, point: Point, node: NodeSettings, folder: Path, progress: Callable[[int], None]) -> None:
        self._repository, self._point, self._node, self._folder, self._progress = repository, point, node, folder, progress
        self._disk = RealDisk(str(folder), direct_folders=(LOG_FOLDER, SNAPSHOT_FOLDER))

    async def make(self, backup_id: str) -> Configuration:
        """All of it, or nothing is left.  DataDirectoryError when there is something already."""
        try:
            configuration = new_configuration(backup_id, self._point, self._node)
            await self._disk.write_atomic(RESTORING_MARK, b"")
            await self._receive()
            await self._begin_anew(configuration, new_lineage(backup_id, self._point, self._node))
            await self._disk.write_atomic(ABORT_PATH, b"")  # as after a crash: queue files and indexes are made by the first start
            own, stores = self._node, dict(configuration.membership.stores)
            identity = FolderIdentity(IDENTITY.current, own.cluster.cluster, own.group.name, own.node.id, stores[NodeId(own.node.id)])
            await write_identity(self._disk, identity)
            await self._disk.remove(RESTORING_MARK)
            return configuration
        except BaseException as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            if isinstance(error, OSError) and is_full(error):
                raise StorageFullError(f"{self._folder}: no space left; nothing was restored there") from error
            raise

    # Log and state, as they were

    async def _receive(self) -> None:
        point, disk = self._point, self._disk
        files = _state_of(self._repository, point.state)
        plan = _plan_of(point, self._node, files)
        needed, free = plan.size_bytes + sum(len(data) for data in files.values()), await disk.free_bytes()
        if free < needed:
            raise StorageFullError(f"{self._folder}: {needed} bytes are needed, the disk has {free} free")
        receiver = SnapshotReceiver(disk, plan)
        try:
            await receiver.resume()
            await self._feed(receiver)
            receiver.check_end()
        finally:
            await receiver.close()
        for number, data in enumerate(files.values()):
            await disk.write_atomic(received_state_path(number), data)
        with _quiet("dledger.snapshot.install"):
            if not await install.decide(disk, install.installation_of(plan, content(0, 0, None))):
                raise StorageFullError(f"{self._folder}: no space left; nothing was restored there")
            await install.finish(disk, CONFIGURATION_PATH)

    async def _feed(self, receiver: SnapshotReceiver) -> None:
        """Hand over the parts up to the point; all of each part is read, so that its checksum is known."""
        for part in self._point.log.parts():
            pos = part.pos
            if pos >= self._point.end_pos:
                break
            try:
                for piece in pieces(self._repository, part):
                    wanted = piece[: max(0, self._point.end_pos - pos)]
                    if wanted:
                        await receiver.take(pos, wanted)
                    pos += len(piece)
                    self._progress(len(piece))
            except CorruptEntryError as error:
                raise damaged(self._repository, part.file, error.message, pos - part.pos) from None

    # What makes it another cluster

    async def _begin_anew(self, configuration: Configuration, lineage: str) -> None:
        point = self._point
        term = await begin_lineage(self._disk, lineage, point.term, log_is_empty=True)
        segment_bytes = self._node.cluster.store.mappedFileSizeCommitLog
        config = LogConfig(segment_bytes=segment_bytes, fill_window_bytes=0, verify_bytes=VERIFIED_AGAIN_BYTES)
        end = EntryId(point.index, point.term), point.chain_crc
        await append_members(self._disk, config, end, term, configuration, at_ms=point.stored_ms)


def _state_of(repository: Repository, state: GroupBackup | None) -> dict[str, bytes]:
    """The files of the state by their paths; none where the log is replayed whole."""
    return {file.path: state_content(repository, file) for file in state.state} if state is not None else {}


def _plan_of(point: Point, node: NodeSettings, files: dict[str, bytes]) -> SnapshotPlan:
    """The backup up to the point, as a replica would offer it for a copy."""
    copied = [each for each in point.log.segments if each.first_index <= point.index]
    segments = [PlanSegment(each.start_pos, each.first_index, each.end_pos) for each in copied]
    last = segments[-1]
    segments[-1] = PlanSegment(last.start_pos, last.first_index, point.end_pos)
    return SnapshotPlan(
        copy_id="restore",
        cluster=node.cluster.cluster,
        group=node.group.name,
        start=point.log.start,
        last=EntryId(point.index, point.term),
        segments=tuple(segments),
        files=state_files(files),
        configuration=None,
        configuration_index=0,
    )


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without the warnings that a running node writes there to its log."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


async def mark(folder: Path) -> None:
    """No node starts on the folder until it is restored."""
    await RealDisk(str(folder)).write_atomic(RESTORING_MARK, b"")


def check_empty(folder: Path) -> None:
    """DataDirectoryError unless the folder is empty, or not there."""
    if folder.is_dir() and any(folder.iterdir()):
        raise DataDirectoryError(f"{folder} is not empty; expected a new folder (remove what an interrupted restore left)")
    if folder.exists() and not folder.is_dir():
        raise DataDirectoryError(f"{folder} is not a folder")
