"""``dledger message``: single messages - found by key, id, time or offset, and traced."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.commands import completion
from dledger_cli.context import ask, time_ms
from dledger_cli.help_page import command_group
from dledger_cli.message_text import message_json, show_traces, time_text, trace_json
from dledger_cli.output import json_wanted, note, note_unanswered, print_answer, print_json, unanswered_json
from dledger_cli.watching import reading_command
from dledger_wire.printable import printable

if TYPE_CHECKING:
    from dledger_client.admin.message_query import QueryResult
    from dledger_client.admin.message_trace import Trace
    from dledger_client.aio import Admin

SHOWN_BODY_BYTES = 60
ID_LENGTHS = (32, 56)

TopicArgument = Annotated[str, typer.Argument(metavar="[TOPIC]", help="Topic; not needed with --id.", autocompletion=completion.topics)]
KeyOption = Annotated[str, typer.Option("--key", metavar="KEY", help="One of the message's keys.")]
IdOption = Annotated[str, typer.Option("--id", metavar="ID", help="Message id: the producer's, or that of its position in the log.")]
MaxOption = Annotated[int, typer.Option("--max", metavar="N", min=1, help="At most N messages.")]


def register(root: typer.Typer) -> None:
    app = command_group(root, "message")
    reading_command(app, "query")(query)
    reading_command(app, "trace")(trace)


def query(
    topic: TopicArgument = "",
    key: KeyOption = "",
    msg_id: IdOption = "",
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help="Stored at or after: ms since 1970, or an ISO time in UTC.")] = "",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Stored at or before.")] = "",
    queue: Annotated[int, typer.Option("--queue", metavar="Q", min=-1, help="Queue, with --offset.")] = -1,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=-1, help="Offset in that queue.")] = -1,
    group: Annotated[str, typer.Option("--replica-group", "-g", metavar="G", help="Replica group, with --offset.")] = "",
    max_messages: MaxOption = 32,
) -> None:
    """Find messages by key, id, time or position.  --from and --to limit a search by key, or search by time; a position is --queue
    with --offset.  Exits with 1 if there are none.
    """
    ways = [bool(key), bool(msg_id), offset >= 0]
    if sum(ways) > 1 or not (any(ways) or begin or end) or (not topic and not msg_id) or (offset >= 0) != (queue >= 0):
        raise typer.BadParameter("expected TOPIC with --key, with --from/--to, or with --queue and --offset; or --id")
    span = time_ms(begin, "--from"), time_ms(end, "--to")
    if end and span[0] > span[1]:
        raise typer.BadParameter(f"{begin} is after {end}; expected a time before --to", param_hint="--from")

    async def search(admin: Admin) -> QueryResult:
        from dledger_client.admin.message_query import QueryResult

        if key:
            return await admin.query_by_key(topic, key, begin_ms=span[0], end_ms=span[1], max_messages=max_messages)
        if msg_id:
            return await admin.query_by_id(msg_id, topic, max_messages=max_messages)
        if offset < 0:
            return await admin.query_by_time(topic, *span, max_messages=max_messages)
        message = await admin.query_by_offset(topic, queue, offset, replica_group=group or None)
        return QueryResult([message] if message is not None else [])

    found = ask(search)
    answer = {"messages": [message_json(each) for each in found.messages], "complete": found.complete}
    header = ("TOPIC", "REPLICA-GROUP", "QUEUE", "OFFSET", "ID", "KEYS", "TAGS", "STORED", "SIZE", "BODY")
    rows = [
        (
            *(each.topic, each.replica_group, each.queue_id, each.queue_offset, each.msg_id, each.keys, each.tags),
            *(time_text(each.store_timestamp), len(each.body), _body_text(each.body)),
        )
        for each in found.messages
    ]
    print_answer(answer | unanswered_json(found.unanswered), header, rows, right=("QUEUE", "OFFSET", "SIZE"))
    if not found.messages:
        note(_not_found(msg_id))
    _note_incomplete(found)
    if not found.messages:
        raise typer.Exit(1)


def trace(topic: TopicArgument = "", key: KeyOption = "", msg_id: IdOption = "", max_messages: MaxOption = 32) -> None:
    """Show where messages are stored and which groups read them.  Lists replicas, times of consumption, retries and dead letters.

    Consumption is derived from offsets: a group whose committed offset is past a message has consumed, returned or skipped it.
    """
    if bool(key) == bool(msg_id) or (key and not topic):
        raise typer.BadParameter("expected TOPIC with --key, or --id")
    found = ask(lambda admin: admin.trace(topic=topic, key=key, msg_id=msg_id, max_messages=max_messages))
    if json_wanted():
        print_json(trace_json(found) | unanswered_json(found.unanswered))
    else:
        show_traces(found)
    if not found.copies:
        note(_not_found(msg_id))
    _note_incomplete(found)
    if not found.copies:
        raise typer.Exit(1)


def _not_found(msg_id: str) -> str:
    if not msg_id or (len(msg_id) in ID_LENGTHS and all(character in string.hexdigits for character in msg_id)):
        return "no such message"
    return f"no such message; {msg_id!r} is no message id: expected 32 hexadecimal digits, or 56 of an IPv6 host"


def _note_incomplete(found: QueryResult | Trace) -> None:
    note_unanswered(found.unanswered)
    if not found.complete and not found.unanswered:
        note("an index is still being built from the log, or only a replica that may be behind has answered; there may be more messages")


def _body_text(body: bytes) -> str:
    return printable(body[:SHOWN_BODY_BYTES].decode("utf-8", "backslashreplace")) + ("..." if len(body) > SHOWN_BODY_BYTES else "")
