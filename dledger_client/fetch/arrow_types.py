"""Types of Arrow in signatures, for programs and tools that have pyarrow; nothing imports it before it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.extras import install_command

if TYPE_CHECKING:
    import pyarrow

    ArrowTable: TypeAlias = pyarrow.Table
else:
    ArrowTable = Any

ARROW_COLUMNS = ("queue_offset", "msg_id", "keys", "tags", "body", "born_timestamp", "store_timestamp")  # what ``fetch_arrow`` returns


def require_arrow() -> None:
    """InvalidArgumentError when pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InvalidArgumentError(f"Arrow needs pyarrow ({error}): {install_command('arrow')}") from None
