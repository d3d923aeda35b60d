"""What consumers get: chunks of frames as a replica sent them, and the messages in them.

Owns decoding on the reader's side.  A chunk is split into columns at once; a message is a row of it that turns its properties into a
dictionary only when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dledger_wire._pb import broker_pb2
from dledger_wire.errors import CorruptFrameError
from dledger_wire.frames.body_crc import first_bad_body
from dledger_wire.frames.compress import compression_in, decompress
from dledger_wire.frames.frame_layout import decode_properties
from dledger_wire.frames.frames import FrameColumns, Records, cut_bytes, frame_columns, frame_positions, uniform_stride
from dledger_wire.frames.message_id import offset_message_id
from dledger_wire.status import SysFlag
from dledger_wire.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """The offsets that a queue holds: ``min_offset`` to ``max_offset`` (exclusive).

    Attributes:
        min_offset: The first message; older ones have expired.
        max_offset: The offset that the next message will get.
        at_time: The first message stored at or after the requested time; -1 without one.
        topic_epoch: Identifies the topic; another value when it was deleted and created again.
    """

    min_offset: int
    max_offset: int
    at_time: int
    topic_epoch: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaLag:
    """How far a replica was behind when it responded.

    A follower that lost its leader reports few entries and a long silence: it cannot know what was committed meanwhile.

    Attributes:
        entries: Committed log entries, as far as the replica knows, that it had not applied.
        leader_silent_ms: Milliseconds since it received something from a leader; 0: it is the leader; None: nothing since it started.
    """

    entries: int = 0
    leader_silent_ms: int | None = None


class Chunk:
    """Consecutive messages of one queue as stored frames; ``messages`` decodes them. Reading continues at ``next_offset``.

    Args:
        topic: The topic.
        replica_group: The replica group that stores the queue.
        queue_id: The queue.
        replica: The id of the node that sent the chunk.
        offsets: Queue offset of each message.
        sizes: Size of each frame in bytes.
        frames: The frames, back to back.
        next_offset: Where to read on, behind filtered messages too.
        max_offset: The end of the queue as the replica knew it.
        bodiless: The frames have no bodies.

    Attributes:
        lag: How far the replica was behind.
        topic_epoch: Identifies the topic, see ``QueueOffsets``; empty when the replica did not send it.

    Examples:
        >>> async for chunk in consumer.read_chunks("orders", 0, 0, 1_000):
        ...     print(chunk.replica, chunk.count, chunk.next_offset)
    """

    def __init__(
        self,
        topic: str,
        replica_group: str,
        queue_id: int,
        replica: str,
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[Any],
        frames: memoryview | bytes,
        next_offset: int = 0,
        max_offset: int = 0,
        *,
        bodiless: bool = False,
    ) -> None:
        self.topic, self.replica_group, self.queue_id, self.replica = topic, replica_group, queue_id, replica
        self.offsets, self.sizes, self.frames = offsets, sizes, frames
        self.next_offset, self.max_offset, self.bodiless = next_offset, max_offset, bodiless
        self.lag = ReplicaLag()
        self.topic_epoch = ""

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the frames may be a view, which cannot be pickled; the columns are made again."""
        return {name: value for name, value in vars(self).items() if name != "columns"} | {"frames": bytes(self.frames)}

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.sizes)

    @cached_property
    def columns(self) -> FrameColumns:
        """Positions and fixed fields of all frames as numpy arrays. CorruptFrameError when bytes of the chunk are not a message."""
        return frame_columns(np.frombuffer(self.frames, np.uint8), frame_positions(self.sizes), bodiless=self.bodiless)

    def damaged_offset(self) -> int | None:
        """Verify every message: size, queue, offset, position in the log, and the CRC of its body.

        Returns:
            The queue offset of the first damaged message; None when all are intact.

        Examples:
            >>> if chunk.damaged_offset() is None:
            ...     bodies = [message.body for message in chunk.messages()]
        """
        if not len(self.sizes):
            return None
        try:
            columns = self.columns
        except CorruptFrameError as error:
            return int(self.offsets[max(0, error.detail_int("first_bad", 0))])
        misplaced = self._misplaced(columns.heads)
        if misplaced.any():
            return int(self.offsets[misplaced.argmax()])
        if self.bodiless:
            return None
        bad = first_bad_body(
            np.frombuffer(self.frames, np.uint8),
            columns.body_at,
            columns.body_length,
            columns.heads["body_crc"].astype(np.uint32),
            stride=uniform_stride(self.sizes) if uniform_stride(columns.body_length + 1) else 0,
        )
        return None if bad is None else int(self.offsets[bad])

    def _misplaced(self, heads: Records) -> npt.NDArray[np.bool_]:
        """Which messages do not say of themselves what they were asked for as: size, queue, queue offset, a place in the log behind the
        message before.  Their magics and that all lengths add up is known by then."""
        sizes, places = heads["total_size"].astype(np.int64), heads["physical_offset"].astype(np.int64)
        cut_out = heads["body_length"].astype(np.int64) if self.bodiless else 0
        bad: npt.NDArray[np.bool_] = (sizes - cut_out != self.sizes) | (heads["queue_id"] != self.queue_id) | (places < 0)
        bad |= heads["queue_offset"] != self.offsets
        bad[1:] |= places[1:] < places[:-1] + sizes[:-1]
        return bad

    def cut(self, end: int) -> None:
        """Drop messages at and behind an offset.

        Args:
            end: The first offset to drop.

        Examples:
            >>> chunk.cut(1_000)
        """
        if self.next_offset <= end:
            return
        count = int((self.offsets < end).sum())
        size = int(self.sizes[:count].sum())
        self.offsets, self.sizes, self.frames = self.offsets[:count], self.sizes[:count], self.frames[:size]
        self.next_offset = end
        self.__dict__.pop("columns", None)

    def messages(self, kind: type[ReceivedMessage] | None = None) -> list[ReceivedMessage]:
        """Decode the chunk.

        Args:
            kind: The class of the messages; for internal use.

        Returns:
            Every message, in order.

        Raises:
            CorruptFrameError: Bytes of the chunk are not a message.

        Examples:
            >>> bodies = [message.body for message in chunk.messages()]
        """
        rows, kind = _Rows(self), kind or ReceivedMessage
        if rows.has_compressed:
            opening = OPENING[kind]
            return [(opening if flag & SysFlag.COMPRESSED else kind)(rows, row) for row, flag in enumerate(rows.flags)]
        return [kind(rows, row) for row in range(len(self.sizes))]


class _Rows:
    """The columns of a chunk as Python lists, each made when it is first asked for; the chunk may be cut meanwhile."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.columns = chunk.columns
        self._frames, self._sizes = chunk.frames, chunk.sizes
        self.offsets: list[int] = chunk.offsets.tolist()
        self.bodies = cut_bytes(chunk.frames, self.columns.body_at, self.columns.body_length)
        self.has_compressed = not chunk.bodiless and bool((self.columns.heads["sys_flag"] & int(SysFlag.COMPRESSED)).any())

    @cached_property
    def flags(self) -> list[int]:
        found: list[int] = self.columns.heads["sys_flag"].tolist()
        return found

    @cached_property
    def properties(self) -> list[bytes]:
        return cut_bytes(self._frames, self.columns.properties_at, self.columns.properties_length)

    @cached_property
    def born_hosts(self) -> list[str]:
        return self.columns.hosts("born_host")

    def head(self, row: int, field: str) -> int:
        return int(self.columns.heads[field][row])

    def alone(self, row: int) -> Chunk:
        """A chunk with this message only."""
        chunk, sizes, offset = self.chunk, self._sizes[row : row + 1], self.offsets[row]
        row_end = int(self._sizes[: row + 1].sum())
        frame = bytes(self._frames[row_end - int(sizes[0]) : row_end])
        place = chunk.topic, chunk.replica_group, chunk.queue_id, chunk.replica, np.array([offset], chunk.offsets.dtype), sizes
        alone = Chunk(*place, frame, offset + 1, chunk.max_offset, bodiless=chunk.bodiless)
        alone.topic_epoch = chunk.topic_epoch
        return alone

    def store_host(self, row: int) -> bytes:
        host = bytes(self.columns.heads["store_host"][row].tobytes())
        return host if self.head(row, "sys_flag") & SysFlag.STORE_HOST_V6 else host[:8]


class ReceivedMessage:
    """One stored message. Times are milliseconds since 1970. Clients make it; do not construct it.

    Where it is stored: ``topic``, ``replica_group``, ``queue_id``, ``queue_offset``. What the producer gave: ``body``, ``keys``, ``tags``,
    ``properties``. All that it has is described below.

    Args:
        rows: The decoded chunk.
        row: The number of the message in it.

    Attributes:
        body: The content; decompressed when the producer compressed it.
        queue_offset: Its offset in the queue.

    Examples:
        >>> for message in await consumer.fetch("orders", 0, 0):
        ...     print(message.queue_offset, message.keys, message.body)
    """

    __slots__ = ("_properties", "_row", "_rows", "body", "queue_offset")

    def __init__(self, rows: _Rows, row: int) -> None:
        self._rows, self._row = rows, row
        self._properties: dict[str, str] | None = None
        self.body = rows.bodies[row]
        self.queue_offset = rows.offsets[row]

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy: without the other messages of its chunk."""
        return _unpickled, (self._rows.alone(self._row), isinstance(self, RetriedMessage))

    @property
    def topic(self) -> str:
        """The topic."""
        return self._rows.chunk.topic

    @property
    def topic_epoch(self) -> str:
        """Identifies the topic that it was read from, see ``QueueOffsets``; empty when the replica did not send it."""
        return self._rows.chunk.topic_epoch

    @property
    def replica_group(self) -> str:
        """The replica group that stores it."""
        return self._rows.chunk.replica_group

    @property
    def queue_id(self) -> int:
        """The queue."""
        return self._rows.chunk.queue_id

    @property
    def replica(self) -> str:
        """The id of the node it was read from."""
        return self._rows.chunk.replica

    @property
    def properties(self) -> dict[str, str]:
        """All properties, those of the system too."""
        if self._properties is None:
            self._properties = decode_properties(self._rows.properties[self._row])
        return self._properties

    @property
    def tags(self) -> str:
        """The tag; empty without one."""
        return self.properties.get("TAGS", "")

    @property
    def keys(self) -> str:
        """The keys, separated by spaces; empty without any."""
        return self.properties.get("KEYS", "")

    @property
    def trace_context(self) -> TraceContext | None:
        """The trace it belongs to, by its properties ``traceparent`` and ``tracestate``; None without one."""
        return TraceContext.of(self.properties)

    @property
    def msg_id(self) -> str:
        """The unique id that the producer gave it; ``offset_msg_id`` when it gave none."""
        return self.properties.get("UNIQ_KEY") or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The id made of the storing node's address and the position in its log, as RocketMQ's tools show it."""
        return offset_message_id(self._rows.store_host(self._row), self.physical_offset)

    @property
    def physical_offset(self) -> int:
        """Byte position in the log of the replica group."""
        return self._rows.head(self._row, "physical_offset")

    @property
    def born_timestamp(self) -> int:
        """When the producer made it."""
        return self._rows.head(self._row, "born_timestamp")

    @property
    def store_timestamp(self) -> int:
        """When the leader stored it."""
        return self._rows.head(self._row, "store_timestamp")

    @property
    def born_host(self) -> str:
        """``host:port`` of the producer."""
        return self._rows.born_hosts[self._row]

    @property
    def flag(self) -> int:
        """The number that the producer gave it."""
        return self._rows.head(self._row, "flag")

    @property
    def reconsume_times(self) -> int:
        """How often it was redelivered to the consumer group."""
        return self._rows.head(self._row, "reconsume_times")

    def __repr__(self) -> str:
        place = f"{self.topic}/{self.queue_id}@{self.queue_offset}"
        return f"ReceivedMessage({place}, {self.body[:32]!r}{'...' if len(self.body) > 32 else ''})"


@dataclass(frozen=True, slots=True)
class NumberedMessage:
    """A message of a logical queue and its number there.

    Attributes:
        number: Position in the logical queue; the first message has 0.
        message: The message itself.
    """

    number: int
    message: ReceivedMessage


class RetriedMessage(ReceivedMessage):
    """One out of a group's retry topic, as its listeners see it: with the topic it was sent to first."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        return self.properties.get("RETRY_TOPIC") or self._rows.chunk.topic


class CompressedMessage(ReceivedMessage):
    """A message whose body is opened when it is read: one that does not open is a CorruptFrameError there, and nowhere else."""

    __slots__ = ("_opened", "_stored")

    _opened: bytes | None

    @property
    def body(self) -> bytes:
        if self._opened is None:
            self._opened = decompress(self._stored, compression_in(self._rows.flags[self._row]))
        return self._opened

    @body.setter
    def body(self, stored: bytes) -> None:
        self._stored = stored
        self._opened = None


class _CompressedRetriedMessage(CompressedMessage, RetriedMessage):
    __slots__ = ()


OPENING: dict[type[ReceivedMessage], type[ReceivedMessage]] = {  # a class of messages: that of its compressed ones
    ReceivedMessage: CompressedMessage,
    RetriedMessage: _CompressedRetriedMessage,
}


def _unpickled(chunk: Chunk, is_retried: bool) -> ReceivedMessage:
    (message,) = chunk.messages(RetriedMessage if is_retried else ReceivedMessage)
    return message


class ChunkPlace(NamedTuple):
    """Where a chunk is from."""

    topic: str
    replica_group: str
    queue_id: int
    replica: str


def decode_chunk(
    place: ChunkPlace, header: broker_pb2.FetchResponse, payload: memoryview, *, bodiless: bool = False, frames: memoryview | None = None
) -> Chunk:
    """A chunk out of a fetch answer: its payload holds (offsets,) sizes, and the frames unless they are given."""
    count = header.count
    at = 8 * count if header.has_offsets else 0
    if at + 4 * count > len(payload):
        raise CorruptFrameError(f"a chunk of {count} messages in {len(payload)} bytes")
    if header.has_offsets:
        offsets = np.frombuffer(payload, ">u8", count).astype(np.int64)
    else:
        offsets = np.arange(header.first_offset, header.first_offset + count, dtype=np.int64)
    sizes = np.frombuffer(payload, ">u4", count, at)
    if frames is None:
        frames = payload[at + 4 * count :]
    if int(sizes.sum(dtype=np.int64)) != len(frames):
        raise CorruptFrameError(f"a chunk whose sizes add up to {int(sizes.sum(dtype=np.int64))}, with {len(frames)} bytes of frames")
    return Chunk(*place, offsets, sizes, frames, header.next_offset, header.max_offset, bodiless=bodiless)
