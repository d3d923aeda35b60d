"""The messages of a topic as a person looks through them: by age, time, offset, key, id or filter, a page at a time."""

from __future__ import annotations

import asyncio

from nicegui import ui

from dledger_console.data import browse, search
from dledger_console.data.browse import Start
from dledger_console.data.rows import MessageRow, Queue
from dledger_console.layout.messages import MESSAGES, message_cells
from dledger_console.layout.parts import heading, toolbar
from dledger_console.layout.tables import BoundedTable
from dledger_console.layout.view import View
from dledger_console.layout.words import TIME_HINT, counted, time_ms
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.printable import printable

NEWEST, OLDEST, TIME, OFFSET, KEY, ID, SQL, TAGS = "newest", "oldest", "time", "offset", "key", "id", "sql", "tags"
WAYS = {
    NEWEST: "Newest first",
    OLDEST: "Oldest first",
    TIME: "From a time on",
    OFFSET: "From an offset on",
    KEY: "With a key",
    ID: "With an id",
    SQL: "Filter (SQL)",
    TAGS: "With a tag",
}
HINTS = {
    TIME: TIME_HINT,
    OFFSET: "an offset; choose a queue as well",
    KEY: "one key, without spaces",
    ID: "a message id",
    SQL: "amount > 10 AND region = 'eu'",
    TAGS: "created || paid",
}
ALL = "all queues"
MAX_DIGITS = 19  # of an offset


class MessageBrowser:
    """The messages of a topic: how to look for them, one page of them, and the way to the next one."""

    def __init__(self, view: View, topic: str) -> None:
        self._view, self._topic = view, topic
        self._queues: list[Queue] = []
        self._next: Start | None = None
        self._asked = asyncio.Lock()
        heading("Messages")
        with toolbar():
            self._way = ui.select(WAYS, value=NEWEST, on_change=self._changed).props('dense outlined aria-label="What to show"')
            self._queue = ui.select([ALL], value=ALL, on_change=self._restart).props('dense outlined aria-label="Queue"')
            self._sought = ui.input(on_change=self._restart).props('dense outlined clearable aria-label="What to look for"').classes("wide")
            self._sought.on("keydown.enter", self.show)
            ui.button("Show", on_click=self.show).props("no-caps unelevated color=primary")
            self._more = ui.button("Next page", on_click=self._show_next).props("no-caps outline")
        self._status = ui.label("").classes("notice muted small").props('role="status"')
        self._table = BoundedTable(MESSAGES, key="key", empty="no messages", label="Messages", rows=browse.MAX_ROWS)
        self._table.table.classes("messages")
        self._more.set_enabled(False)
        self._changed()

    def set_queues(self, queues: list[Queue]) -> None:
        """The queues that may be chosen."""
        if queues != self._queues:
            self._queues = queues
            self._queue.set_options([ALL, *(f"{group} {number}" for group, number in queues)])

    async def show(self) -> None:
        """Look for what the fields say."""
        await self._ask(None)

    async def _show_next(self) -> None:
        await self._ask(self._next)

    async def _ask(self, start: Start | None) -> None:
        async with self._asked:
            self._status.set_text("reading…")
            try:
                rows, parts, self._next = await self._read(start)
            except DledgerError as error:
                self._status.set_text(printable(error.message))
                self._status.classes("bad", remove="muted")
                return
            self._status.classes("muted", remove="bad")
            self._status.set_text(printable(parts))
            self._table.set_rows([message_cells(row) for row in rows])
            self._more.set_enabled(self._next is not None)

    async def _read(self, start: Start | None) -> tuple[list[MessageRow], str, Start | None]:
        """Rows, what to say of them, and where the next page begins."""
        admin, topic, way, sought = self._view.admin, self._topic, str(self._way.value), str(self._sought.value or "").strip()
        if way in (KEY, ID):
            found = await (search.by_key(admin, topic, sought) if way == KEY else search.by_id(admin, sought, topic))
            return list(found.rows), _found_text(found), None
        if way in (SQL, TAGS):
            if not sought:
                raise InvalidArgumentError(f"expected a filter, such as {HINTS[way]}")
            start = start or await browse.oldest(admin, topic, self._chosen())
            sql, tags = (sought, "*") if way == SQL else ("", sought)
            filtered = await search.by_filter(admin, topic, start, sql=sql, tags=tags)
            return list(filtered.rows), _found_text(filtered), filtered.next
        page = await browse.page(admin, topic, start or await self._start(way, sought))
        parts = [counted(len(page.rows), "message") + (f", read from {', '.join(page.replicas)}" if page.replicas else "")]
        parts += page.notes
        parts += [f"{group} does not answer: {error.message}" for group, error in page.unanswered.items()]
        return list(page.rows), " · ".join(parts), page.next

    async def _start(self, way: str, sought: str) -> Start:
        admin, topic, queue = self._view.admin, self._topic, self._chosen()
        if way == OLDEST:
            return await browse.oldest(admin, topic, queue)
        if way == TIME:
            return await browse.at_time(admin, topic, time_ms(sought), queue)
        if way == OFFSET:
            if queue is None and len(self._queues) == 1:
                queue = self._queues[0]
            if queue is None or not sought.isdecimal() or len(sought) > MAX_DIGITS:
                raise InvalidArgumentError("expected a queue, and an offset in it")
            return browse.at_offset(queue, int(sought))
        return await browse.newest(admin, topic, queue)

    def _chosen(self) -> Queue | None:
        text = str(self._queue.value)
        return next((queue for queue in self._queues if f"{queue[0]} {queue[1]}" == text), None)

    def _changed(self) -> None:
        way = str(self._way.value)
        self._sought.props["placeholder"] = HINTS.get(way, "")
        self._sought.set_enabled(way in HINTS)
        self._queue.set_enabled(way not in (KEY, ID))
        self._restart()

    def _restart(self) -> None:
        """What is asked for has changed: there is no next page of it."""
        self._next = None
        self._more.set_enabled(False)


def _found_text(found: search.Found) -> str:
    """What a search found, in words."""
    parts = [f"{counted(len(found.rows), 'message')} found"]
    if found.read:
        parts.append(f"{found.read:,} were read")
    if found.next is not None:
        parts.append("there may be more: next page")
    elif not found.complete:
        parts.append("there may be more: an index is being built, or a replica group does not answer")
    parts += [f"{group} does not answer: {error.message}" for group, error in found.unanswered.items()]
    return " · ".join(parts)
