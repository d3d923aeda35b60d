"""What every replicated command has: its kind in the log, its fields as JSON, its own checks.

A command is proposed by the leader, written to the log as a JSON object, and applied on every replica.  The JSON is a format on disk:
an old log is read for ever.  A new field must be optional, and must not be written while it has its default (``tests/unit/store/golden``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

from dledger_wire.errors import InvalidArgumentError

ResultT = TypeVar("ResultT", covariant=True)

JsonObject = dict[str, Any]
OffsetRun = tuple[int, int]  # offsets [first, end)


class Command(ABC, Generic[ResultT]):
    """One change of the replicated state; ``ResultT`` is what applying it returns."""

    __slots__ = ()
    KIND: ClassVar[str]  # its name in the log
    LEVEL: ClassVar[int] = 0  # the replica group's feature level from which on it may be proposed

    @abstractmethod
    def encode(self) -> JsonObject:
        """Its fields as they are written to the log."""

    @classmethod
    @abstractmethod
    def decode(cls, fields: Fields) -> Self:
        """The command in these fields.  InvalidArgumentError for fields of a wrong type; unknown fields are ignored."""

    def check(self) -> None:
        """Raise when the command could never succeed, whatever the state is."""


class Fields:
    """Reads the fields of a command out of a log entry."""

    def __init__(self, kind: str, arguments: Mapping[str, object]) -> None:
        self._kind = kind
        self._arguments = arguments

    def text(self, name: str) -> str:
        """Empty when the field is missing."""
        return self._typed(name, str) or ""

    def integer(self, name: str, default: int = 0) -> int:
        value = self._typed(name, int)
        return default if value is None else value

    def optional_integer(self, name: str) -> int | None:
        return self._typed(name, int)

    def flag(self, name: str) -> bool:
        return bool(self._typed(name, bool))

    def optional_flag(self, name: str) -> bool | None:
        return self._typed(name, bool)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """A table; empty when the field is missing."""
        value = self._typed(name, list) or []
        if not all(isinstance(row, list) for row in value):
            raise self._wrong(name, value)
        return [tuple(row) for row in value]

    def row(self, name: str) -> tuple[Any, ...]:
        """One row of a table; empty when the field is missing."""
        return tuple(self._typed(name, list) or [])

    def integers(self, name: str) -> tuple[int, ...]:
        value = self._typed(name, list) or []
        if not all(isinstance(number, int) for number in value):
            raise self._wrong(name, value)
        return tuple(value)

    def runs(self, name: str) -> tuple[OffsetRun, ...]:
        return tuple((int(first), int(end)) for first, end in self.rows(name))

    def _typed(self, name: str, wanted: type[_ValueT]) -> _ValueT | None:
        value = self._arguments.get(name)
        if value is None or isinstance(value, wanted):
            return value
        raise self._wrong(name, value)

    def _wrong(self, name: str, value: object) -> InvalidArgumentError:
        return InvalidArgumentError(f"command {self._kind}: field {name} is {value!r}")


_ValueT = TypeVar("_ValueT")


def without_none(fields: JsonObject) -> JsonObject:
    """Only the fields that are given."""
    return {name: value for name, value in fields.items() if value is not None}


def json_runs(runs: Sequence[OffsetRun]) -> list[list[int]]:
    return [list(run) for run in runs]
