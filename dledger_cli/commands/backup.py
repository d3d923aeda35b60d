"""``dledger backup``: copies of the replica groups, while they serve, into a folder or whatever fsspec reaches."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.connection import connection
from dledger_cli.context import (
    STATUS_DEADLINE_S,
    ask,
    load_config,
    nodes_of,
    parse_size_option,
)
from dledger_cli.help_page import LongCommand
from dledger_cli.output import (
    clear_progress,
    fields_of,
    json_wanted,
    note,
    note_unanswered,
    print_json,
    print_line,
    print_table,
    show_progress,
    unanswered_json,
)
from dledger_cli.removed_groups import removed_among, say_removed

if TYPE_CHECKING:
    from dledger_client.admin.cluster_status import ClusterDescription
    from dledger_client.aio import Admin
    from dledger_offline.backup.cluster import ClusterBackup, Nodes
    from dledger_offline.backup.manifest import GroupBackup
    from dledger_offline.backup.repository import Repository
    from dledger_offline.backup.take import Taken
    from dledger_wire.errors import DledgerError, StorageDamagedError


def register(root: typer.Typer) -> None:
    root.command("backup", cls=LongCommand)(backup)


def backup(
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Folder of the cluster's backups, or a URL that fsspec knows.")],
    groups: Annotated[
        list[str] | None, typer.Option("--replica-group", "-g", metavar="G", help="Only this replica group. May be repeated. Default: all.")
    ] = None,
    from_node: Annotated[
        str, typer.Option("--from-node", metavar="ID", help="Read from this node. Default: a follower, else the leader.")
    ] = "",
    rate: Annotated[
        str, typer.Option("--rate", metavar="SIZE", help="Read at most this much a second. Default: as fast as nodes send.")
    ] = "0",
    keep: Annotated[
        int,
        typer.Option(
            "--keep", metavar="N", min=0, help="Afterwards remove all but the newest N backups of each replica group. Default: none."
        ),
    ] = 0,
    show: Annotated[bool, typer.Option("--list", help="Only list the existing backups.")] = False,
) -> None:
    """Back up all replica groups.  Each backup is consistent within its group.  Requires permission to administer the cluster.

    A further backup to the same place adds only what is new. Backups contain everything, including users.
    """
    from dledger_offline.backup.repository import found_repository

    if show:
        _list(found_repository(to))
        return
    bytes_per_s = parse_size_option(rate, "--rate")
    os.umask(0o077)  # what is in it is not for other users of this machine
    done = _take(to, groups or [], from_node, bytes_per_s)
    manifest, taken, unanswered = done.backup, done.taken, done.unanswered
    removed = _removed(found_repository(to), keep)
    if json_wanted():
        made = {name: _group_json(done.backup) | {"added_bytes": done.added_bytes} for name, done in taken.items()}
        print_json({"backup": manifest.id, "groups": made, "removed": removed} | unanswered_json(unanswered))
    else:
        for name, group in taken.items():
            print_line(_line(manifest.id, name, group))
        if removed:
            print_line(f"removed {len(removed)} backups, the newest of them {removed[-1]}")
    if unanswered:
        missing = " ".join(f"-g {name}" for name in sorted(unanswered))
        note(f"backup {manifest.id} is not of all replica groups; for the rest: dledger backup --to {to} {missing}")
    note_unanswered(unanswered)


def _take(to: str, groups: list[str], from_node: str, bytes_per_s: int) -> ClusterBackup:
    from dledger_offline.backup.cluster import take

    cluster = load_config()
    status_ms = int(min(connection().timeout_s, STATUS_DEADLINE_S) * 1000)
    done: Counter[str] = Counter()

    def came(group: str, size: int) -> None:
        done[group] += size
        show_progress(f"{group}: {done[group] >> 20} MiB")

    async def work(admin: Admin) -> ClusterBackup:
        return await take(
            admin,
            to,
            nodes=partial(all_groups, admin, nodes_of(cluster)),
            groups=groups,
            from_node=from_node,
            bytes_per_s=bytes_per_s,
            status_ms=status_ms,
            on_bytes=came,
            skipped=_left_aside,
        )

    return ask(work)


async def all_groups(admin: Admin, of_file: Nodes, cluster: ClusterDescription) -> Nodes:
    """The nodes of the replica groups that the cluster knows, and of those of the cluster file, which may name some that were removed and
    not yet some that were added."""
    from dledger_offline.backup.cluster import described_nodes

    nodes = {**of_file, **await described_nodes(cluster)}
    removed = await removed_among(admin, nodes)
    say_removed(removed)
    return {name: nodes[name] for name in nodes if name not in removed}


def _left_aside(error: DledgerError) -> None:
    note(f"skipped: {error.message}")


def _removed(repository: Repository, keep: int) -> list[str]:
    from dledger_offline.backup.retention import keep_newest

    clear_progress()

    def left_aside(error: StorageDamagedError) -> None:
        note(f"skipped: {error.message}; while it is there, no data files are removed")

    return keep_newest(repository, keep, left_aside) if keep else []


def _line(backup_id: str, name: str, done: Taken) -> str:
    from broker.config.units import format_size

    backup = done.backup
    size, added = format_size(backup.size_bytes), format_size(done.added_bytes)
    return f"{backup_id} {name}: entry {backup.last_index} of term {backup.last_term} from {backup.node}, {size}, {added} of it new"


def _group_json(backup: GroupBackup) -> dict[str, object]:
    return fields_of(backup, "node", "first_index", "end_pos", "stored_ms", "size_bytes", index="last_index", term="last_term")


def _list(repository: Repository) -> None:
    from broker.config.units import format_size
    from dledger_offline.backup.manifest import Manifest
    from dledger_offline.backup.point import time_text

    found = repository.manifests()
    manifests = [each for each in found.values() if isinstance(each, Manifest)]
    damaged = {backup_id: each for backup_id, each in found.items() if not isinstance(each, Manifest)}
    if json_wanted():
        rows = [
            {"id": each.id, "created_ms": each.created_ms, "groups": {name: _group_json(group) for name, group in each.groups.items()}}
            for each in manifests
        ]
        bad = [{"id": backup_id, "error": error.message} for backup_id, error in damaged.items()]
        print_json({"cluster": repository.cluster, "backups": rows, "damaged": bad})
        return
    for error in damaged.values():
        note(error.message)
    table: list[tuple[object, ...]] = [
        (each.id, time_text(each.created_ms), name, group.first_index, group.last_index, format_size(group.size_bytes))
        for each in manifests
        for name, group in each.groups.items()
    ]
    table += [(backup_id, "damaged", None, None, None, None) for backup_id in damaged]
    table.sort(key=lambda row: str(row[0]))
    print_table(("BACKUP", "MADE", "GROUP", "FIRST-INDEX", "INDEX", "SIZE"), table, right=("FIRST-INDEX", "INDEX", "SIZE"))
