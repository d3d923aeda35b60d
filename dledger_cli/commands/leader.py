"""``dledger leader``: hand the leadership of a group over, and be told when it is done."""

from __future__ import annotations

from typing import Annotated

import typer

from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, load_config, run
from dledger_cli.output import note, print_json


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Leadership of a group.", no_args_is_help=True, rich_markup_mode=None)
    app.callback()(lambda: None)
    app.command("transfer", epilog="Examples: dledger leader transfer --group g0 --to n1 | dledger leader transfer --to best")(transfer)
    root.add_typer(app, name="leader")


def transfer(
    to: Annotated[str, typer.Option("--to", metavar="ID", help="The new leader, or best: the replica that is furthest.")],
    group: Annotated[str, typer.Option("--group", "-g", metavar="G", help="Replica group.")] = "",
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Hand over leadership; waits until the new leader has taken over."""
    from dledger_cli.calls import call_leader, group_of
    from dledger_wire._pb import admin_pb2
    from dledger_wire.errors import InvalidArgumentError
    from dledger_wire.rpc import methods

    chosen = group_of(load_config(config), group)
    ids = [node.id for node in chosen.nodes]
    if to != "best" and to not in ids:
        raise InvalidArgumentError(f"no node {to!r} in group {chosen.name}; it has {', '.join(ids)}")
    request = admin_pb2.TransferRequest(target="" if to == "best" else to).SerializeToString()
    reply = admin_pb2.TransferReply.FromString(run(call_leader(chosen, methods.TRANSFER_LEADER.path, request, timeout)))
    if as_json:
        keys = ("old_leader", "new_leader", "term", "took_ms")
        print_json({"group": chosen.name} | {key: getattr(reply, key) for key in keys})
    elif reply.old_leader == reply.new_leader:
        note(f"group {chosen.name}: {reply.new_leader} leads already (term {reply.term})")
    else:
        note(f"group {chosen.name}: {reply.old_leader} -> {reply.new_leader} (term {reply.term}) in {reply.took_ms:.0f} ms")
