"""``dledger member``: voters and learners of a replica group."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.connection import connection
from dledger_cli.context import (
    YesOption,
    ask,
    config_path,
    confirm,
    load_config,
    replica_group_of,
    run,
)
from dledger_cli.help_page import AskingCommand, FileCommand, command_group
from dledger_cli.output import json_wanted, note, print_json, report

if TYPE_CHECKING:
    from dledger_client.admin.replica_groups import Membership
    from dledger_client.aio import Admin

GroupOption = Annotated[str, typer.Option("--replica-group", "-g", metavar="G", help="Replica group.")]
IdOption = Annotated[str, typer.Option("--id", metavar="ID", help="The node.")]
AddressOption = Annotated[
    str, typer.Option("--address", metavar="HOST:PORT", help="Address of the new node. Default: the one in the cluster file.")
]


def register(root: typer.Typer) -> None:
    app = command_group(root, "member")
    app.command("add", cls=AskingCommand)(add)
    app.command("promote", cls=AskingCommand)(promote)
    app.command("remove", cls=AskingCommand)(remove)
    app.command("replace", cls=AskingCommand)(replace)
    app.command("unsafe-recover", cls=FileCommand)(unsafe_recover)


def add(node_id: IdOption, address: AddressOption = "", group: GroupOption = "") -> None:
    """Add a node as a learner, which replicates without a vote.  Safe to repeat."""
    address = address or _address_of(node_id)
    changed = _change(group, lambda admin, name: admin.add_member(node_id, address, replica_group=name))
    _show(node_id, changed)


def promote(
    node_id: IdOption,
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait until it has caught up.")] = 0.0,
    group: GroupOption = "",
) -> None:
    """Promote a learner that has caught up to a voter.  Safe to repeat."""
    if wait:
        note(f"waiting up to {wait:g} s until {node_id} has caught up")
    changed = _change(group, lambda admin, name: admin.promote_member(node_id, replica_group=name), wait)
    _show(node_id, changed)


def remove(node_id: IdOption, yes: YesOption = False, group: GroupOption = "") -> None:
    """Remove a node from its replica group.  Safe to repeat."""
    confirm(f"Remove {node_id} from its group?", yes)
    changed = _change(group, lambda admin, name: admin.remove_member(node_id, replica_group=name))
    _show(node_id, changed)


def replace(
    node_id: IdOption,
    replaces: Annotated[str, typer.Option("--replaces", metavar="ID", help="The lost member.")],
    address: AddressOption = "",
    yes: YesOption = False,
    group: GroupOption = "",
) -> None:
    """Replace a lost member by a new node.  Safe to repeat."""
    confirm(f"Replace {replaces} by {node_id}?", yes)
    address = address or _address_of(node_id)

    def work(admin: Admin, name: str) -> Awaitable[Membership]:
        return admin.replace_member(node_id, address, replaces=replaces, replica_group=name)

    _show(node_id, _change(group, work))


def unsafe_recover(
    node_id: IdOption,
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="Data folder; the node's files are in DIR/ID.")],
    yes: YesOption = False,
) -> None:
    """Make a stopped node the only voter of its replica group.  For a group that has lost most voters.  Acknowledged messages may be
    lost.

    Of several survivors, choose the one whose last entry has the highest term, then the highest index; answer n to only see it. Then
    start it and add members: all others have spare: true in the cluster file, and empty folders. Never start the lost ones with their old
    folders again.
    """
    from broker.config.cluster_file import ClusterConfig
    from broker.process.private_folder import UMASK
    from dledger_offline.recovery.only_voter import check_others_wait, locked, look_at, make_only_voter

    cluster, folder = ClusterConfig.load(config_path()), Path(data) / node_id
    cluster.addresses_of(node_id)  # ConfigError unless the file has it
    if cluster.security is not None:
        os.umask(UMASK)
    with locked(folder):
        found = run(look_at(cluster, node_id, folder))
        group, others = found.identity.group, ", ".join(found.others) or "other members"
        note(f"{folder}: node {node_id} of replica group {group} has entries up to {found.last.index} of term {found.last.term}")
        check_others_wait(cluster, found)
        confirm(f"Continue {node_id} without {others}? Entries that only they have are lost.", yes)
        last = run(make_only_voter(found))
    report(
        {"group": group, "voters": [node_id], "folder": str(folder), "last_index": found.last.index, "last_term": found.last.term},
        f"replica group {group}: voters {node_id}, from entry {last.index} of term {last.term} on; start the node, then add members",
    )


def _address_of(node_id: str) -> str:
    from dledger_wire.errors import InvalidArgumentError

    cluster = load_config()
    known = {node.id: node.address for _, node in cluster.all_nodes()} | {spare.id: spare.address for spare in cluster.spares}
    found = known.get(node_id, "")
    if not found:
        raise InvalidArgumentError(f"{node_id} is not in the cluster file; expected --address HOST:PORT")
    return found


def _change(group: str, change: Callable[[Admin, str], Awaitable[Membership]], wait_s: float = 0.0) -> Membership:
    async def work(admin: Admin) -> Membership:
        return await change(admin, await replica_group_of(admin, group))

    return ask(work, max(wait_s, connection().timeout_s))


def _show(node_id: str, changed: Membership) -> None:
    if json_wanted():
        members = {"voters": list(changed.voters), "learners": list(changed.learners)}
        print_json({"group": changed.replica_group, "changed": changed.changed} | members)
        return
    if not changed.changed:
        known = {node_id: "a learner already"} if node_id in changed.learners else dict.fromkeys(changed.voters, "a voter already")
        note(f"{node_id} is {known.get(node_id, 'not a member')}: nothing was changed")
    learners = f", learners {', '.join(changed.learners)}" if changed.learners else ""
    note(f"replica group {changed.replica_group}: voters {', '.join(changed.voters)}{learners}")
