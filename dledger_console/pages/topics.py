"""All topics: what they hold, how fast they grow, how old their oldest message is; making a topic."""

from __future__ import annotations

import time

from nicegui import ui

from dledger_client.admin.topics import ChangedTopic
from dledger_console.data import topics
from dledger_console.data.topic_history import TopicsSeen
from dledger_console.layout.actions import act_when_answered, action_button
from dledger_console.layout.parts import Missing, Question, given_whole, number_field, text_field, toolbar
from dledger_console.layout.shared import TOPICS_S, WatchedTopics, watched_topics
from dledger_console.layout.tables import Amount, BoundedTable, Cell, Column, Link
from dledger_console.layout.view import View, console_page
from dledger_console.layout.words import number, span

OLDEST_S = 30.0  # an oldest message that is known is not asked for again so soon
COLUMNS = (
    Column("name", "Topic"),
    Column("messages", "Messages", number=True),
    Column("rate", "In / s", number=True),
    Column("out", "Out / s", number=True),
    Column("oldest", "Oldest message", number=True),
    Column("queues", "Queues", number=True),
    Column("groups", "Replica groups"),
    Column("may", "Clients may"),
)


@console_page("/topics", "Topics")
async def topics_page(view: View) -> None:
    """The list."""
    seen = watched_topics(view)
    with toolbar():
        internal = ui.checkbox("Retries and dead letters, too").props("dense")
        action_button(view, "Create topic…", lambda: create(view))
    missing = Missing()
    table = BoundedTable(COLUMNS, key="key", search=True, empty="no topics", label="Topics")
    table.table.classes("topics")

    def show() -> None:
        newest = seen.sampler.newest
        if newest is not None:
            seen.forget_deleted()
            rows = [row for row in newest.topics if internal.value or topics.kind_of(row.topic) == topics.NORMAL]
            table.set_rows([_row(row, newest, seen) for row in rows])
            missing.show(newest.topics.unanswered, read_at=newest.topics.read_at)

    async def find_oldest() -> None:
        newest = seen.sampler.newest
        if newest is None:
            return
        now_s = time.monotonic()
        for name in [str(row["key"]) for row in table.table.rows]:
            if name in newest.ranges and seen.oldest.get(name, (-OLDEST_S, None))[0] + OLDEST_S <= now_s:
                found = await topics.oldest_ms(view.admin, name, newest.ranges[name])
                seen.oldest[name] = (now_s, min(found.values(), default=None))
        show()

    internal.on_value_change(show)
    await view.follow(seen.sampler, show)
    await view.every(TOPICS_S, find_oldest)


def _row(row: ChangedTopic, seen: TopicsSeen, watched_topics: WatchedTopics) -> dict[str, Cell]:
    held = seen.ranges.get(row.topic)
    oldest = watched_topics.oldest.get(row.topic, (0.0, None))[1]
    age_ms, rate = time.time() * 1000 - (oldest or 0), watched_topics.rates.rate(row.topic)
    out = watched_topics.rates.rate_out(row.topic)
    queues: Cell = row.read_queues if row.read_queues == row.write_queues else f"{row.read_queues} read, {row.write_queues} written"
    return {
        "key": row.topic,
        "name": Link.to(row.topic, "/topic", name=row.topic),
        "messages": topics.messages_in(held) if held else Amount("–", -1),
        "rate": Amount(number(rate), -1 if rate is None else rate),
        "out": Amount(number(out), -1 if out is None else out),
        "oldest": Amount(span(age_ms), age_ms) if oldest and held else Amount("–", -1),
        "queues": queues,
        "groups": ", ".join(part.replica_group for part in row.parts),
        "may": topics.perm_text(row.perm),
    }


async def create(view: View) -> None:
    """Ask for a name and a number of queues, and make the topic."""
    with Question("Create a topic", "Create topic") as question:
        name = text_field("Name", hint="letters, digits, _ - % |, at most 127")
        queues = number_field("Queues", None, least=1, most=4096, hint="of all replica groups together; empty: the cluster's default")
        groups = text_field("Replica groups", hint="names with commas between them; empty: all")

    async def work() -> str:
        wanted = [group.strip() for group in str(groups.value or "").split(",") if group.strip()]
        count = 0 if queues.value is None else given_whole(queues)
        made = await view.admin.create_topic(str(name.value or "").strip(), count, replica_groups=wanted)
        return f"topic {made.topic} was created with {made.read_queues} queues in {made.replica_group}"

    await act_when_answered(view, question, work)
