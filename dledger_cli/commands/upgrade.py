"""``dledger cluster upgrade-check`` and ``upgrade-finish``: whether nodes may get other builds, and switching on what is new."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import YesOption, ask, confirm, load_config, nodes_of
from dledger_cli.help_page import AskingCommand, ReadingCommand
from dledger_cli.output import error_line, fields_of, json_wanted, note, print_json, print_line, print_table

if TYPE_CHECKING:
    from dledger_client.admin.upgrade import RaisedLevel, UpgradeCheck

HEADER = ("REPLICA-GROUP", "LEVEL", "NODE", "VERSION", "CAN-DO")
POLL_S = 0.5
GROUP_KEYS = ("replica_group", "level", "needs", "can_rise_to", "switches_on", "problems", "waits_for")  # of the JSON
NODE_KEYS = ("id", "reachable", "version", "lowest_level", "highest_level")


def register_in(app: typer.Typer) -> None:
    """Add the commands to ``dledger cluster``."""
    app.command("upgrade-check", cls=ReadingCommand)(upgrade_check)
    app.command("upgrade-finish", cls=AskingCommand)(upgrade_finish)


def upgrade_check() -> None:
    """Check whether an upgrade or downgrade to this build works.  Shows builds, feature levels, and what upgrade-finish would enable.

    Exits with 1 if it does not: a node does not answer, writes would stop without a node, a disk is full, or this build does not support
    the feature level.
    """
    nodes = nodes_of(load_config())
    found = ask(lambda admin: admin.upgrade_check(nodes=nodes))
    if json_wanted():
        print_json(_json(found))
    else:
        _show(found)
    for text in found.problems:
        error_line(text)
    if found.problems:
        raise typer.Exit(1)


def _json(found: UpgradeCheck) -> dict[str, Any]:
    groups = []
    for group in found.groups:
        builds = [fields_of(node, *NODE_KEYS) | {"member": group.status.is_member(node.id)} for node in group.status.nodes]
        groups.append(fields_of(group, *GROUP_KEYS) | {"nodes": builds})
    return fields_of(found, "version", "lowest_level", "highest_level", "problems") | {"groups": groups}


def _show(found: UpgradeCheck) -> None:
    rows = []
    for group in found.groups:
        for node in group.status.nodes:
            levels = f"{node.lowest_level} to {node.highest_level}" if node.reachable else "-"
            rows.append((group.replica_group, group.level, node.id, node.version or "-", levels))
    print_table(HEADER, rows, right=("LEVEL",))
    for group in found.groups:
        name = group.replica_group
        if group.switches_on:
            print_line(f"{name}: dledger cluster upgrade-finish would raise it from level {group.level} to {group.can_rise_to}:")
            for text in group.switches_on:
                print_line(f"  {text}")
        for text in group.waits_for:
            note(f"{name}: a higher level waits: {text}")
    if not found.problems:
        text = f"the nodes can be upgraded or downgraded to this build ({found.version}, levels {found.lowest_level} to"
        note(f"{text} {found.highest_level}), one at a time")


def upgrade_finish(
    group: Annotated[str, typer.Option("--replica-group", "-g", metavar="G", help="Replica group. Default: all.")] = "",
    level: Annotated[
        int, typer.Option("--level", metavar="N", min=0, help="Feature level. Default: the highest that every member supports.")
    ] = 0,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait until every member supports it.")
    ] = 0.0,
    yes: YesOption = False,
) -> None:
    """Raise the feature level of replica groups.  Enables features of the new release; older builds are rejected from then on.  It
    cannot be undone.
    """
    from dledger_wire.errors import NotReadyError

    confirm(f"Raise the feature level of {group or 'every replica group'}? Builds that do not support it cannot start again.", yes)
    deadline = time.monotonic() + wait
    while True:
        try:
            raised = ask(lambda admin: admin.finish_upgrade(group, level=level))
            break
        except NotReadyError as error:
            if time.monotonic() > deadline:
                raise
            note(error.message)
            time.sleep(POLL_S)
    nodes = nodes_of(load_config())
    running = ask(lambda admin: admin.upgrade_check(nodes=nodes))
    _show_raised(raised, running)


def _show_raised(raised: list[RaisedLevel], running: UpgradeCheck) -> None:
    if json_wanted():
        print_json({"groups": [asdict(each) for each in raised]})
        return
    for each in raised:
        if each.level == each.old_level:
            note(f"replica group {each.replica_group} is at feature level {each.level} already")
        else:
            builds = {node.version for group in running.groups if group.replica_group == each.replica_group for node in group.status.nodes}
            text = f"replica group {each.replica_group}: feature level {each.old_level} -> {each.level}"
            can = f"its nodes (dledger {', '.join(sorted(builds - {''})) or 'of unknown version'}) can do it"
            note(f"{text}; {can}, and a build that cannot does not start on their data folders any more")
