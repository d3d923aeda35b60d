"""``dledger restore``: data folders of a new cluster from a backup, as of its end or of a time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import run, time_ms
from dledger_cli.help_page import JsonCommand
from dledger_cli.output import clear_progress, json_wanted, note, print_json, print_line, show_progress

if TYPE_CHECKING:
    from dledger_offline.backup.restore import RestoredNode


def register(root: typer.Typer) -> None:
    root.command("restore", cls=JsonCommand)(restore)


def restore(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="Folder or URL of the backups.")],
    config: Annotated[str, typer.Option("--config", "-f", metavar="FILE", help="Cluster file of the new cluster.")],
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="Data folder; a node's files go to DIR/ID, which must be empty.")],
    node_id: Annotated[str, typer.Option("--id", metavar="ID", help="Only this node. Default: all nodes of the cluster file.")] = "",
    backup_id: Annotated[
        str, typer.Option("--backup", metavar="ID", help="Name of the backup. Default: the newest, if it has all groups.")
    ] = "",
    at: Annotated[str, typer.Option("--at", metavar="TIME", help="State as of this time, without messages that were stored later.")] = "",
) -> None:
    """Create data folders of a new cluster from a backup.  Then start its nodes.  The old cluster is not contacted and need not
    exist.

    Restore every node of a replica group from the same backup, to the same time, before the first one starts.
    """
    from broker.config.cluster_file import ClusterConfig
    from dledger_offline.backup import restore as library

    done: Counter[str] = Counter()

    def came(node: str, size: int) -> None:
        done[node] += size
        show_progress(f"{node}: {done[node] >> 20} MiB")

    cluster, at_ms = ClusterConfig.load(config), time_ms(at, "--at")
    work = library.restore(source, cluster, data, node_id=node_id, backup_id=backup_id, at_ms=at_ms, on_bytes=came, note=note)
    restored = run(work)
    clear_progress()
    for name in restored.empty_groups:
        note(f"replica group {name} is not in the backup: it starts empty")
    made = [_row(node) for node in restored.nodes]
    if json_wanted():
        print_json({"backup": restored.backup.id, "cluster": cluster.cluster, "nodes": made})
        return
    for row in made:
        print_line(f"{row['folder']}: node {row['id']} of replica group {row['group']} at entry {row['index']}, {row['stored_at']}")


def _row(node: RestoredNode) -> dict[str, object]:
    from dledger_offline.backup.point import time_text

    point = node.point
    row = {"id": node.id, "group": node.group, "folder": str(node.folder), "index": point.index, "term": point.term}
    replayed_from = point.state.last_index if point.state is not None else 0  # the entry behind which the node replays when it starts
    return row | {"stored_ms": point.stored_ms, "stored_at": time_text(point.stored_ms), "replayed_from": replayed_from}
