"""Restoring: which backup, which nodes, up to where; then the folders, all of them or none left half done.

Owns the order: everything is checked before the first byte, and all folders are marked before the first one is made.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker.config.cluster_file import ClusterConfig, NodeSettings
from broker.process.private_folder import UMASK
from dledger_offline.backup.manifest import Manifest
from dledger_offline.backup.node_folder import NodeFolder, check_empty, check_settings, mark
from dledger_offline.backup.point import Point, backup_for, end_of, point_at, time_text, with_true_times
from dledger_offline.backup.repository import Repository, found_repository
from dledger_wire.errors import ConfigError, InvalidArgumentError


@dataclass(frozen=True, slots=True)
class RestoredNode:
    """One data folder that was made.  ``point``: the last entry that it has, and when that was stored."""

    id: str
    group: str
    folder: Path
    point: Point


@dataclass(frozen=True, slots=True)
class Restored:
    """``backup``: the one that was restored.  ``empty_groups``: replica groups of the cluster file that it does not have."""

    backup: Manifest
    nodes: list[RestoredNode]
    empty_groups: list[str]


def _ignore(_line: str) -> None:
    """Nothing is reported."""


async def restore(
    source: str,
    cluster: ClusterConfig,
    data: str | Path,
    *,
    node_id: str = "",
    backup_id: str = "",
    at_ms: int = 0,
    on_bytes: Callable[[str, int], None] = lambda _node, _size: None,
    note: Callable[[str], None] = _ignore,
) -> Restored:
    """Create data folders of a new cluster from a backup; its nodes can be started then.

    Args:
        source: Folder or URL of the backups.
        cluster: The file of the new cluster.  Its replica groups have the names of those in the backup.
        data: Node ID gets the folder ``data/ID``, which must be empty or missing.
        node_id: Only this node; empty: all nodes whose replica group is in the backup.
        backup_id: Empty: the newest backup, if it has all replica groups.
        at_ms: State as of this time, in milliseconds since 1970 (UTC), without what was stored later; 0: all of the backup.
        on_bytes: Gets a node's id and the bytes that were written since the last call.
        note: Gets a line for each damaged backup that was skipped, and for nodes that are not restored when this fails.

    With a block ``security`` in the cluster file, the umask of the process is 077 while this runs.

    Raises:
        InvalidArgumentError: No such backup, or none that reaches back to that time.
        ConfigError: The cluster file has no place for a replica group of the backup, or settings that cannot read it.
        DataDirectoryError: A folder is not empty.
        StorageDamagedError: A file of the backup is damaged.
        StorageFullError: The disk is full.  No folder that was begun is left.
    """
    repository = found_repository(source)
    manifests = _readable(repository, note) if at_ms else []
    names = {cluster.node(node_id).group.name} if node_id else {group.name for group in cluster.groups}
    manifest = _manifest(repository, manifests, names, backup_id, at_ms, note)
    nodes = _nodes(cluster, node_id, manifest)
    points = _points(repository, manifests, manifest, sorted({node.group.name for node in nodes}), at_ms)
    for node in nodes:  # all of them before the first byte
        check_settings(node, points[node.group.name])
        check_empty(Path(data) / node.node.id)
    with _private(Path(data)) if cluster.security is not None else _as_it_is():
        made = await _Folders(repository, manifest, points, Path(data), on_bytes, note).make(nodes)
    return Restored(manifest, made, sorted({group.name for group in cluster.groups} - manifest.groups.keys()))


@contextmanager
def _private(data: Path) -> Iterator[None]:
    """What is made meanwhile is for this user alone, as a node of a secured cluster makes it; ``data`` is as it was."""
    data.mkdir(parents=True, exist_ok=True)
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


def _readable(repository: Repository, note: Callable[[str], None] = _ignore) -> list[Manifest]:
    """The backups that a time may be restored from, oldest first; ``note`` gets a line for each damaged one."""
    found = repository.manifests().values()
    for each in found:
        if not isinstance(each, Manifest):
            note(f"skipped: {each.message}")
    return with_true_times([each for each in found if isinstance(each, Manifest)])


def _manifest(
    repository: Repository, manifests: list[Manifest], names: set[str], backup_id: str, at_ms: int, note: Callable[[str], None] = _ignore
) -> Manifest:
    """The backup to restore the replica groups ``names`` from.  Unless it is named, it has each of them of which there is a backup."""
    if not backup_id and at_ms:
        wanted = names & {name for each in manifests for name in each.groups}
        return backup_for(repository, [each for each in manifests if wanted <= each.groups.keys()], at_ms)
    ids = repository.ids()
    if not backup_id and not ids:
        raise InvalidArgumentError(f"{repository.url}: there is no backup yet")
    chosen = backup_id or ids[-1]
    manifest = next((each for each in manifests if each.id == chosen), None) or repository.manifest(chosen)
    if at_ms and not manifest.covers(at_ms):
        raise InvalidArgumentError(f"backup {manifest.id} was begun at {time_text(manifest.created_ms)}, nothing later can be restored")
    if not backup_id and names - manifest.groups.keys():
        _refuse_limited(repository, manifest, names, note)
    return manifest


def _refuse_limited(repository: Repository, newest: Manifest, names: set[str], note: Callable[[str], None]) -> None:
    """InvalidArgumentError when an older backup has a replica group that the newest one, which --replica-group limited, has not."""
    for each in reversed(_readable(repository, note)):
        for name in sorted((names - newest.groups.keys()) & each.groups.keys()):
            text = f"the newest backup {newest.id} has no replica group {name}, backup {each.id} has it; expected --backup"
            raise InvalidArgumentError(f"{repository.url}: {text} with the one to restore (dledger backup --list)")


def _nodes(cluster: ClusterConfig, node_id: str, manifest: Manifest) -> list[NodeSettings]:
    """The nodes whose folders are made.  ConfigError when a replica group of the backup has no place in the new cluster."""
    missing = sorted(manifest.groups.keys() - {group.name for group in cluster.groups})
    if missing:
        text = f"{cluster.file}: no replica group {missing[0]}, which the backup has; topics name their groups, so the names must stay"
        raise ConfigError(text)
    if node_id:
        node = cluster.node(node_id)
        if node.group.name not in manifest.groups:
            raise ConfigError(f"node {node_id}: replica group {node.group.name} is not in the backup; the node starts empty")
        return [node]
    nodes = [cluster.node(node.id) for group, node in cluster.all_nodes() if not node.spare and group.name in manifest.groups]
    return nodes


def _points(repository: Repository, manifests: list[Manifest], manifest: Manifest, groups: list[str], at_ms: int) -> dict[str, Point]:
    if not at_ms:
        return {name: end_of(manifest.groups[name]) for name in groups}
    return {name: point_at(repository, manifests, manifest, name, at_ms) for name in groups}


@dataclass(frozen=True, slots=True)
class _Folders:
    """Makes the folders of nodes."""

    repository: Repository
    manifest: Manifest
    points: dict[str, Point]
    data: Path
    on_bytes: Callable[[str, int], None]
    note: Callable[[str], None]

    async def make(self, nodes: list[NodeSettings]) -> list[RestoredNode]:
        """All of them are marked before the first one is made: nodes that an interrupted restore did not come to must not start empty."""
        made: list[RestoredNode] = []
        folders = [self.data / node.node.id for node in nodes]
        try:
            for folder in folders:
                await mark(folder)
            for node, folder in zip(nodes, folders, strict=True):
                made.append(await self._make_one(node, folder))
        except BaseException:
            await self._leave(folders, len(made))
            raise
        return made

    async def _make_one(self, node: NodeSettings, folder: Path) -> RestoredNode:
        name, point = node.node.id, self.points[node.group.name]
        await NodeFolder(self.repository, point, node, folder, lambda size: self.on_bytes(name, size)).make(self.manifest.id)
        return RestoredNode(name, node.group.name, folder, point)

    async def _leave(self, folders: list[Path], made: int) -> None:
        """After a failure: nothing, when none was made; else a mark in those that were not."""
        left = folders[made:]
        for folder in left:
            if made:
                await mark(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
        if made:
            done, missing = ", ".join(folder.name for folder in folders[:made]), ", ".join(folder.name for folder in left)
            todo = f"remove the folders of these, and repeat the command with --backup {self.manifest.id} and --id for each"
            self.note(f"{done} {'is' if made == 1 else 'are'} restored, {missing} {'is' if len(left) == 1 else 'are'} not: {todo}")
