"""One topic: its messages, its queues; changing and deleting it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from nicegui import ui

from dledger_client.admin.calls import Listed
from dledger_client.admin.topics import ChangedTopic, joined
from dledger_client.aio import Perm, QueueRange
from dledger_console.data import topics
from dledger_console.data.rows import Queue
from dledger_console.data.topic_history import TopicRates, look_at_topic
from dledger_console.history.sampler import Sampler
from dledger_console.layout.actions import act, act_when_answered, action_button, confirm
from dledger_console.layout.browser import MessageBrowser
from dledger_console.layout.parts import Figures, Missing, Question, given_whole, heading, number_field, toolbar
from dledger_console.layout.tables import BoundedTable, Cell, Column
from dledger_console.layout.view import View, console_page
from dledger_console.layout.words import number, span
from dledger_wire.printable import printable

LOOK_S = 3.0
OLDEST_S = 30.0
QUEUES = (
    Column("group", "Replica group"),
    Column("queue", "Queue", number=True),
    Column("messages", "Messages", number=True),
    Column("first", "First offset", number=True),
    Column("next", "Next offset", number=True),
    Column("oldest", "Oldest message", number=True),
)


@console_page("/topic", "Topic")
async def topic_page(view: View, name: str = "") -> None:
    """The topic ``name``."""
    await view.admin.describe_topic(name)  # the page says so when there is none
    ui.label(printable(name)).classes("subject mono")
    figures = Figures(("Messages", "In / s", "Out / s", "Oldest message", "Queues", "Clients may"))
    with toolbar():
        action_button(view, "Change…", lambda: change(view, name))
        action_button(view, "Delete…", lambda: delete(view, name), dangerous=True)
    missing = Missing()
    browser = MessageBrowser(view, name)
    heading("Queues")
    queues = BoundedTable(QUEUES, key="key", empty="no queues that can be read", label="Queues", rows=64)
    rates = TopicRates()
    seen = Sampler(lambda: look_at_topic(view.admin, name), rates.take, LOOK_S)
    oldest: dict[Queue, int] = {}

    def show() -> None:
        if seen.newest is None or not seen.newest.topics:
            return
        (row,), held = seen.newest.topics, seen.newest.ranges[name]
        figures.show(_figures(row, held, rates, oldest))
        browser.set_queues([(queue.replica_group, queue.queue_id) for queue in held])
        queues.set_rows([_queue_row(queue, oldest.get((queue.replica_group, queue.queue_id))) for queue in held])
        missing.show(held.unanswered, read_at=seen.newest.topics.read_at)

    async def find_oldest() -> None:
        if seen.newest is not None and name in seen.newest.ranges:
            found = await topics.oldest_ms(view.admin, name, seen.newest.ranges[name])
            oldest.clear()
            oldest.update(found)
            show()

    await view.follow(seen, show)
    ui.timer(0, browser.show, once=True)
    await view.every(OLDEST_S, find_oldest)


def _figures(row: ChangedTopic, held: Listed[QueueRange], rates: TopicRates, oldest: Mapping[Queue, int]) -> dict[str, str]:
    first_ms = min(oldest.values(), default=0)
    return {
        "Messages": number(topics.messages_in(held)) if held else "–",
        "In / s": number(rates.rate(row.topic)),
        "Out / s": number(rates.rate_out(row.topic)),
        "Oldest message": span(time.time() * 1000 - first_ms) if first_ms else "–",
        "Queues": f"{row.read_queues} read, {row.write_queues} written",
        "Clients may": topics.perm_text(row.perm),
    }


def _queue_row(queue: QueueRange, oldest_ms: int | None) -> dict[str, Cell]:
    return {
        "key": f"{queue.replica_group} {queue.queue_id}",
        "group": queue.replica_group,
        "queue": queue.queue_id,
        "messages": queue.messages,
        "first": queue.min_offset,
        "next": queue.max_offset,
        "oldest": span(time.time() * 1000 - oldest_ms) if oldest_ms else "–",
    }


async def change(view: View, name: str) -> None:
    """Ask for what to change, and do it."""
    now = joined(await view.admin.describe_topic(name), created=False)
    read, write, perm = now.read_queues, now.write_queues, now.perm
    with Question(f"Change topic {name}", "Change topic") as question:
        ui.label("Fewer queues: take away written queues first, read queues when every consumer group has read them.").classes(
            "small muted"
        )
        read_field = number_field("Queues that consumers read", read, least=1, most=4096)
        write_field = number_field("Queues that producers write", write, least=1, most=4096)
        perms = {int(Perm.READ_WRITE): "read and write", int(Perm.READ): "read", int(Perm.WRITE): "write"}
        perm_field = ui.select(perms, value=perm if perm in perms else None, label="Clients may").props("dense outlined").classes("field")

    async def work() -> str:
        wanted = (given_whole(read_field), given_whole(write_field), int(perm_field.value or 0))
        changed = [now if now and now != before else None for now, before in zip(wanted, (read, write, perm), strict=True)]
        if not any(changed):
            return f"topic {name}: nothing was changed"
        done = await view.admin.update_topic(name, read_queues=changed[0], write_queues=changed[1], perm=changed[2])
        return f"topic {name} was changed: {done.read_queues} read and {done.write_queues} written queues, permission {done.perm}"

    await act_when_answered(view, question, work)


async def delete(view: View, name: str) -> None:
    """Ask, with the number of messages that go, and delete the topic."""
    messages = topics.messages_in((await topics.ranges(view.admin, [name]))[name])
    text = (
        f"Its {messages:,} stored messages are deleted on all replicas.\n"
        "Consumer groups lose their positions in it.  This cannot be undone."
    )
    if not await confirm(f"Delete topic {name}?", text, "Delete topic", dangerous=True, type_to_confirm=name):
        return

    async def work() -> str:
        await view.admin.delete_topic(name)
        return f"topic {name} was deleted, with {messages:,} messages"

    if await act(view, work):
        ui.navigate.to("/topics")
