"""``dledger route``: where clients find a topic, and the source of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.commands import completion
from dledger_cli.context import ask
from dledger_cli.output import fields_of, json_wanted, note, print_answer
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from dledger_client.admin.topics import RoutePart, TopicRoute

HEADER = ("REPLICA-GROUP", "STATE", "READ-QUEUES", "WRITE-QUEUES", "PERM", "TERM", "LEADER", "REPLICAS", "TOPICS-VERSION")
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic.", autocompletion=completion.topics)]


def register(root: typer.Typer) -> None:
    reading_command(root, "route")(route)


def route(topic: TopicArgument) -> None:
    """Show how clients route a topic.  Lists replica groups, queues, leaders and replicas, and the source of each route."""
    found = ask(lambda admin: admin.route(topic))
    rows = [
        (
            part.group.name,
            part.state or "-",
            part.queues.read_queues,
            part.queues.write_queues,
            part.queues.perm,
            part.group.term,
            f"{part.group.leader_id} ({part.group.leader_address})" if part.group.leader_address else "none",
            ",".join(node.id if node.voter else f"{node.id} (learner)" for node in part.group.nodes),
            part.queues.version,
        )
        for part in found.parts
    ]
    print_answer(_json(found), HEADER, rows, right=("READ-QUEUES", "WRITE-QUEUES", "PERM", "TERM", "TOPICS-VERSION"))
    if json_wanted():
        return
    if not found.by_name_server:
        note(f"source: node {found.answered_by}; no name server answers")
    else:
        note(f"source: name server {found.answered_by}" + ("" if found.complete else "; it does not know all replica groups yet"))


def _json(found: TopicRoute) -> dict[str, object]:
    names = ("topic", "answered_by", "by_name_server", "complete")
    return fields_of(found, *names) | {"version": f"{found.version:016x}", "parts": [_part(part) for part in found.parts]}


def _part(part: RoutePart) -> dict[str, object]:
    group = fields_of(part.group, "term", "leader_address", group="name", leader="leader_id")
    queues = fields_of(part.queues, "read_queues", "write_queues", "perm", "topic_epoch", topics_version="version")
    nodes = [fields_of(node, "id", "address", "voter") for node in part.group.nodes]
    return group | queues | {"state": part.state, "nodes": nodes, "version": f"{part.version:016x}"}
