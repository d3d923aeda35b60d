"""``dledger connections``: the connections that nodes have accepted, which of them are held up, and by what."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.config.units import format_duration_ms, format_size
from dledger_cli.context import ask
from dledger_cli.output import fields_of, print_answer
from dledger_cli.watching import reading_command

FIELDS = ("peer", "user", "kind", "state", "waits_for", "received_bytes", "unsent_bytes", "open_ms")


def register(root: typer.Typer) -> None:
    reading_command(root, "connections")(connections)


def connections(
    node: Annotated[str, typer.Option("--node", metavar="ID", help="Only this node.")] = "",
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, max=1000, help="How many of each node at most.")] = 100,
) -> None:
    """Show the connections of nodes, which are held up, and why.  Those that wait come first.

    STATE is running; flow: it waits, or did so in the last 5 s; blocked: the node takes no messages of it.
    """
    found = ask(lambda admin: admin.connections(node, count))
    rows = [
        (
            each.node,
            row.peer,
            row.user,
            row.kind,
            row.state,
            row.waits_for or "-",
            format_size(row.received_bytes),
            format_size(row.unsent_bytes),
            format_duration_ms(row.open_ms),
        )
        for each in found
        for row in each.connections
    ]
    header = ("NODE", "PEER", "USER", "KIND", "STATE", "WAITS-FOR", "RECEIVED", "UNSENT", "OPEN")
    nodes = [
        fields_of(each, "node", group="replica_group")
        | {"states": dict(each.states), "connections": [fields_of(row, *FIELDS) for row in each.connections]}
        for each in found
    ]
    print_answer({"nodes": nodes}, header, rows, right=("RECEIVED", "UNSENT", "OPEN"))
