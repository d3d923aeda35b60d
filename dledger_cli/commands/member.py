"""``dledger member``: who belongs to a group."""

from __future__ import annotations

from typing import Annotated

import typer

from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, confirm, load_config, run
from dledger_cli.output import note, print_json

GroupOption = Annotated[str, typer.Option("--group", "-g", metavar="G", help="Replica group.")]
IdOption = Annotated[str, typer.Option("--id", metavar="ID", help="The node.")]
AddressOption = Annotated[
    str, typer.Option("--address", metavar="HOST:PORT", help="Where the new node serves (default: its address in the cluster file).")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Members of a group: learners and voters.", no_args_is_help=True, rich_markup_mode=None)
    app.command("add", epilog="Example: dledger member add --id n3 --address 127.0.0.1:10914")(add)
    app.command("promote", epilog="Example: dledger member promote --id n3")(promote)
    app.command("remove", epilog="Example: dledger member remove --id n2 --yes")(remove)
    app.command("replace", epilog="Example: dledger member replace --id n3 --address 127.0.0.1:10914 --replaces n2 --yes")(replace)
    root.add_typer(app, name="member")


def add(
    node_id: IdOption,
    address: AddressOption = "",
    group: GroupOption = "",
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Add a node as a learner: it copies the log and does not vote."""
    _change("add", node_id, address, "", group, config, timeout, as_json=as_json)


def promote(
    node_id: IdOption, group: GroupOption = "", config: ConfigOption = None, timeout: TimeoutOption = 30.0, as_json: JsonOption = False
) -> None:
    """Make a learner that has caught up a voter."""
    _change("promote", node_id, "", "", group, config, timeout, as_json=as_json)


def remove(
    node_id: IdOption,
    yes: YesOption = False,
    group: GroupOption = "",
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Remove a node from its group."""
    confirm(f"Remove {node_id} from its group?", yes)
    _change("remove", node_id, "", "", group, config, timeout, as_json=as_json)


def replace(
    node_id: IdOption,
    replaces: Annotated[str, typer.Option("--replaces", metavar="ID", help="The node that is gone.")],
    address: AddressOption = "",
    yes: YesOption = False,
    group: GroupOption = "",
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Put a new node in the place of one that is gone."""
    confirm(f"Replace {replaces} by {node_id}?", yes)
    _change("replace", node_id, address, replaces, group, config, timeout, as_json=as_json)


def _change(
    action: str, node_id: str, address: str, replaces: str, group: str, config: str | None, timeout_s: float, *, as_json: bool
) -> None:
    from dledger_cli.calls import call_leader, group_of
    from dledger_wire._pb import admin_pb2
    from dledger_wire.errors import InvalidArgumentError
    from dledger_wire.rpc import methods

    chosen = group_of(load_config(config), group)
    if action in ("add", "replace") and not address:
        address = next((node.address for node in chosen.nodes if node.id == node_id), "")
        if not address:
            text = f"{node_id} is not in the cluster file; expected --address HOST:PORT"
            raise InvalidArgumentError(text)
    request = admin_pb2.MemberRequest(action=action, id=node_id, address=address, replaces=replaces).SerializeToString()
    reply = admin_pb2.MemberReply.FromString(run(call_leader(chosen, methods.CHANGE_MEMBER.path, request, timeout_s)))
    if as_json:
        print_json({"group": chosen.name, "voters": list(reply.voters), "learners": list(reply.learners)})
        return
    learners = f", learners {', '.join(reply.learners)}" if reply.learners else ""
    note(f"group {chosen.name}: voters {', '.join(reply.voters)}{learners}")
