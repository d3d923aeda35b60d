"""``dledger expire``: delete old messages now, on every node of a group or on one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, confirm, load_config, parse_duration_option, real_network, run
from dledger_cli.output import error_line, note, print_json, print_table

if TYPE_CHECKING:
    from broker.config.cluster_file import NodeConfig
    from dledger_wire._pb import retention_pb2

FIELDS = ("id", "segments", "size_bytes", "first_index", "first_pos", "held_by")


def register(root: typer.Typer) -> None:
    root.command("expire", epilog="Examples: dledger expire --older-than 24h --yes | dledger expire --id n1 --yes --json")(expire)


def expire(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Delete what is older. Default: fileReservedTime of each node.")
    ] = "",
    node_id: Annotated[str, typer.Option("--id", metavar="ID", help="Only on this node.")] = "",
    group: Annotated[str, typer.Option("--group", "-g", metavar="G", help="Replica group.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Delete old messages: whole sealed segments of the log, with the queue files that point into them."""
    from dledger_cli.calls import group_of
    from dledger_wire._pb import retention_pb2
    from dledger_wire.errors import InvalidArgumentError

    chosen = group_of(load_config(config), group)
    nodes = [node for node in chosen.nodes if not node_id or node.id == node_id]
    if not nodes:
        raise InvalidArgumentError(f"no node {node_id!r} in group {chosen.name}; it has {', '.join(node.id for node in chosen.nodes)}")
    reserved_ms = parse_duration_option(older_than, "--older-than") if older_than else 0
    confirm(f"Delete messages older than {older_than or 'fileReservedTime'} on {', '.join(node.id for node in nodes)}?", yes)
    request = retention_pb2.ExpireRequest(has_reserved=bool(older_than), reserved_ms=reserved_ms)
    replies, failed = run(_expire(nodes, request, timeout))
    if as_json:
        print_json({"group": chosen.name, "nodes": [{field: getattr(reply, field) for field in FIELDS} for reply in replies]})
    else:
        rows = [(reply.id, reply.segments, reply.size_bytes, reply.first_index) for reply in replies]
        print_table(("NODE", "SEGMENTS", "BYTES", "FIRST-INDEX"), rows, right=("SEGMENTS", "BYTES", "FIRST-INDEX"))
        for reply in replies:
            if reply.held_by:
                note(f"{reply.id}: not deleted beyond entry {reply.first_index}: {reply.held_by}")
    for text in failed:
        error_line(text)
    if failed:
        raise typer.Exit(1)


async def _expire(
    nodes: list[NodeConfig], request: retention_pb2.ExpireRequest, timeout_s: float
) -> tuple[list[retention_pb2.ExpireReply], list[str]]:
    """The answers of the nodes, and what those said that did nothing."""
    from dledger_wire.errors import DledgerError

    answers = await asyncio.gather(*(_expire_one(node, request, timeout_s) for node in nodes), return_exceptions=True)
    replies: list[retention_pb2.ExpireReply] = []
    failed: list[str] = []
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, DledgerError):
            failed.append(f"{node.id}: {answer.message}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            replies.append(answer)
    return replies, failed


async def _expire_one(node: NodeConfig, request: retention_pb2.ExpireRequest, timeout_s: float) -> retention_pb2.ExpireReply:
    from dledger_wire._pb import retention_pb2
    from dledger_wire.rpc import methods

    channel = real_network().connect(node.address)
    try:
        answer = await channel.call(methods.EXPIRE.path, request.SerializeToString(), timeout_s=timeout_s)
        return retention_pb2.ExpireReply.FromString(answer)
    finally:
        await channel.close()
