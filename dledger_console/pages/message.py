"""One message: where it lies, its properties and body, its copies, and which consumer groups have passed it."""

from __future__ import annotations

import asyncio

from nicegui import ui

from dledger_client.aio import ReceivedMessage
from dledger_client.types import Trace
from dledger_console.data import bodies, trace
from dledger_console.data.rows import row_of
from dledger_console.layout.parts import Missing, facts, heading, toolbar
from dledger_console.layout.tables import BoundedTable, Cell, Column, Link, Mark, link
from dledger_console.layout.view import View, console_page
from dledger_console.layout.words import size, stored_at
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.printable import printable

FORMS = {"text": "Text", "json": "JSON", "hex": "Hex"}
MAX_PROPERTIES = 200
INCOMPLETE = "an index is still being built, or only a replica that may be behind has answered"
COPIES = (
    Column("kind", "Copy"),
    Column("stored", "Stored"),
    Column("place", "Topic, queue, offset"),
    Column("attempt", "Attempt", number=True),
    Column("replicas", "Replicas", note=True),
)
CONSUMERS = (
    Column("group", "Consumer group"),
    Column("copy", "Copy"),
    Column("state", "State"),
    Column("said", "What it did", note=True),
    Column("when", "Passed it", note=True),
)
PROPERTIES = (Column("name", "Property"), Column("value", "Value", note=True))


@console_page("/message", "Message")
async def message_page(view: View, id: str = "", topic: str = "", group: str = "", queue: int = 0, offset: int = -1) -> None:
    """The message with an id, or the one at an offset of a queue."""
    _field(id)
    found: ReceivedMessage | None = None
    if topic and offset >= 0:
        found = await view.admin.query_by_offset(topic, queue, offset, replica_group=group)
        if found is None:
            raise InvalidArgumentError(f"queue {queue} of topic {topic} in {group} has no message at offset {offset} yet")
        await _show(found)
        traced = await view.admin.trace(msg_id=found.msg_id)
    elif id:
        traced = await view.admin.trace(msg_id=id.strip())
        if not traced.copies:
            ui.label(printable(f"no message with the id {id} is stored")).classes("empty")
            Missing().show(traced.unanswered, *_incomplete(traced))
            return
        await _show(traced.copies[0].message)
    else:
        ui.label("A message is found by its id here, and by key, offset, time or filter on the page of its topic.").classes("empty")
        return
    _show_trace(traced)


def _field(msg_id: str) -> None:
    with toolbar():
        field = ui.input("Message id", value=msg_id).props("dense outlined stack-label").classes("wide")

        def go() -> None:
            if wanted := str(field.value or "").strip():
                ui.navigate.to(link("/message", id=wanted))

        field.on("keydown.enter", go)
        ui.button("Find", on_click=go).props("no-caps unelevated color=primary")


async def _show(message: ReceivedMessage) -> None:
    heading("Stored at")
    with ui.element("div").classes("card"):
        ui.link(printable(message.topic), link("/topic", name=message.topic)).classes("mono")
        facts(
            {
                "Id": message.msg_id,
                "Queue, offset": f"{message.replica_group}/{message.queue_id} at {message.queue_offset}",
                "Position in the log": str(message.physical_offset),
                "Sent": f"{stored_at(message.born_timestamp)} by {message.born_host}",
                "Stored": stored_at(message.store_timestamp),
                "Keys": message.keys or "–",
                "Tag": message.tags or "–",
                "Read from": message.replica,
            }
        )
    await _show_body(bytes(message.body))
    heading("Properties")
    rows: list[dict[str, Cell]] = [
        {"key": str(number), "name": name, "value": value[:2000]}
        for number, (name, value) in enumerate(sorted(message.properties.items())[:MAX_PROPERTIES])
    ]
    BoundedTable(PROPERTIES, key="key", empty="no properties", label="Properties", rows=MAX_PROPERTIES).set_rows(rows)


async def _show_body(body: bytes) -> None:
    heading("Body")
    best = await asyncio.to_thread(bodies.best_form, body)
    with toolbar():
        form = ui.toggle(FORMS, value=best).props("no-caps dense unelevated")
        caption = ui.label("").classes("muted small")
    text = ui.element("pre").classes("body-text").props('tabindex="0" aria-label="Body"')

    async def show() -> None:
        wanted = form.value if form.value in ("text", "json", "hex") else best
        shown = await asyncio.to_thread(bodies.view, body, wanted)  # a tenth of a second for large JSON
        text.props["textContent"] = shown.text or "(empty)"
        text.update()
        said = f"the first {size(shown.shown_bytes)} of {size(shown.size_bytes)}" if shown.cut else size(shown.size_bytes)
        caption.set_text(f"{said}; not JSON, shown as text" if wanted == "json" and shown.form != "json" else said)

    form.on_value_change(show)
    await show()


def _show_trace(traced: Trace) -> None:
    heading("Copies and replicas")
    Missing().show(traced.unanswered, *_incomplete(traced))
    copies: list[dict[str, Cell]] = []
    consumers: list[dict[str, Cell]] = []
    for number, copy in enumerate(traced.copies):
        row = row_of(copy.message)
        place = {"topic": row.topic, "group": row.replica_group, "queue": str(row.queue_id), "offset": str(row.offset)}
        kind = f"{copy.kind} of {copy.consumer_group}" if copy.consumer_group else copy.kind
        copies.append(
            {
                "key": str(number),
                "kind": Mark(kind, "bad") if copy.kind == "dead letter" else kind,
                "stored": stored_at(row.stored_ms),
                "place": Link.to(f"{row.topic}  {row.replica_group}/{row.queue_id} at {row.offset}", "/message", **place),
                "attempt": copy.message.reconsume_times,
                "replicas": trace.replicas_text(copy),
            }
        )
        consumers += [
            {
                "key": f"{number} {consumer.group}",
                "group": Link.to(consumer.group, "/group", name=consumer.group),
                "copy": kind,
                "state": Mark(consumer.state, {"consumed": "good", "sent back": "warn"}.get(consumer.state, "warn")),
                "said": trace.consumer_text(consumer),
                "when": _when(consumer.after_ms, consumer.by_ms),
            }
            for consumer in copy.consumers
        ]
    BoundedTable(COPIES, key="key", empty="no copies", label="Copies").set_rows(copies)
    heading("Consumer groups")
    BoundedTable(CONSUMERS, key="key", empty="no consumer group has read this queue", label="Consumer groups").set_rows(consumers)


def _when(after_ms: int, by_ms: int) -> str:
    if not by_ms:
        return "–"
    return f"between {stored_at(after_ms)} and {stored_at(by_ms)}" if after_ms else f"by {stored_at(by_ms)}"


def _incomplete(traced: Trace) -> list[str]:
    return [] if traced.complete or traced.unanswered else [f"{INCOMPLETE}: there may be more copies"]
