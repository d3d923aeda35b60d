"""All consumer groups, the one that lags most first."""

from __future__ import annotations

from dledger_console.data import groups
from dledger_console.data.groups import GroupRow
from dledger_console.layout.shared import list_page
from dledger_console.layout.tables import Cell, Column, Link, Mark
from dledger_console.layout.view import View, console_page

COLUMNS = (
    Column("name", "Consumer group"),
    Column("lag", "Messages behind", number=True),
    Column("state", "State"),
    Column("members", "Members", number=True),
    Column("queues", "Queues", number=True),
    Column("topics", "Topics", note=True),
)
SHOWN_TOPICS = 6


@console_page("/groups", "Consumer groups")
async def groups_page(view: View) -> None:
    """The list."""
    admin = view.admin
    await list_page(view, lambda: groups.list_groups(admin), COLUMNS, _row, label="Consumer groups", empty="no consumer groups")


def _row(row: GroupRow) -> dict[str, Cell]:
    more = f" and {len(row.topics) - SHOWN_TOPICS} more" if len(row.topics) > SHOWN_TOPICS else ""
    return {
        "key": row.name,
        "name": Link.to(row.name, "/group", name=row.name),
        "lag": row.lag,
        "state": Mark(row.state, "good" if not row.lag or row.state == "is reading" else "warn"),
        "members": row.members,
        "queues": row.queues,
        "topics": ", ".join(row.topics[:SHOWN_TOPICS]) + more,
    }
