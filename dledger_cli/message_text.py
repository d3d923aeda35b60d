"""Messages and their traces as the command line shows them: JSON objects, and lines for people."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from dledger_cli.output import fields_of, print_line
from dledger_wire.names import SCHEDULE_TOPIC
from dledger_wire.printable import printable, printable_body

if TYPE_CHECKING:
    from dledger_client.admin.message_trace import ConsumerState, Trace, TracedCopy
    from dledger_client.fetch.records import ReceivedMessage


TIME_DIGITS = 13  # of milliseconds since 1970


def time_text(at_ms: int) -> str:
    """A time in UTC, to the millisecond; ``-`` for none."""
    if not at_ms:
        return "-"
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def consumed_json(message: ReceivedMessage) -> dict[str, Any]:
    """The fields that consumers need; a body that is not text is in base64."""
    try:
        body: dict[str, str] = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode("ascii")}
    names = ("topic", "queue_id", "queue_offset", "msg_id", "keys", "tags", "properties")
    return fields_of(message, *names, born_at="born_timestamp", stored_at="store_timestamp") | body


class LineFormat:
    """A text with ``%`` letters for the fields of a message; ``\\n``, ``\\t`` and ``\\\\`` as in a shell."""

    PARTS: ClassVar[dict[str, Callable[[ReceivedMessage], bytes]]] = {
        "t": lambda message: message.topic.encode(),
        "q": lambda message: b"%d" % message.queue_id,
        "o": lambda message: b"%d" % message.queue_offset,
        "i": lambda message: message.msg_id.encode(),
        "k": lambda message: message.keys.encode(),
        "g": lambda message: message.tags.encode(),
        "s": lambda message: b"%d" % message.store_timestamp,
        "p": lambda message: json.dumps(message.properties, ensure_ascii=False).encode(),
        "b": lambda message: bytes(message.body),
        "%": lambda message: b"%",
    }
    ESCAPES: ClassVar[dict[str, str]] = {"n": "\n", "t": "\t", "\\": "\\"}

    def __init__(self, text: str) -> None:
        self._pieces: list[bytes | Callable[[ReceivedMessage], bytes]] = []
        for token in re.findall(r"%.?|\\.?|[^%\\]+", text, re.DOTALL):
            if token[0] == "%":
                if token[1:] not in self.PARTS:
                    expected = " ".join(f"%{letter}" for letter in self.PARTS)
                    raise ValueError(f"{token!r}: expected one of {expected}")
                self._pieces.append(self.PARTS[token[1:]])
            else:
                self._pieces.append((self.ESCAPES.get(token[1:], token) if token[0] == "\\" else token).encode())

    def of(self, message: ReceivedMessage, *, escaped: bool = False) -> bytes:
        """``escaped``: as a terminal may show it, but for what stands in the text itself."""
        shown = _for_terminal if escaped else bytes
        return b"".join(piece if isinstance(piece, bytes) else shown(piece(message)) for piece in self._pieces)


def _for_terminal(value: bytes) -> bytes:
    return printable(value.decode("utf-8", "backslashreplace")).encode()


def body_line(message: ReceivedMessage, *, escaped: bool) -> bytes:
    """The body and a line end; ``escaped``: as a terminal may show it."""
    return (printable_body(message.body).encode() if escaped else message.body) + b"\n"


def message_json(message: ReceivedMessage) -> dict[str, Any]:
    """Every field of a message."""
    names = ("offset_msg_id", "physical_offset", "born_host", "reconsume_times", "replica")
    return consumed_json(message) | fields_of(message, *names, group="replica_group")


def trace_json(trace: Trace) -> dict[str, Any]:
    return {"complete": trace.complete, "copies": [_copy_json(copy) for copy in trace.copies]}


def _copy_json(copy: TracedCopy) -> dict[str, Any]:
    context = copy.message.trace_context
    return fields_of(copy, "kind", "consumer_group") | {
        "trace_id": context.trace_id if context else "",
        "message": message_json(copy.message),
        "replicas": [fields_of(replica, "state", id="node_id") for replica in copy.replicas],
        "consumers": [fields_of(each, "group", "state", "committed", after="after_ms", by="by_ms") for each in copy.consumers],
    }


def show_traces(trace: Trace) -> None:
    """A paragraph a copy, oldest first."""
    for copy in trace.copies:
        message = copy.message
        whose = f" of group {copy.consumer_group}" if copy.consumer_group else ""
        attempt = f", attempt {message.reconsume_times}" if message.reconsume_times and copy.kind != "message" else ""
        place = f"{message.topic}/{message.queue_id} offset {message.queue_offset}"
        print_line(f"{copy.kind}{whose}{attempt}: {place}  id {message.msg_id}")
        where = f"replica group {message.replica_group} at {message.physical_offset}"
        if context := message.trace_context:
            print_line(f"  trace     {context.trace_id} span {context.span_id}{'' if context.sampled else ', not recorded'}")
        print_line(f"  stored    {time_text(message.store_timestamp)} in {where}")
        if copy.kind in ("delayed", "half message"):
            print_line(f"  for       {_destination(message)}")
        if origin := message.properties.get("ORIGIN_MESSAGE_ID"):
            print_line(f"  origin    {origin} in {message.properties.get('RETRY_TOPIC', '?')}")
        print_line(f"  replicas  {', '.join(f'{replica.node_id} {replica.state}' for replica in copy.replicas)}")
        for consumer in copy.consumers:
            print_line(f"  group     {_consumer_text(consumer)}")


def _destination(message: ReceivedMessage) -> str:
    """Where a message goes that waits in a system topic, and when."""
    from dledger_wire.frames.timer import TIMER_OUT

    topic = message.properties.get("REAL_TOPIC", "?")
    due = message.properties.get(TIMER_OUT, "")
    if due.isdecimal() and len(due) == TIME_DIGITS:
        return f"{topic}, at {time_text(int(due))}"
    if message.topic == SCHEDULE_TOPIC:
        return f"{topic}, by delay level {message.queue_id + 1}"
    return f"{topic}, if its transaction is committed"


def _consumer_text(consumer: ConsumerState) -> str:
    if consumer.state == "consumed":
        return f"{consumer.group}: passed (its offset is past the message: processed, sent back or skipped), {_when(consumer)}"
    if consumer.state == "sent back":
        return f"{consumer.group}: sent back, to be delivered again"
    return f"{consumer.group}: not yet, it is at offset {consumer.committed}"


def _when(consumer: ConsumerState) -> str:
    if not consumer.by_ms:
        return "time not known"
    if not consumer.after_ms:
        return f"committed by {time_text(consumer.by_ms)}"
    return f"committed between {time_text(consumer.after_ms)} and {time_text(consumer.by_ms)}"
