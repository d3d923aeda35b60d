"""Dead letters of consumer groups: how many wait, a look at them, sending them again with a rate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from nicegui import ui

from dledger_console.data import dead_letters
from dledger_console.data.browse import Start
from dledger_console.data.dead_letters import LetterRow, Redrive
from dledger_console.layout.actions import act, action_button, confirm, say, saying_errors
from dledger_console.layout.messages import MESSAGES, message_cells
from dledger_console.layout.parts import Figures, Missing, Question, given, given_whole, heading, number_field, toolbar
from dledger_console.layout.shared import list_page
from dledger_console.layout.tables import BoundedTable, Cell, Column, Link, link
from dledger_console.layout.view import View, console_page
from dledger_console.layout.words import number
from dledger_console.web.sessions import Session
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.printable import printable

_logger = logging.getLogger(__name__)

DEFAULT_RATE = 100
MAX_REMEMBERED = 50  # redrives that have ended, whose outcome is still shown
ALREADY = "they are being sent already; stop that first"
COLUMNS = (
    Column("name", "Consumer group"),
    Column("waiting", "Waiting", number=True),
    Column("stored", "Stored", number=True),
    Column("readable", "May be read"),
    Column("groups", "Replica groups"),
)


@console_page("/dead-letters", "Dead letters")
async def dead_letters_page(view: View, group: str = "") -> None:
    """Those of all consumer groups, or of the consumer group ``group``."""
    if group:
        await _of_group(view, group)
        return
    admin = view.admin
    await list_page(
        view, lambda: dead_letters.list_letters(admin), COLUMNS, _row, label="Dead letters", empty="no consumer group has dead letters"
    )


def _row(row: LetterRow) -> dict[str, Cell]:
    return {
        "key": row.consumer_group,
        "name": Link.to(row.consumer_group, "/dead-letters", group=row.consumer_group),
        "waiting": row.waiting,
        "stored": row.stored,
        "readable": "yes" if row.readable else "no",
        "groups": ", ".join(part.replica_group for part in row.parts),
    }


class RunningRedrives:
    """Redrives of one user, by consumer group: they go on to their end while pages and sessions come and go, and stop with the console."""

    def __init__(self) -> None:
        self.of_group: dict[str, Redrive] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_running(self, group: str) -> bool:
        """Whether dead letters of the group are being sent."""
        redrive = self.of_group.get(group)
        return redrive is not None and not redrive.done

    def start(self, session: Session, group: str, redrive: Redrive) -> asyncio.Task[None]:
        """Begin to send; the task that does it.  InvalidArgumentError while others of the group are being sent."""
        if self.is_running(group):
            raise InvalidArgumentError(ALREADY)
        for ended in [name for name in self.of_group if not self.is_running(name)][: len(self.of_group) + 1 - MAX_REMEMBERED]:
            del self.of_group[ended]
        self.of_group[group] = redrive
        task = asyncio.create_task(self._run(session, group, redrive), name=f"redrive {group}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, session: Session, group: str, redrive: Redrive) -> None:
        async with session.held():
            await redrive.run()
        level = logging.INFO if redrive.error is None else logging.WARNING
        _logger.log(level, "%s: %s: %s", session.user or "anonymous", printable(group), printable(redrive.text))

    def close(self) -> None:
        """The console ends: send no more."""
        for redrive in self.of_group.values():
            redrive.stop()


def _running(view: View) -> RunningRedrives:
    return view.session.keep_for_user("redrives", RunningRedrives)


async def _of_group(view: View, name: str) -> None:
    found = await dead_letters.list_letters(view.admin, name)
    if not found and not found.unanswered:
        await view.admin.describe_group(name, partial=True)  # the page says so when there is none
    running = _running(view)
    with ui.element("div").classes("row-line"):
        ui.link("All dead letters", "/dead-letters")
        ui.link(printable(name), link("/group", name=name)).classes("mono")
    figures = Figures(("Waiting", "Stored", "May be read"))
    with toolbar():
        action_button(view, "Send again…", lambda: _send(view, name, running))
        access = action_button(view, "Allow reading…", lambda: _set_readable(view, name))
        stop = action_button(view, "Stop sending", lambda: _stop(running, name))
    progress = ui.linear_progress(0.0, show_value=False).classes("progress").props('aria-label="Sent again"')
    status = ui.label("").classes("notice").props('role="status"')
    missing = Missing()
    letters = Letters(view, name, running)
    seen: dict[str, LetterRow | None] = {}

    async def show() -> None:
        found = await dead_letters.list_letters(view.admin, name)
        row = found[0] if found else None
        missing.show(found.unanswered, read_at=found.read_at)
        figures.show(
            {
                "Waiting": number(row.waiting if row else 0),
                "Stored": number(row.stored if row else 0),
                "May be read": ("yes" if row.readable else "no") if row else "–",
            }
        )
        if access is not None:
            access.set_text("Forbid reading…" if row is not None and row.readable else "Allow reading…")
        before, seen["row"] = seen.get("row"), row
        if before is None or row is None or before.readable != row.readable or before.waiting != row.waiting:
            await letters.show(row)

    def show_progress() -> None:
        redrive = running.of_group.get(name)
        progress.set_visibility(redrive is not None and not redrive.done)
        if stop is not None:
            stop.set_enabled(redrive is not None and not redrive.done)
        if redrive is not None:
            progress.set_value(redrive.sent / redrive.total if redrive.total else 1.0)
            status.set_text(printable(redrive.text))
            status.classes("bad" if redrive.error is not None else "", remove="" if redrive.error is not None else "bad")

    show_progress()
    ui.timer(0.5, show_progress)
    await view.every(2.0, show)


class Letters:
    """The dead letters of one group that wait, in the order they are sent."""

    def __init__(self, view: View, name: str, running: RunningRedrives) -> None:
        self._view, self._name, self._running = view, name, running
        self._row: LetterRow | None = None
        self._next: list[tuple[int, Start]] = []
        heading("Waiting, the next one first")
        self._status = ui.label("").classes("notice muted small")
        self._table = BoundedTable(MESSAGES, key="key", empty="none is waiting", label="Dead letters", rows=500)
        self._table.table.classes("messages")
        if not view.read_only:
            self._table.table.classes("clickable")
            self._table.on_row(saying_errors(self._send_upto))
        self._more = ui.button("Next page", on_click=saying_errors(self._show_next)).props("no-caps outline")
        self._more.set_enabled(False)

    async def show(self, row: LetterRow | None) -> None:
        """The first page of these dead letters."""
        self._row = row
        self._table.table.set_visibility(row is not None and row.readable)
        self._more.set_visibility(row is not None and row.readable)
        if row is None:
            self._status.set_text("this consumer group has no dead letters")
            return
        if not row.readable:
            self._status.set_text("Reading is not permitted: allow it to see them here.  They can be sent again all the same.")
            return
        await self._read([(number, None) for number in range(len(row.parts))])

    async def _send_upto(self, key: str) -> None:
        """Ask whether to send the letter that was clicked, with those in front of it."""
        if self._row is None:
            return
        for part in self._row.parts:
            replica_group, _, place = key.partition(" ")
            if replica_group == part.replica_group:
                await _send(self._view, self._name, self._running, replica_group, int(place.rpartition(" ")[2]))

    async def _show_next(self) -> None:
        await self._read(list(self._next))

    async def _read(self, starts: Sequence[tuple[int, Start | None]]) -> None:
        if self._row is None:
            return
        rows: list[dict[str, Cell]] = []
        self._next = []
        for number_of_part, start in starts:
            page = await dead_letters.look(self._view.admin, self._row.parts[number_of_part], start)
            rows += [message_cells(row) for row in page.rows]
            if page.next is not None:
                self._next.append((number_of_part, page.next))
        self._table.set_rows(rows)
        self._more.set_enabled(bool(self._next))
        how = "" if self._view.read_only else "; click one to send it again, with those in front of it"
        self._status.set_text(f"{len(rows)} shown{how}")


async def _send(view: View, name: str, running: RunningRedrives, replica_group: str = "", last: int | None = None) -> None:
    """Ask how many and how fast, and begin.  ``last``: the offset of the letter in one replica group that was chosen as the last one."""
    if running.is_running(name):
        say(ALREADY, bad=True)
        return
    row = await dead_letters.newest_row(view.admin, name)
    parts = [part for part in row.parts if replica_group in ("", part.replica_group)] if row is not None else []
    waiting = sum(part.waiting for part in parts)
    if not waiting:
        say("none is waiting", bad=True)
        return
    first = 1 if last is None else min(dead_letters.upto(parts[0], last), waiting)
    if not first:
        say("it was sent again already", bad=True)
        return
    ways = {"one": "only the next one" if first == 1 else f"the next {first:,}", "some": "the next ones:", "all": "all that wait now"}
    with Question(f"Send dead letters of {name} again", "Send again") as question:
        ui.label(f"{waiting:,} are waiting.  They are sent in their order; none is sent twice.").classes("dialog-text")
        how_many = ui.radio(ways, value="one").props("dense")
        some = number_field("How many", min(10, waiting), least=1, most=waiting)
        some.bind_visibility_from(how_many, "value", value="some")
        rate = number_field("Messages a second", DEFAULT_RATE, least=0, most=dead_letters.MAX_RATE, hint="0: as fast as it goes")
        where = {"topic": "to their original topics: every consumer group gets them", "group": f"to {printable(name)} alone"}
        to = ui.radio(where, value="group").props("dense")
    if not await question.answer():
        return
    wanted = given_whole(some) if how_many.value == "some" else {"one": first, "all": 0}[str(how_many.value)]
    each_second = given(rate)

    async def work() -> str:
        redrive = Redrive(view.admin, parts, count=wanted, rate=each_second, to_group=to.value == "group")
        ending = running.start(view.session, name, redrive)
        if redrive.total <= 1:
            await asyncio.shield(ending)
            if redrive.error is not None:
                raise redrive.error
            return f"{name}: {redrive.text}"
        return f"{name}: sending {redrive.total:,} dead letters again"

    await act(view, work)


def _stop(running: RunningRedrives, name: str) -> None:
    redrive = running.of_group.get(name)
    if redrive is not None and not redrive.done:
        redrive.stop()
        say(f"{name}: no more are sent")


async def _set_readable(view: View, name: str) -> None:
    """Ask, and let consumers read the dead letters, or no more."""
    row = await dead_letters.newest_row(view.admin, name)
    if row is None:
        say("this consumer group has no dead letters", bad=True)
        return
    readable = not row.readable
    verb = "Allow" if readable else "Forbid"
    text = "Clients that may read the group's topics can read its dead letters then." if readable else "Clients can read them no more."
    if not await confirm(f"{verb} reading the dead letters of {name}?", text, f"{verb} reading"):
        return

    async def work() -> str:
        await view.admin.open_dead_letters(name, readable=readable)
        return f"the dead letters of {name} {'may be read now' if readable else 'may be read no more'}"

    await act(view, work)
