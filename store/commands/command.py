"""What every replicated command has: its kind in the log, its fields as JSON, its own checks.

A command is proposed by the leader, written to the log as a JSON object, and applied on every replica.  The JSON is a format on disk:
an old log is read for ever.  A new field must be optional, and must not be written while it has its default (``tests/unit/store/golden``).

Commands are dataclasses, and their fields are what stands in the log, under their names: texts, numbers and flags as they are, tuples as
lists, names as one text with commas between.  None is not written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args, get_type_hints

from dledger_wire.errors import InvalidArgumentError

ResultT = TypeVar("ResultT", covariant=True)
ValueT = TypeVar("ValueT")

JsonObject = dict[str, Any]
OffsetRun = tuple[int, int]  # offsets [first, end)
Names = tuple[str, ...]


class Row(ABC):
    """A field, or a row of one, that says itself how it stands in the log."""

    __slots__ = ()

    @abstractmethod
    def encode(self) -> list[Any]:
        """As a row of JSON."""

    @classmethod
    @abstractmethod
    def decode(cls, row: tuple[Any, ...]) -> Self:
        """What is in the row.  TypeError or ValueError for one of another form."""


class Command(Generic[ResultT]):
    """One change of the replicated state; ``ResultT`` is what applying it returns."""

    __slots__ = ()
    KIND: ClassVar[str]  # its name in the log
    LEVEL: ClassVar[int] = 0  # the replica group's feature level from which on it may be proposed

    def encode(self) -> JsonObject:
        """Its fields as they are written to the log."""
        command: Any = type(self)
        found = ((each, getattr(self, each.attribute)) for each in _stored_fields(command))
        return {each.name: each.write(value) for each, value in found if value is not None and value != each.left_out}

    @classmethod
    def decode(cls, arguments: JsonObject) -> Self:
        """The command in these fields.  InvalidArgumentError for fields of a wrong type; unknown fields are ignored."""
        command: Any = cls
        values: JsonObject = {}
        for each in _stored_fields(command):
            value = arguments.get(each.name)
            try:
                values[each.attribute] = each.empty() if value is None else each.read(value)
            except (TypeError, ValueError):
                raise InvalidArgumentError(f"command {cls.KIND}: field {each.name} is {value!r}") from None
        return cls(**values)

    def check(self) -> None:
        """Raise when the command could never succeed, whatever the state is."""


def optional(default: ValueT, name: str = "") -> ValueT:
    """A field that is not written while it has its default.  ``name``: its name in the log, if that is another one."""
    return field(default=default, metadata={"left_out": default, "name": name})


@dataclass(frozen=True, slots=True)
class _StoredField:
    attribute: str
    name: str
    left_out: object
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]  # TypeError or ValueError for what is not of its type
    empty: Callable[[], Any]  # what a missing field means


@cache
def _stored_fields(command: Any) -> tuple[_StoredField, ...]:
    types = get_type_hints(command)
    return tuple(
        _StoredField(
            each.name,
            each.metadata.get("name") or each.name,
            each.metadata.get("left_out", MISSING),
            ",".join if types[each.name] == Names else _json,
            _reader(types[each.name]),
            _empty(types[each.name]),
        )
        for each in fields(command)
    )


def _json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json(each) for each in value]
    return value.encode() if isinstance(value, Row) else value


def _reader(kind: Any) -> Callable[[Any], Any]:
    inner = get_args(kind)
    if kind == Names:
        return lambda text: tuple(_plain(str, text).split(",")) if text else ()
    if isinstance(kind, UnionType):  # with None
        return _reader(inner[0])
    if inner and inner[-1] is Ellipsis:
        each = _reader(inner[0])
        return lambda rows: tuple(each(row) for row in _plain(list, rows))
    if inner:
        columns = [_reader(column) for column in inner]
        return lambda row: tuple(read(value) for read, value in zip(columns, _plain(list, row), strict=True))
    if issubclass(kind, Row):
        return lambda row: kind.decode(tuple(_plain(list, row)))
    return lambda value: _plain(kind, value)


def _empty(kind: Any) -> Callable[[], Any]:
    if isinstance(kind, UnionType):
        return lambda: None
    read = _reader(kind)
    return kind if kind in (str, int, bool) else lambda: read([])


def _plain(kind: type[ValueT], value: Any) -> ValueT:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r}: expected {kind.__name__}")
    return value
