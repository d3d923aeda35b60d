"""Columns of a read: names, order and types, and column selection.

The Python data source API has no column pruning, so a query selects columns by the schema it passes or by the options
``columns``, ``includeBody`` and ``includeProperties``.  Columns that are not selected are not built; bodies that are
not selected are not fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dledger_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Name -> Spark DDL type, in the order of the full schema.
COLUMNS: dict[str, str] = {
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "msg_id": "string",
    "keys": "string",
    "tags": "string",
    "body": "binary",
    "born_timestamp": "timestamp",
    "store_timestamp": "timestamp",
    "properties": "map<string,string>",
    "group": "string",
    "replica": "string",
}
# Returned only if a schema or the option ``columns`` names them.
EXTRA_COLUMNS: dict[str, str] = {
    "body_size": "int",  # stored size: of a compressed body, its compressed size
    "physical_offset": "bigint",
    "traceparent": "string",  # W3C Trace Context, NULL without one
    "tracestate": "string",
}
ALL_COLUMNS = COLUMNS | EXTRA_COLUMNS
NEEDS_BODY = frozenset({"body"})  # without these, bodies are not fetched


def ddl(columns: Sequence[str]) -> str:
    """The schema of ``columns`` as Spark's data definition text."""
    return ", ".join(f"`{name}` {ALL_COLUMNS[name]}" for name in columns)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that the user passed (``spark.read.schema(...)``), in its order.

    Raises InvalidArgumentError for an unknown name or another type.
    """
    names = []
    for field in schema.fields:
        expected = ALL_COLUMNS.get(field.name)
        if expected is None:
            raise InvalidArgumentError(f"schema: column {field.name!r} is unknown; expected some of {', '.join(ALL_COLUMNS)}")
        given = field.dataType.simpleString()
        if given != expected:
            raise InvalidArgumentError(f"schema: column {field.name!r} is {given}; expected {expected}")
        if not field.nullable:
            raise InvalidArgumentError(f"schema: column {field.name!r} is declared not null; expected a nullable column")
        names.append(field.name)
    return tuple(names)


def checked_columns(text: str) -> tuple[str, ...]:
    """The columns of option ``columns``: names separated by commas."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [name for name in names if name not in ALL_COLUMNS]
    if unknown or not names:
        raise InvalidArgumentError(f"option columns: {text!r}; expected a comma-separated list of {', '.join(ALL_COLUMNS)}")
    if len(set(names)) != len(names):
        raise InvalidArgumentError(f"option columns: {text!r} names a column twice")
    return names
