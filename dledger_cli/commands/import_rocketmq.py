"""``dledger import-rocketmq``: the messages, topics and groups of a RocketMQ broker's store, into a running cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.connection import connection
from dledger_cli.context import bootstrap_of, check_reachable, replica_group_of, run
from dledger_cli.help_page import LongCommand
from dledger_cli.output import (
    clear_progress,
    error_line,
    json_wanted,
    note,
    print_json,
    print_line,
    print_table,
    show_progress,
    with_spaces,
)

if TYPE_CHECKING:
    from dledger_offline.rocketmq.folder import StoreFolder
    from dledger_offline.rocketmq.importing import Imported
    from dledger_offline.rocketmq.survey import Judge, Survey

SHOWN_DAMAGE = 5


def register(root: typer.Typer) -> None:
    root.command("import-rocketmq", cls=LongCommand)(import_rocketmq)


def import_rocketmq(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Copy of the broker's folder (storePathRootDir).")],
    group: Annotated[str, typer.Option("--replica-group", "-g", metavar="G", help="Replica group that gets the queues.")] = "",
    state: Annotated[str, typer.Option("--state", metavar="FILE", help="What was imported so far. Default: DIR.import.json.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the store, and show what is in it.")] = False,
    only_messages: Annotated[
        bool, typer.Option("--only-messages", help="Without delayed messages and offsets of groups: a newer copy follows.")
    ] = False,
    skip_damaged: Annotated[bool, typer.Option("--skip-damaged", help="Leave out what is damaged.")] = False,
) -> None:
    """Import the store of a RocketMQ broker.  If repeated, it continues and sends no message twice.

    Reads stores of RocketMQ 4.9 to 5.x. All is checked first: if something is damaged, nothing is imported, and the exit code is 1.
    """
    from dledger_offline.rocketmq.folder import StoreFolder
    from dledger_offline.rocketmq.survey import survey

    source, read = StoreFolder(folder), 0

    def came(size: int) -> None:
        nonlocal read
        read += size
        show_progress(f"checked {read >> 20} MiB")

    found, judge = survey(source, came)
    clear_progress()
    if dry_run:
        _show(source, found)
    else:
        for text in found.notes:
            note(text)
    for text in found.damage[:SHOWN_DAMAGE]:
        error_line(text)
    if found.damages > SHOWN_DAMAGE:
        error_line(f"{found.damages} places are damaged")
    if found.damages and not skip_damaged:
        if not dry_run:
            error_line("nothing was imported: --skip-damaged leaves out what is damaged")
        raise typer.Exit(1)
    if not dry_run:
        beside = Path(folder).resolve()
        path = Path(state) if state else beside.with_name(f"{beside.name}.import.json")
        _report(run(_import(source, found, judge, path, group, only_messages=only_messages)), found)


async def _import(source: StoreFolder, found: Survey, judge: Judge, path: Path, group: str, *, only_messages: bool) -> Imported:
    from dledger_client.aio import Admin
    from dledger_client.runtime.environment import environment_for
    from dledger_offline.rocketmq.importing import Import
    from dledger_offline.rocketmq.progress import Progress

    bootstrap, timeout_s = bootstrap_of(), connection().timeout_s
    await check_reachable(bootstrap, timeout_s)
    router = environment_for(bootstrap).open_router(bootstrap)
    try:
        async with Admin(bootstrap, timeout_ms=int(timeout_s * 1000)) as admin:
            chosen, cluster = await replica_group_of(admin, group), (await admin.describe_cluster()).name
            progress = Progress.opened(path, cluster, chosen)
            return await Import(
                admin, router, source, found, judge, progress, int(timeout_s * 1000), only_messages=only_messages, on_progress=_progress
            ).run()
    finally:
        clear_progress()
        await router.close()


def _progress(done: Imported) -> None:
    show_progress(f"imported {with_spaces(done.messages + done.delayed)} messages, {done.size_bytes >> 20} MiB")


def _show(source: StoreFolder, found: Survey) -> None:
    from dledger_offline.rocketmq.topics import needed_topics

    rows = []
    for name, queues in needed_topics(source, found).items():
        of_topic = [queue for (topic, _), queue in found.queues.items() if topic == name]
        rows.append(
            (name, queues, source.topics[name].perm, sum(each.count for each in of_topic), sum(each.size_bytes for each in of_topic))
        )
    if json_wanted():
        names = ("topic", "queues", "perm", "messages", "bytes")
        print_json(
            _totals(found)
            | {
                "topics": [dict(zip(names, row, strict=True)) for row in rows],
                "groups": [group.name for group in found.groups],
                "problems": found.damage,
                "problem_count": found.damages,
            }
        )
        return
    print_table(("TOPIC", "QUEUES", "PERM", "MESSAGES", "BYTES"), rows, right=("QUEUES", "PERM", "MESSAGES", "BYTES"))
    print_line(f"{len(found.groups)} consumer groups: {', '.join(group.name for group in found.groups) or '-'}")
    print_line(f"{found.delayed} delayed messages that are not delivered yet")
    for text in _left_out(found) + found.notes:
        print_line(text)


def _totals(found: Survey) -> dict[str, Any]:
    names = ("messages", "delayed", "open_transactions", "notes")
    return {name: getattr(found, name) for name in names} | {"bytes": found.size_bytes, "left_out": dict(found.left_out)}


def _left_out(found: Survey) -> list[str]:
    lines = [f"left out: {count} messages {reason}" for reason, count in sorted(found.left_out.items())]
    if found.open_transactions:
        lines.append(f"left out: {found.open_transactions} messages of transactions that are neither committed nor rolled back")
    return lines


def _report(done: Imported, found: Survey) -> None:
    moved = done.groups
    if json_wanted():
        groups = {"groups": moved.groups, "offsets": moved.offsets, "offsets_kept": moved.kept}
        print_json(
            {"imported": done.messages, "imported_delayed": done.delayed, "imported_bytes": done.size_bytes} | groups | _totals(found)
        )
        return
    for text in _left_out(found):
        note(text)
    what = f"{with_spaces(done.messages)} messages, {with_spaces(done.delayed)} delayed messages"
    note(f"imported {what}; {moved.groups} groups with {moved.offsets} offsets")
    if moved.kept:
        note(f"{moved.kept} offsets were left as they are: their groups have begun to read here")
