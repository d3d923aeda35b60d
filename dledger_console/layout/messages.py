"""Messages in tables, wherever pages list them."""

from __future__ import annotations

from dledger_console.data.rows import MessageRow
from dledger_console.layout.tables import Amount, Cell, Column, Link
from dledger_console.layout.words import size, time_of_day, zone

MESSAGES = (
    Column("stored", f"Stored, {zone()}"),
    Column("place", "Queue, offset"),
    Column("keys", "Keys"),
    Column("tags", "Tag"),
    Column("size", "Size", number=True),
    Column("body", "Body", note=True),
)


def message_cells(row: MessageRow) -> dict[str, Cell]:
    """A row of a table of messages."""
    place = {"topic": row.topic, "group": row.replica_group, "queue": str(row.queue_id), "offset": str(row.offset)}
    return {
        "key": f"{row.replica_group} {row.queue_id} {row.offset}",
        "stored": Amount(time_of_day(row.stored_ms), row.stored_ms),
        "place": Link.to(f"{row.replica_group}/{row.queue_id} at {row.offset}", "/message", **place),
        "keys": row.keys,
        "tags": row.tags,
        "size": Amount(size(row.size_bytes), row.size_bytes),
        "body": row.preview,
    }
