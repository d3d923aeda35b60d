"""``dledger message``: single messages - finding them by key, id, time or offset, and telling what became of them."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.commands import completion
from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, bootstrap_of, run, time_ms
from dledger_cli.message_text import message_json, show_traces, time_text, trace_json
from dledger_cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from dledger_client.admin.message_query import QueryResult
    from dledger_client.admin.message_trace import Trace

SHOWN_BODY_BYTES = 60
ID_LENGTHS = (32, 56)
QUERY_EXAMPLES = "Examples: dledger message query orders --from 2026-01-01 --max 5 | dledger message query orders --key o-1 --json"
TRACE_EXAMPLES = "Examples: dledger message trace orders --key o-1 | dledger message trace --id 7F00000104D2F0A1B2C3000000000000 --json"

TopicArgument = Annotated[str, typer.Argument(metavar="[TOPIC]", help="Topic; needed but with --id.", autocompletion=completion.topics)]
KeyOption = Annotated[str, typer.Option("--key", metavar="KEY", help="One of the message's keys.")]
IdOption = Annotated[str, typer.Option("--id", metavar="ID", help="Message id: the producer's, or that of its place in the log.")]
MaxOption = Annotated[int, typer.Option("--max", metavar="N", min=1, help="No more than that many.")]


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Find single messages, and what became of them.", no_args_is_help=True, rich_markup_mode=None)
    app.command("query", epilog=QUERY_EXAMPLES)(query)
    app.command("trace", epilog=TRACE_EXAMPLES)(trace)
    root.add_typer(app, name="message")


def query(
    topic: TopicArgument = "",
    key: KeyOption = "",
    msg_id: IdOption = "",
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help="Stored at or after: ms since 1970, or an ISO time in UTC.")] = "",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Stored at or before.")] = "",
    queue: Annotated[int, typer.Option("--queue", metavar="Q", min=-1, help="Queue, with --offset.")] = -1,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=-1, help="Offset in that queue.")] = -1,
    group: Annotated[str, typer.Option("--group", metavar="G", help="Replica group, with --offset.")] = "",
    most: MaxOption = 32,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Find messages: by key (within --from and --to), by id, by time alone, or by queue and offset.  Exit 1 when there are none."""
    ways = [bool(key), bool(msg_id), offset >= 0]
    if sum(ways) > 1 or not (any(ways) or begin or end) or (not topic and not msg_id) or (offset >= 0) != (queue >= 0):
        raise typer.BadParameter("give TOPIC with --key, with --from/--to, or with --queue and --offset; or --id")
    bounds = time_ms(begin, "--from"), time_ms(end, "--to")
    found = run(_query(bootstrap_of(config), timeout, topic, key, msg_id, bounds, (queue, offset, group), most))
    if as_json:
        print_json({"messages": [message_json(each) for each in found.messages], "complete": found.complete})
    else:
        header = ("TOPIC", "REPLICA-GROUP", "QUEUE", "OFFSET", "ID", "KEYS", "TAGS", "STORED", "SIZE", "BODY")
        rows = [
            (
                *(each.topic, each.replica_group, each.queue_id, each.queue_offset, each.msg_id, each.keys, each.tags),
                *(time_text(each.store_timestamp), len(each.body), _body_text(each.body)),
            )
            for each in found.messages
        ]
        print_table(header, rows, right=("QUEUE", "OFFSET", "SIZE"))
    _tell_incomplete(found.complete)
    if not found.messages:
        note(_not_found(msg_id))
        raise typer.Exit(1)


def trace(
    topic: TopicArgument = "",
    key: KeyOption = "",
    msg_id: IdOption = "",
    most: MaxOption = 32,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Tell what became of messages: where they are stored, on which replicas, which groups came past them and when, retries, dead letters.

    Consumption is known by offsets: a group whose committed position is behind a message has consumed it, or was told to go past it.
    """
    if bool(key) == bool(msg_id) or (key and not topic):
        raise typer.BadParameter("give TOPIC with --key, or --id")
    found = run(_trace(bootstrap_of(config), timeout, topic, key, msg_id, most))
    if as_json:
        print_json(trace_json(found))
    else:
        show_traces(found)
    _tell_incomplete(found.complete)
    if not found.copies:
        note(_not_found(msg_id))
        raise typer.Exit(1)


def _not_found(msg_id: str) -> str:
    if not msg_id or (len(msg_id) in ID_LENGTHS and all(character in string.hexdigits for character in msg_id)):
        return "no such message"
    return f"no such message; {msg_id!r} is no message id: expected 32 hexadecimal digits, or 56 of an IPv6 host"


def _tell_incomplete(complete: bool) -> None:
    if not complete:
        note("an index is still being made from the log: there may be more")


def _body_text(body: bytes) -> str:
    text = body[:SHOWN_BODY_BYTES].decode("utf-8", "backslashreplace")
    shown = "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)
    return shown + ("..." if len(body) > SHOWN_BODY_BYTES else "")


async def _query(
    bootstrap: str,
    timeout_s: float,
    topic: str,
    key: str,
    msg_id: str,
    bounds: tuple[int, int],
    place: tuple[int, int, str],
    most: int,
) -> QueryResult:
    from dledger_client.admin.message_query import QueryResult
    from dledger_client.aio import Admin

    queue, offset, group = place
    async with Admin(bootstrap, timeout_ms=int(timeout_s * 1000)) as admin:
        if key:
            return await admin.query_by_key(topic, key, begin_ms=bounds[0], end_ms=bounds[1], max_messages=most)
        if msg_id:
            return await admin.query_by_id(msg_id, topic, max_messages=most)
        if offset < 0:
            return await admin.query_by_time(topic, *bounds, max_messages=most)
        message = await admin.query_by_offset(topic, queue, offset, group=group or None)
        return QueryResult([message] if message is not None else [])


async def _trace(bootstrap: str, timeout_s: float, topic: str, key: str, msg_id: str, most: int) -> Trace:
    from dledger_client.aio import Admin

    wanted: dict[str, Any] = {"topic": topic, "key": key, "msg_id": msg_id, "max_messages": most}
    async with Admin(bootstrap, timeout_ms=int(timeout_s * 1000)) as admin:
        return await admin.trace(**wanted)
