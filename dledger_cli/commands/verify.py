"""``dledger verify``: the files of nodes that are stopped, byte by byte; or the replicas of a running cluster against each other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import ask, load_config, nodes_of
from dledger_cli.help_page import LongCommand
from dledger_cli.output import clear_progress, error_line, fields_of, json_wanted, note, print_json, print_line, show_progress
from dledger_cli.removed_groups import removed_among, say_removed

if TYPE_CHECKING:
    from dledger.log.report import Finding
    from dledger_client.admin.replica_comparison import ReplicaComparison
    from dledger_client.aio import Admin


def register(app: typer.Typer) -> None:
    app.command("verify", cls=LongCommand)(verify)


def verify(
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="Data folder of one node, or of a local cluster.")] = "",
    online: Annotated[bool, typer.Option("--online", help="Compare the replicas of the running cluster instead.")] = False,
    backup: Annotated[str, typer.Option("--backup", metavar="URL", help="Check the backups at this place instead.")] = "",
) -> None:
    """Check logs, index units and queues offline, or backups.  Exits with 1 and prints the exact position if something is damaged.

    With --online, exits with 1 also if a replica does not answer; the others are compared.
    """
    if online + bool(data) + bool(backup) != 1:
        raise typer.BadParameter("expected exactly one of --data DIR, --online and --backup URL")
    good = _verify_backup(backup) if backup else _verify_online() if online else _verify_offline(data)
    if not good:
        raise typer.Exit(1)


def _verify_backup(url: str) -> bool:
    from dledger_offline.backup.check import check_repository
    from dledger_offline.backup.repository import found_repository

    repository = found_repository(url)
    damages = 0
    for found in check_repository(repository):
        damages += 1
        if json_wanted():
            print_json({"file": found.details["file"], "pos": found.details["pos"], "text": found.message, "damage": True})
        else:
            print_line(f"DAMAGED  {found.message}")
    if damages:
        error_line(f"{url}: damaged in {damages} place{'s' if damages > 1 else ''}")
    else:
        note(f"{url}: ok, {len(repository.ids())} backups of cluster {repository.cluster}")
    return damages == 0


def _verify_online() -> bool:
    from broker.config.units import format_size

    cluster = load_config()
    results, removed = ask(lambda admin: _compared(admin, nodes_of(cluster)))
    say_removed(removed)
    if json_wanted():
        print_json({"groups": [_comparison_json(result) for result in results]})
    for result in results:
        name = result.replica_group
        if not result.equal:
            error_line(f"replica group {name}: {result.difference}")
        elif _alone(result):
            answered = f"only {result.replicas[0]}" if result.replicas else f"none of {', '.join(result.unreachable)}"
            error_line(f"replica group {name}: {answered} answered, nothing was compared")
            continue
        elif not json_wanted():
            size = format_size(result.compared_bytes)
            print_line(f"replica group {name}: {', '.join(result.replicas)} are equal over {size} up to position {result.end_pos}")
        if result.unreachable:
            error_line(f"replica group {name}: {', '.join(result.unreachable)} did not answer and was not compared")
    return bool(results) and all(result.equal and not result.unreachable for result in results)


def _alone(result: ReplicaComparison) -> bool:
    """Whether there was no other replica to compare with, though the group has some."""
    return bool(result.unreachable) and len(result.replicas) < 2


async def _compared(admin: Admin, nodes: dict[str, dict[str, str]]) -> tuple[list[ReplicaComparison], list[str]]:
    """The replica groups of the cluster file compared, and the names of those that were removed.  UnreachableError when none answers."""
    from dledger_client.admin.replica_comparison import ReplicaComparison
    from dledger_wire.errors import UnreachableError

    removed = await removed_among(admin, nodes)
    results: list[ReplicaComparison] = []
    for name in nodes:
        if name in removed:
            continue
        try:
            results += await admin.compare_replicas(nodes={name: nodes[name]})
        except UnreachableError:
            results.append(ReplicaComparison(name, 0, 0, (), tuple(nodes[name]), "", {}))
    return results, removed


def _comparison_json(result: ReplicaComparison) -> dict[str, object]:
    names = ("compared_bytes", "replicas", "unreachable", "difference", "equal")
    return fields_of(result, *names, group="replica_group", upto_pos="end_pos")


def node_folders(data: Path) -> list[Path]:
    """The folder itself when it is a node's, else the nodes' folders in it."""
    if (data / "identity.json").is_file():
        return [data]
    return sorted(file.parent for file in data.glob("*/identity.json"))


def _verify_offline(data: str) -> bool:
    from dledger_wire.errors import DataDirectoryError

    folders = node_folders(Path(data))
    if not folders:
        raise DataDirectoryError(f"{data}: no node's data folder (expected identity.json in it or in its sub-folders)")
    damaged = 0
    for folder in folders:
        damaged += asyncio.run(_verify_node(folder))
    return damaged == 0


async def _verify_node(folder: Path) -> int:
    """Print what is wrong with one node's files; the number of damages."""
    from dledger_offline.files.check import verify

    damages = remarks = 0

    def progress(checked_bytes: int) -> None:
        if checked_bytes % (64 << 20) < 1 << 20:
            show_progress(f"{folder}: {checked_bytes >> 20} MiB checked")

    async for finding in verify(str(folder), progress):
        damages += finding.is_damage
        remarks += not finding.is_damage
        if json_wanted():
            print_json(_finding_json(finding))
        else:
            print_line(f"{'DAMAGED' if finding.is_damage else 'remark '}  {finding}")
    clear_progress()
    if damages:
        error_line(f"{folder}: damaged in {damages} place{'s' if damages > 1 else ''}")
    else:
        note(f"{folder}: ok{f', {remarks} remarks' if remarks else ''}")
    return damages


def _finding_json(finding: Finding) -> dict[str, object]:
    return fields_of(finding, "file", "pos", "index", "text", damage="is_damage") | {"kind": finding.kind.value}
