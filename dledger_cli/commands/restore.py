"""``dledger restore``: data folders of a new cluster from a backup, as of its end or of a time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import JsonOption, run, time_ms
from dledger_cli.help_page import examples
from dledger_cli.output import clear_progress, note, print_json, print_line, show_progress

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig, NodeSettings
    from dledger_offline.backup.manifest import Manifest
    from dledger_offline.backup.point import Point
    from dledger_offline.backup.repository import Repository

EPILOG = examples(
    "dledger restore --from /backup/orders --config new.yaml --data data",
    "dledger restore --from s3://bucket/orders --at 2026-01-31T12:30:00 --config new.yaml --id n0 --data /var/lib/dledger",
)


def register(root: typer.Typer) -> None:
    root.command("restore", epilog=EPILOG)(restore)


def restore(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="Folder or URL of the backups.")],
    config: Annotated[str, typer.Option("--config", "-f", metavar="FILE", help="Cluster file of the new cluster.")],
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="Data folder; a node's files go to DIR/ID, which must be empty.")],
    node_id: Annotated[str, typer.Option("--id", metavar="ID", help="Only this node. Default: all nodes of the cluster file.")] = "",
    backup_id: Annotated[
        str, typer.Option("--backup", metavar="ID", help="Name of the backup. Default: the newest, if it has all groups.")
    ] = "",
    at: Annotated[str, typer.Option("--at", metavar="TIME", help="State as of this time, without messages that were stored later.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Create data folders of a new cluster from a backup.  Then start its nodes.  The old cluster is not contacted and need not
    exist.

    Restore every node of a replica group from the same backup, to the same time, before the first one starts.
    """
    from broker.config.cluster_file import ClusterConfig
    from dledger_offline.backup.repository import found_repository

    cluster = ClusterConfig.load(config)
    repository = found_repository(source)
    at_ms = time_ms(at, "--at")
    manifests = _readable(repository) if at_ms else []
    names = {cluster.node(node_id).group.name} if node_id else {group.name for group in cluster.groups}
    manifest = _manifest(repository, manifests, names, backup_id, at_ms)
    nodes = _nodes(cluster, node_id, manifest, config)
    points = _points(repository, manifests, manifest, sorted({node.group.name for node in nodes}), at_ms)
    for node in nodes:  # all of them before the first byte
        _check_node(points[node.group.name], node, Path(data) / node.node.id)
    if cluster.security is not None:
        _make_private(data)
    made = _restore_nodes(repository, manifest, points, nodes, Path(data))
    left_out = sorted({group.name for group in cluster.groups} - manifest.groups.keys())
    for name in left_out:
        note(f"replica group {name} is not in the backup: it starts empty")
    if as_json:
        print_json({"backup": manifest.id, "cluster": cluster.cluster, "nodes": made})
        return
    for row in made:
        print_line(f"{row['folder']}: node {row['id']} of replica group {row['group']} at entry {row['index']}, {row['stored_at']}")


def _make_private(data: str) -> None:
    """What is made from now on is for the user alone who makes it, as a node of a secured cluster makes it; ``data`` is as it was."""
    from broker.process.private_folder import UMASK

    Path(data).mkdir(parents=True, exist_ok=True)
    os.umask(UMASK)


def _readable(repository: Repository) -> list[Manifest]:
    """The backups that a time may be restored from, oldest first; a line on stderr for each damaged one."""
    from dledger_offline.backup.manifest import Manifest
    from dledger_offline.backup.point import with_true_times

    found = repository.manifests().values()
    for each in found:
        if not isinstance(each, Manifest):
            note(f"skipped: {each.message}")
    return with_true_times([each for each in found if isinstance(each, Manifest)])


def _manifest(repository: Repository, manifests: list[Manifest], names: set[str], backup_id: str, at_ms: int) -> Manifest:
    """The backup to restore the replica groups ``names`` from.  Unless it is named, it has each of them of which there is a backup."""
    from dledger_offline.backup.point import backup_for, time_text
    from dledger_wire.errors import InvalidArgumentError

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
        _refuse_limited(repository, manifest, names)
    return manifest


def _refuse_limited(repository: Repository, newest: Manifest, names: set[str]) -> None:
    """InvalidArgumentError when an older backup has a replica group that the newest one, which --replica-group limited, has not."""
    from dledger_wire.errors import InvalidArgumentError

    for each in reversed(_readable(repository)):
        for name in sorted((names - newest.groups.keys()) & each.groups.keys()):
            text = f"the newest backup {newest.id} has no replica group {name}, backup {each.id} has it; expected --backup"
            raise InvalidArgumentError(f"{repository.url}: {text} with the one to restore (dledger backup --list)")


def _nodes(cluster: ClusterConfig, node_id: str, manifest: Manifest, file: str) -> list[NodeSettings]:
    """The nodes whose folders are made.  ConfigError when a replica group of the backup has no place in the new cluster."""
    from dledger_wire.errors import ConfigError

    missing = sorted(manifest.groups.keys() - {group.name for group in cluster.groups})
    if missing:
        text = f"{file}: no replica group {missing[0]}, which the backup has; topics name their groups, so the names must stay"
        raise ConfigError(text)
    if node_id:
        node = cluster.node(node_id)
        if node.group.name not in manifest.groups:
            raise ConfigError(f"node {node_id}: replica group {node.group.name} is not in the backup; the node starts empty")
        return [node]
    nodes = [cluster.node(node.id) for group, node in cluster.all_nodes() if not node.spare and group.name in manifest.groups]
    return nodes


def _points(repository: Repository, manifests: list[Manifest], manifest: Manifest, groups: list[str], at_ms: int) -> dict[str, Point]:
    from dledger_offline.backup.point import end_of, point_at

    if not at_ms:
        return {name: end_of(manifest.groups[name]) for name in groups}
    return {name: point_at(repository, manifests, manifest, name, at_ms) for name in groups}


def _check_node(point: Point, node: NodeSettings, folder: Path) -> None:
    from dledger_offline.backup.node_folder import check_empty, check_settings

    check_settings(node, point)
    check_empty(folder)


def _restore_nodes(
    repository: Repository, manifest: Manifest, points: dict[str, Point], nodes: list[NodeSettings], data: Path
) -> list[dict[str, object]]:
    """All of them are marked before the first one is made: nodes that an interrupted restore did not come to must not start empty."""
    from dledger_offline.backup.node_folder import mark

    made: list[dict[str, object]] = []
    folders = [data / node.node.id for node in nodes]
    try:
        for folder in folders:
            run(mark(folder))
        for node, folder in zip(nodes, folders, strict=True):
            made.append(_restore_node(repository, manifest, points[node.group.name], node, folder))
    except BaseException:
        left = folders[len(made) :]
        for folder in left:
            if made:
                run(mark(folder))
            else:
                shutil.rmtree(folder, ignore_errors=True)
        if made:
            done, missing = ", ".join(folder.name for folder in folders[: len(made)]), ", ".join(folder.name for folder in left)
            todo = f"remove the folders of these, and repeat the command with --backup {manifest.id} and --id for each"
            note(f"{done} {'is' if len(made) == 1 else 'are'} restored, {missing} {'is' if len(left) == 1 else 'are'} not: {todo}")
        raise
    return made


def _restore_node(repository: Repository, manifest: Manifest, point: Point, node: NodeSettings, folder: Path) -> dict[str, object]:
    from dledger_offline.backup.node_folder import NodeFolder
    from dledger_offline.backup.point import time_text

    done = 0

    def came(size: int) -> None:
        nonlocal done
        done += size
        show_progress(f"{node.node.id}: {done >> 20} MiB")

    run(NodeFolder(repository, point, node, folder, came).make(manifest.id))
    clear_progress()
    row = {"id": node.node.id, "group": node.group.name, "folder": str(folder), "index": point.index, "term": point.term}
    return row | {"stored_ms": point.stored_ms, "stored_at": time_text(point.stored_ms), "replayed_from": _replayed_from(point)}


def _replayed_from(point: Point) -> int:
    """The entry behind which the node replays when it starts."""
    return point.state.last_index if point.state is not None else 0
