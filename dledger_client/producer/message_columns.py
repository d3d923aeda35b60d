"""Messages given as columns: a list of bodies, with keys and tags that are one value for all or one a message.

Owns what ``Producer.send_many`` takes: the conversion of lists, numpy and Arrow arrays into byte strings, their checks, and the cut into
batches.  No object is made for a message unless one is asked for by its index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from dledger_client.message import Message, trace_properties, with_trace
from dledger_client.message_fields import check_size
from dledger_client.producer.batches import MESSAGE_OVERHEAD_BYTES
from dledger_wire.batches.batch import MAX_MESSAGES
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import encode_properties
from dledger_wire.frames.frames import cut_bytes
from dledger_wire.trace_context import TraceContext


class ArrowColumn(Protocol):
    """A column of Arrow. Made by pyarrow: ``pyarrow.Array`` and ``pyarrow.ChunkedArray``, by what is needed of them.

    Examples:
        >>> result = producer.send_many("orders", pyarrow.array([b"one", b"two"]))
    """

    @property
    def null_count(self) -> int:
        """The number of values that are null; bodies, keys and tags have none."""
        ...

    def to_pylist(self) -> list[Any]:
        """The values as objects of Python.

        Returns:
            One object for each value.

        Examples:
            >>> bodies = column.to_pylist()
        """
        ...


Bodies: TypeAlias = Sequence[bytes] | npt.NDArray[Any] | ArrowColumn
Texts: TypeAlias = str | Sequence[str] | npt.NDArray[Any] | ArrowColumn


class MessageColumns(Sequence[Message]):
    """Messages of one topic as columns; ``columns[n]`` is message n, a slice is a part of the columns.

    ``extras`` are the encoded properties, ``keys`` and ``tags`` what is in them: one value for all messages, or a list of them.
    """

    __slots__ = ("bodies", "extras", "keys", "tags", "topic")

    def __init__(self, topic: str, bodies: list[bytes], extras: bytes | list[bytes], keys: str | list[str], tags: str | list[str]) -> None:
        self.topic, self.bodies, self.extras, self.keys, self.tags = topic, bodies, extras, keys, tags

    @classmethod
    def of(cls, topic: str, bodies: Bodies, keys: Texts, tags: Texts) -> MessageColumns:
        """The columns of a call, checked.  TypeError, InvalidArgumentError for what no message can have."""
        found = body_list(bodies)
        one_key, one_tag = _column("keys", keys, len(found)), _column("tags", tags, len(found))
        Message(topic, b"")  # refuses a topic that is no text
        extras = _each_extras(one_key, one_tag, len(found))
        return cls(topic, found, extras, one_key, one_tag)

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, place: int) -> Message: ...

    @overload
    def __getitem__(self, place: slice) -> MessageColumns: ...

    def __getitem__(self, place: int | slice) -> Message | MessageColumns:
        if isinstance(place, slice):
            return MessageColumns(self.topic, self.bodies[place], *(_at(column, place) for column in (self.extras, self.keys, self.tags)))
        message = Message(self.topic, self.bodies[place])
        message.keys, message.tags, message.extras = _at(self.keys, place), _at(self.tags, place), _at(self.extras, place)
        return message

    def __iter__(self) -> Iterator[Message]:
        return map(self.__getitem__, range(len(self.bodies)))

    def rows(self, numbers: Sequence[int]) -> MessageColumns:
        """The messages of these numbers."""
        return MessageColumns(
            self.topic,
            *(_picked(column, numbers) for column in (self.bodies, self.extras, self.keys, self.tags)),
        )

    def followed_by(self, other: MessageColumns) -> MessageColumns:
        """These messages, then ``other`` of the same topic."""
        mine, theirs = (self.extras, self.keys, self.tags), (other.extras, other.keys, other.tags)
        joined = (_joined(first, second, len(self), len(other)) for first, second in zip(mine, theirs, strict=True))
        return MessageColumns(self.topic, self.bodies + other.bodies, *joined)

    def traced(self, context: TraceContext) -> MessageColumns:
        """The messages as part of a trace; those that have no room for it stay as they are."""
        added = encode_properties(trace_properties(context))
        extras = with_trace(self.extras, added) if isinstance(self.extras, bytes) else [with_trace(each, added) for each in self.extras]
        return MessageColumns(self.topic, self.bodies, extras, self.keys, self.tags)

    @property
    def largest_body(self) -> int:
        return max(map(len, self.bodies), default=0)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each message, as the limits of a producer count them."""
        lengths = np.fromiter(map(len, self.bodies), np.int64, len(self.bodies)) + MESSAGE_OVERHEAD_BYTES
        extras = self.extras
        return lengths + (len(extras) if isinstance(extras, bytes) else np.fromiter(map(len, extras), np.int64, len(extras)))

    def batches(self, max_bytes: int, max_messages: int = MAX_MESSAGES) -> list[tuple[int, MessageColumns, int]]:
        """The messages cut into parts of at most ``max_bytes``, or of one message: (number of the first, part, size in bytes) of each."""
        ends = np.cumsum(self.sizes())
        parts, first, size_before = [], 0, 0
        while first < len(self.bodies):
            end = int(np.searchsorted(ends, size_before + max_bytes, "right"))
            end = min(max(end, first + 1), first + max_messages)
            parts.append((first, self[first:end], int(ends[end - 1]) - size_before))
            first, size_before = end, int(ends[end - 1])
        return parts


def _at(column: Any, place: int | slice) -> Any:
    return column[place] if isinstance(column, list) else column


def _picked(column: Any, numbers: Sequence[int]) -> Any:
    return [column[number] for number in numbers] if isinstance(column, list) else column


def _joined(first: Any, second: Any, count: int, second_count: int) -> Any:
    """One column after the other; equal constants stay one."""
    if not isinstance(first, list) and first == second:
        return first
    return (first if isinstance(first, list) else [first] * count) + (second if isinstance(second, list) else [second] * second_count)


def _column(name: str, values: Texts, count: int) -> str | list[str]:
    """Keys or tags of ``count`` messages."""
    if isinstance(values, str):
        return values
    listed = _listed(name, values)
    if len(listed) != count:
        raise InvalidArgumentError(f"{name}: {len(listed)} values for {count} bodies; expected one text, or as many as there are bodies")
    wrong = next((place for place, value in enumerate(listed) if not isinstance(value, str)), None)
    if wrong is not None:
        raise TypeError(f"{name}[{wrong}] is {type(listed[wrong]).__name__}; expected text")
    return listed


def _each_extras(keys: str | list[str], tags: str | list[str], count: int) -> bytes | list[bytes]:
    """The property string behind UNIQ_KEY: one for all messages, or one a message.  The tag comes first, where the leader looks for it."""
    parts = {tag: Message("t", b"", tags=tag).extras for tag in ({tags} if isinstance(tags, str) else set(tags))}
    if isinstance(keys, str) and isinstance(tags, str):
        extras = parts[tags] + _key_part(keys)
        check_size(extras, "keys and tags")
        return extras
    starts = [parts[tags]] * count if isinstance(tags, str) else [parts[tag] for tag in tags]
    ends = [_key_part(keys)] * count if isinstance(keys, str) else map(_key_part, keys)
    each = list(map(bytes.__add__, starts, ends))
    check_size(max(each, key=len, default=b""), "keys and tags")
    return each


def _key_part(keys: str) -> bytes:
    return encode_properties({"KEYS": keys}) if keys else b""


def body_list(bodies: Bodies) -> list[bytes]:
    """The bodies as byte strings.  TypeError for anything else, with its place.

    Of a two-dimensional numpy array of bytes each row is a body; an array of numpy's type ``S`` gives up its trailing zeros, as numpy has
    it.
    """
    listed = _listed("bodies", bodies)
    if set(map(type, listed)) <= {bytes}:
        return listed
    for place, body in enumerate(listed):
        if isinstance(body, bytearray | memoryview):
            listed[place] = bytes(body)
        elif not isinstance(body, bytes):
            hint = "; encode text first" if isinstance(body, str) else ""
            raise TypeError(f"bodies[{place}] is {type(body).__name__}; expected bytes{hint}")
    return listed


def _listed(name: str, values: Any) -> list[Any]:
    """The values of a column as a new list, or one that is not changed."""
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise TypeError(f"{name} is {type(values).__name__}; expected a list, a numpy array or an Arrow array")
    if isinstance(values, np.ndarray):
        return _of_numpy(name, values)
    if hasattr(values, "to_pylist") and hasattr(values, "null_count"):
        return _of_arrow(name, values)
    try:
        return list(values)
    except TypeError:
        raise TypeError(f"{name} is {type(values).__name__}; expected a list, a numpy array or an Arrow array") from None


def _of_numpy(name: str, values: npt.NDArray[Any]) -> list[Any]:
    if values.ndim == 1 and values.dtype.kind in "OSU":
        listed: list[Any] = values.tolist()
        return listed
    if values.ndim == 1 and values.dtype.kind == "V":
        values = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)
    if values.ndim != 2 or values.dtype != np.uint8:
        text = "expected one dimension of bytes objects, of type S or V, or rows of uint8"
        raise TypeError(f"{name} is a numpy array of type {values.dtype} with {values.ndim} dimensions; {text}")
    count, width = values.shape
    return cut_bytes(values.tobytes(), np.arange(count, dtype=np.int64) * width, np.full(count, width, np.int64))


def _of_arrow(name: str, values: Any) -> list[Any]:
    """Binary columns are cut out of their buffers; others become Python's objects by Arrow itself."""
    if values.null_count:
        raise TypeError(f"{name} has {values.null_count} nulls; expected none")
    chunks = values.chunks if hasattr(values, "chunks") else [values]
    found: list[Any] = []
    for chunk in chunks:
        kind = {"binary": np.int32, "large_binary": np.int64}.get(str(chunk.type))
        if kind is None or not len(chunk):
            found += chunk.to_pylist()
            continue
        _, offsets, data = chunk.buffers()
        places = np.frombuffer(offsets, kind)[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64)
        found += cut_bytes(b"" if data is None else memoryview(data), places[:-1], np.diff(places))
    return found
