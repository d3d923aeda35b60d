"""Properties of many messages as Arrow arrays, found by where their separators are, without a loop over messages.

Owns the format of properties in Arrow: ``NAME \\x01 value \\x02`` a property (RocketMQ's), one text a message.  Texts that are not made of
whole properties, as foreign producers store them, are taken apart by regular expressions instead.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Places = npt.NDArray[np.intp]


def cut(kind: pa.DataType, buffer: pa.Buffer, starts: npt.NDArray[np.integer[Any]], ends: npt.NDArray[np.integer[Any]]) -> pa.Array:
    """The spans of ``buffer``, which follow each other, as an array of ``kind``."""
    borders = np.empty(2 * len(starts), np.int32)
    borders[0::2] = starts
    borders[1::2] = ends
    if not len(borders):
        return pa.array([], kind)
    # Offsets that alternate between the spans and the bytes between them: Arrow copies only the spans.
    spans = pa.Array.from_buffers(kind, len(borders) - 1, [None, pa.py_buffer(borders), buffer])
    return spans.take(pa.array(np.arange(0, len(borders) - 1, 2)))


class PropertyColumns:
    """Columns out of ``texts``, the properties of a message each; an array of strings without nulls, as ``cut`` makes it."""

    def __init__(self, texts: pa.Array) -> None:
        self._texts = texts
        _, borders, self._buffer = texts.buffers()
        self._borders = np.frombuffer(borders, np.int32, len(texts) + 1)
        self._data = np.frombuffer(self._buffer, np.uint8, int(self._borders[-1])) if self._borders[-1] else np.zeros(0, np.uint8)

    @cached_property
    def _separators(self) -> tuple[Places, Places]:
        """The places of ``\x01`` and of ``\x02``, where properties end."""
        found = np.flatnonzero((self._data - 1) < 2)  # in one pass, which takes longer than all that is done with them
        is_end = self._data[found] == 2
        return found[~is_end], found[is_end]

    @cached_property
    def _starts(self) -> Places | None:
        """Where each property starts; None when a text has something behind its last property."""
        last = self._borders[1:][np.diff(self._borders) > 0] - 1
        if not (self._data[last] == 2).all():
            return None
        _, ends = self._separators
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        return starts

    def values(self, name: str) -> pa.Array:
        """The first property of that name of every message, null where it is missing."""
        starts, (_, ends) = self._starts, self._separators
        if starts is None:
            matched = pc.extract_regex(self._texts, f"(?:^|\x02){name}\x01(?P<value>[^\x02]*)")
            return pc.struct_field(matched, "value")
        wanted = f"{name}\x01".encode()
        found = np.flatnonzero(ends - starts >= len(wanted))
        for place, byte in enumerate(wanted):
            found = found[self._data[starts[found] + place] == byte]
        if not len(found):
            return pa.nulls(len(self._texts), pa.string())
        rows = np.searchsorted(self._borders, starts[found], side="right") - 1
        is_first = np.ones(len(rows), bool)
        is_first[1:] = rows[1:] != rows[:-1]
        found, rows = found[is_first], rows[is_first]
        values = cut(pa.string(), self._buffer, starts[found] + len(wanted), ends[found])
        if len(rows) == len(self._texts):
            return values
        places = np.zeros(len(self._texts), np.int64)
        places[rows] = np.arange(len(rows))
        is_missing = np.ones(len(self._texts), bool)
        is_missing[rows] = False
        return values.take(pa.array(places, mask=is_missing))

    def maps(self) -> pa.Array:
        """All properties of every message as a map."""
        starts, (equals, ends) = self._starts, self._separators
        if starts is None or not len(equals):
            return self._maps_one_by_one()
        equals = equals[np.minimum(np.searchsorted(equals, starts), len(equals) - 1)]  # the first one of each property
        if not ((starts <= equals) & (equals < ends)).all():
            return self._maps_one_by_one()
        firsts = np.searchsorted(starts, self._borders).astype(np.int32)
        names = cut(pa.string(), self._buffer, starts, equals)
        return pa.MapArray.from_arrays(pa.array(firsts), names, cut(pa.string(), self._buffer, equals + 1, ends))

    def _maps_one_by_one(self) -> pa.Array:
        split = [[pair.partition("\x01") for pair in text.split("\x02")] for text in self._texts.to_pylist()]
        maps = [[(name, value) for name, separator, value in message if separator] for message in split]
        return pa.array(maps, pa.map_(pa.string(), pa.string()))
