"""``dledger cluster``: replica groups that are added, drained and removed while the cluster works, and all of it on one screen."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.commands import upgrade
from dledger_cli.connection import connection
from dledger_cli.context import YesOption, ask, confirm, load_config
from dledger_cli.help_page import AskingCommand, LongCommand, command_group
from dledger_cli.output import error_line, fields_of, json_wanted, note, print_answer, print_json
from dledger_cli.watching import reading_command
from dledger_wire.status import DRAINING

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig, GroupConfig
    from dledger_cli.cluster_plan import Plan
    from dledger_client.admin.replica_groups import ReplicaGroupDescription
    from dledger_client.aio import Admin

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="Cluster file.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Replica group.")]
LocalOption = Annotated[
    str, typer.Option("--data", metavar="DIR", help="Data folder of local nodes, to start and stop their processes. Default: ./data.")
]
POLL_S = 0.5


def register(root: typer.Typer) -> None:
    app = command_group(root, "cluster")
    reading_command(app, "status")(status)
    app.command("add-group", cls=LongCommand)(add_group)
    app.command("apply", cls=LongCommand)(apply)
    app.command("limits", cls=AskingCommand)(limits)
    app.command("drain", cls=AskingCommand)(drain)
    app.command("remove-group", cls=AskingCommand)(remove_group)
    upgrade.register_in(app)


def status() -> None:
    """Show state, leader, replicas and disk of replica groups.  Also rates, leaders by host, and warnings."""
    from dledger_cli.cluster_text import show_cluster

    show_cluster(ask(lambda admin: admin.directory()))


def add_group(
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML of the replica group: name and nodes, or a list of groups.")],
    data: LocalOption = "",
) -> None:
    """Add replica groups to the running cluster.  No node is restarted.  dledger topic update gives topics queues there."""
    from broker.config.cluster_file import ClusterConfig, read_cluster_text
    from dledger_cli.cluster_plan import is_begun
    from dledger_cli.context import config_path
    from dledger_cli.local.cluster_edit import groups_in, lines_to_add, with_groups, without_group

    source = config_path(data=data or None)
    groups = groups_in(file)
    text, names = read_cluster_text(source), {group["name"] for group in groups}
    running = ask(lambda admin: admin.directory())
    for name in names.difference(group.name for group in running.groups if is_begun(group)):
        text = without_group(text, name)  # an attempt that failed may have left it, with addresses that were wrong
    text = with_groups(text, groups)
    wanted = ClusterConfig.parse(text, f"{source} with {file}")
    _carry_out(wanted, text, source, data, only=names, dry_run=False)
    if lines := lines_to_add(read_cluster_text(source), groups):
        note(f"{source} does not name them, and commands that read it will not know them, until its list groups has these lines:")
        for line in lines.splitlines():
            note(line)


def apply(
    file: FileArgument, dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the plan.")] = False, data: LocalOption = ""
) -> None:
    """Apply the cluster file to the running cluster.  Adds replica groups, sets policies, drains and removes groups.  Safe to repeat."""
    from broker.config.cluster_file import ClusterConfig, read_cluster_text

    text, used = read_cluster_text(file), connection()
    used.config = used.config or file
    _carry_out(ClusterConfig.parse(text, file), text, file, data, only=None, dry_run=dry_run)


def _carry_out(wanted: ClusterConfig, text: str, source: str, data: str, *, only: set[str] | None, dry_run: bool) -> None:
    """Make the plan, print it, carry it out.  ``text`` is of the file ``source``.  ``only``: groups to add, nothing else is changed."""
    from dledger_cli.local.cluster_steps import GroupStarter
    from dledger_cli.status_text import show_placement

    plan = ask(lambda admin: _planned(admin, wanted))
    if only is not None:
        plan.policies, plan.drain, plan.forget, plan.notes = {}, [], [], []
        plan.add = [group for group in plan.add if group.name in only]
    for step in plan.steps or ["nothing to change"]:
        note(step)
    for text_of_note in plan.notes:
        note(f"by hand: {text_of_note}")
    show_placement(wanted)
    if not dry_run:
        starter = GroupStarter(wanted, text, Path(source), data, connection().timeout_s)
        starter.write(without=() if only is not None else plan.removed)
        for name, wishes in plan.policies.items():
            ask(functools.partial(_set_policy, group=name, wishes=wishes))
        for group in plan.add:
            starter.add(group)
            ask(functools.partial(_registered, group=group, timeout_s=connection().timeout_s))
        left = [name for name in plan.drain if not _drained_and_removed(name)]
        for name in plan.forget:
            ask(functools.partial(_complete_removal, group=name))
        starter.write(without=[name for name in plan.drain if name not in left])
        if left:
            error_line(f"still draining: {', '.join(left)}; repeat the command, or watch it: dledger cluster drain {left[0]}")
            raise typer.Exit(1)
    if json_wanted():
        print_json({"steps": plan.steps, "by_hand": plan.notes, "done": not dry_run})


async def _set_policy(admin: Admin, group: str, wishes: Mapping[str, Any]) -> None:
    await admin.update_replica_group(group, **wishes)


async def _planned(admin: Admin, wanted: ClusterConfig) -> Plan:
    from dledger_cli.cluster_plan import make_plan

    running = await admin.directory()
    named = {group.name for group in wanted.groups}
    states = {
        group.name: await admin.describe_replica_group(group.name)
        for group in running.groups
        if group.name in named and group.leader_id and not group.is_removed
    }
    in_topics: set[str] = set()
    if any(group.is_removed for group in running.groups):
        in_topics = {name for part in await admin.list_topics(partial=True) for name in part.replica_groups}
    return make_plan(wanted, running, states, in_topics)


async def _complete_removal(admin: Admin, group: str) -> None:
    await admin.remove_replica_group(group)
    note(f"no topic names replica group {group} any more")


async def _registered(admin: Admin, group: GroupConfig, timeout_s: float) -> None:
    """Wait until name servers know the new group's leader, so that clients find it."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = await admin.directory()
        if not found.from_name_server or any(each.name == group.name and each.leader_id for each in found.groups):
            return
        if time.monotonic() > deadline:
            from dledger_wire.errors import DeadlineExceededError

            raise DeadlineExceededError(f"replica group {group.name} has not registered with the name servers after {timeout_s:g} s")
        await asyncio.sleep(POLL_S)


def _drained_and_removed(name: str) -> bool:
    """Drain a group and remove it if nothing is left."""
    state = ask(lambda admin: admin.drain_replica_group(name))
    if state.left:
        for row in state.left:
            note(f"{name}: {row.text}")
        return False
    ask(lambda admin: admin.remove_replica_group(name))
    note(f"replica group {name} removed")
    return True


def limits(
    group: Annotated[str, typer.Argument(metavar="[GROUP]", help="Replica group. Default: all.")] = "",
    disk: Annotated[
        str, typer.Option("--disk-free", metavar="LIMIT", help="diskFreeLimit: 2GB, 5% of the disk, or 'mem_relative 1.0'.")
    ] = "",
    memory: Annotated[str, typer.Option("--memory", metavar="LIMIT", help="memoryHighWatermark: 40% of the memory, or 2GB.")] = "",
) -> None:
    """Show or set the limits of disk and memory alarms.  Beyond them nodes take no new messages.

    A limit counts at once and after restarts, in place of the cluster file's; file: the cluster file counts again.
    """
    given = {"diskFreeLimit": disk, "memoryHighWatermark": memory}
    changed = {name: "" if value == "file" else value for name, value in given.items() if value}

    async def work(admin: Admin) -> list[ReplicaGroupDescription]:
        names = [group] if group else [each.name for each in (await admin.directory()).groups if not each.is_removed]
        if changed:
            return [await admin.update_replica_group(name, limits=changed) for name in names]
        return [await admin.describe_replica_group(name) for name in names]

    found = ask(work)
    answer = [fields_of(state, "limits", "limits_set", group="replica_group") for state in found]
    rows = [
        (state.replica_group, name, value, "the group" if name in state.limits_set else "the cluster file")
        for state in found
        for name, value in sorted(state.limits.items())
    ]
    print_answer({"limits": answer}, ("REPLICA-GROUP", "LIMIT", "VALUE", "SET FOR"), rows)


def drain(
    group: GroupArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Allow writes again.")] = False,
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait until it is drained.")] = 3600.0,
) -> None:
    """Stop writes to a replica group; wait until it is drained.  Ctrl-C stops waiting; repeat the command to continue."""
    state = ask(lambda admin: admin.drain_replica_group(group, undo=undo))
    deadline = time.monotonic() + wait
    shown = ""
    while not undo and state.state == DRAINING and any(not row.discardable for row in state.left):
        progress = "; ".join(row.text for row in state.left)
        if progress != shown:
            note(f"{group}: {progress}")
            shown = progress
        if time.monotonic() > deadline:
            _show_state(state)
            error_line(f"replica group {group} is not drained after {wait:g} s; repeat the command to go on waiting")
            raise typer.Exit(1)
        time.sleep(POLL_S)
        state = ask(lambda admin: admin.describe_replica_group(group))
    _show_state(state)


def _show_state(state: ReplicaGroupDescription) -> None:
    if json_wanted():
        rows = [fields_of(row, "kind", "topic", "messages") | {"consumer_group": row.consumer_group or None} for row in state.left]
        print_json(fields_of(state, "state", "since_ms", group="replica_group") | {"left": rows})
        return
    note(f"replica group {state.replica_group} is {state.state}")
    for row in state.left:
        note(f"left: {row.text}")
    if state.state == DRAINING and not state.left:
        note(f"drained: dledger cluster remove-group {state.replica_group} --yes")


def remove_group(
    group: GroupArgument,
    discard: Annotated[
        bool, typer.Option("--discard", help="Discard messages that no consumer group reads, dead letters, parked transactions.")
    ] = False,
    yes: YesOption = False,
    data: LocalOption = "",
) -> None:
    """Remove a drained replica group and stop its local nodes.  Rejected while anything is left in it.  Safe to repeat."""
    from dledger_cli.local.cluster_steps import forget_local_group

    confirm(f"Remove replica group {group} with all it stores?", yes)
    state = ask(lambda admin: admin.remove_replica_group(group, discard=discard))
    forget_local_group(data, load_config(data=data or None).cluster, group)
    _show_state(state)
