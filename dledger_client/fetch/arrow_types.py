"""Types of Arrow in signatures, for programs and tools that have pyarrow; nothing imports it before it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow

    from dledger_client.fetch.records import ReceivedMessage

    ArrowTable: TypeAlias = pyarrow.Table
else:
    ArrowTable = Any

ARROW_COLUMNS = ("queue_offset", "msg_id", "keys", "tags", "body", "born_timestamp", "store_timestamp")  # what ``fetch_arrow`` returns

POLLED_COLUMNS = ("topic", "group", "queue_id", *ARROW_COLUMNS)  # what ``poll_arrow`` returns: messages of several queues


def arrow_table(messages: Sequence[ReceivedMessage], columns: Sequence[str]) -> ArrowTable:
    """A table with a row for each message.  InvalidArgumentError when pyarrow is not installed, or a column is unknown."""
    require_arrow()
    from dledger_client.fetch.arrow_chunks import table_of_messages

    return table_of_messages(messages, columns)


def require_arrow() -> None:
    """InvalidArgumentError when pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InvalidArgumentError(f"Arrow needs pyarrow ({error}): {install_command('arrow')}") from None
