"""All consumer groups, the one that lags most first."""

from __future__ import annotations

from dledger_client.admin.group_progress import GroupProgress
from dledger_console.data import groups
from dledger_console.data.groups import GroupRow
from dledger_console.history.groups import GroupRates
from dledger_console.layout.shared import list_page
from dledger_console.layout.tables import Amount, Cell, Column, Link, Mark
from dledger_console.layout.view import View, console_page
from dledger_console.layout.words import NOT_KNOWN, ago, number, span

COLUMNS = (
    Column("name", "Consumer group"),
    Column("lag", "Messages behind", number=True),
    Column("age", "Oldest waits", number=True),
    Column("state", "State"),
    Column("rate", "Read / s", number=True),
    Column("moved", "Last progress", number=True),
    Column("members", "Members", number=True),
    Column("queues", "Queues", number=True),
    Column("topics", "Topics", note=True),
)
SHOWN_TOPICS = 6


@console_page("/groups", "Consumer groups")
async def groups_page(view: View) -> None:
    """The list."""
    admin, rates = view.admin, view.session.keep("group rates", GroupRates)
    await list_page(view, lambda: groups.list_groups(admin, rates), COLUMNS, _row, label="Consumer groups", empty="no consumer groups")


def state_cell(progress: GroupProgress) -> Cell:
    """What a group does; what is not known has no colour."""
    state = progress.state()
    return Mark(state.text, state.kind) if state.kind else state.text


def moved_cell(at_ms: int, now_ms: int) -> Cell:
    """How long ago a position changed."""
    return Amount(ago(at_ms, now_ms), now_ms - at_ms) if at_ms else Amount(NOT_KNOWN, -1)


def _row(row: GroupRow) -> dict[str, Cell]:
    progress = row.progress
    topics, waits = progress.group.topics, progress.longest_waiting_ms
    more = f" and {len(topics) - SHOWN_TOPICS} more" if len(topics) > SHOWN_TOPICS else ""
    return {
        "key": progress.name,
        "name": Link.to(progress.name, "/group", name=progress.name),
        "lag": Amount(NOT_KNOWN, -1) if progress.lag is None else progress.lag,
        "age": Amount(NOT_KNOWN, -1) if waits is None else Amount(span(waits), waits),
        "state": state_cell(progress),
        "rate": Amount(number(row.rate), -1 if row.rate is None else row.rate),
        "moved": moved_cell(progress.moved_at_ms, progress.at_ms),
        "members": Amount(NOT_KNOWN, -1) if progress.members is None else progress.members,
        "queues": len(progress.group.queues),
        "topics": ", ".join(topics[:SHOWN_TOPICS]) + more,
    }
