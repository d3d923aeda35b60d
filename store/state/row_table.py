"""Tables of replicated state whose snapshots cost what changed since the one before.

Owns which rows a snapshot that is still being encoded may look at: a row that was captured is copied before it changes, and keeps its JSON
for later snapshots as long as it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from store.state.json_pieces import LargeValue, joined

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class _Row(Generic[ValueT]):
    __slots__ = ("encoded", "made_after", "value")

    def __init__(self, value: ValueT, made_after: int) -> None:
        self.value = value
        self.made_after = made_after  # how many captures of the table were taken before it
        self.encoded = b""  # once captured: it does not change any more


class RowTable(Generic[KeyT, ValueT]):
    """Rows in the order of their making.  ``copy`` copies a row's value; ``encode`` is one or more members of a JSON object."""

    def __init__(self, copy: Callable[[ValueT], ValueT], encode: Callable[[KeyT, ValueT], bytes]) -> None:
        self._copy, self._encode = copy, encode
        self._rows: dict[KeyT, _Row[ValueT]] = {}
        self._captures = 0

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: KeyT) -> ValueT | None:
        """To be read only."""
        row = self._rows.get(key)
        return None if row is None else row.value

    def items(self) -> Iterator[tuple[KeyT, ValueT]]:
        """To be read only."""
        return ((key, row.value) for key, row in self._rows.items())

    def change(self, key: KeyT, make: Callable[[], ValueT]) -> ValueT:
        """The value of a row, made when there is none, to be changed by the caller, at once."""
        row = self._rows.get(key)
        if row is None or row.made_after < self._captures:
            row = self._rows[key] = _Row(make() if row is None else self._copy(row.value), self._captures)
        return row.value

    def pop(self, key: KeyT) -> None:
        self._rows.pop(key, None)

    def load(self, items: Iterable[tuple[KeyT, ValueT]]) -> None:
        """These rows instead of the ones there are."""
        self._rows = {key: _Row(value, self._captures) for key, value in items}

    def capture(self) -> CapturedRows[KeyT, ValueT]:
        """Everything as it is now, to be encoded later."""
        self._captures += 1
        return CapturedRows(list(self._rows.items()), self._encode)


class CapturedRows(LargeValue, Generic[KeyT, ValueT]):
    """A table as it was when it was captured."""

    def __init__(self, rows: list[tuple[KeyT, _Row[ValueT]]], encode: Callable[[KeyT, ValueT], bytes]) -> None:
        self._rows, self._encode = rows, encode

    def pieces(self) -> Iterator[bytes]:
        yield b"{"
        yield from joined(self._encoded(key, row) for key, row in self._rows)
        yield b"}"

    def _encoded(self, key: KeyT, row: _Row[ValueT]) -> bytes:
        if not row.encoded:
            row.encoded = self._encode(key, row.value)
        return row.encoded
