"""From rows to packs: batch records ready for the log, as a task makes them and the commit sends them on.

Owns the mapping from columns to messages, the choice of the queue, and the bytes of a pack: group and record.  A record lacks nothing but
its number, so whoever publishes it need not look at a single message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dledger_client import Message
from dledger_client.producer.batches import MESSAGE_OVERHEAD_BYTES
from dledger_client.producer.delayed_messages import parked
from dledger_client.producer.record_encoder import encode_messages
from dledger_wire.errors import CorruptBatchError, InvalidArgumentError, MessageTooLargeError
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.frames.timer import MAX_TIMER_DELAY_MS
from dledger_wire.java_hash import cached_java_hash
from pyspark_dledger.options.kafka_names import COLUMN_HINTS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Name -> Spark types it may have.
COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "queue_key": ("string",),
    "queue_id": ("int",),
    "delay_level": ("int",),
    "deliver_timestamp": ("timestamp",),
    "properties": ("map<string,string>",),
}
PACK_BYTES = 512 << 10
MAX_BODY_BYTES = 4 << 20  # the brokers' default, maxMessageSize
_PACK = struct.Struct(">IB")  # size of the record, length of the group's name


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """Where a record goes: a queue of a topic in a replica group."""

    group: str
    topic: str
    queue_id: int


def check_schema(schema: StructType, default_topic: str) -> None:
    """Refuse, before a job starts, columns that mean nothing here.  InvalidArgumentError."""
    for field in schema.fields:
        wanted = COLUMNS.get(field.name)
        if wanted is None:
            hint = f"{COLUMN_HINTS[field.name]}; " if field.name in COLUMN_HINTS else ""
            raise InvalidArgumentError(f"column {field.name!r} is unknown; {hint}expected some of {', '.join(COLUMNS)}")
        if field.dataType.simpleString() not in wanted:
            raise InvalidArgumentError(f"column {field.name!r} is {field.dataType.simpleString()}; expected {' or '.join(wanted)}")
    names = schema.fieldNames()
    if "body" not in names:
        raise InvalidArgumentError("column 'body' is missing; expected binary or string")
    if not default_topic and "topic" not in names:
        raise InvalidArgumentError("no topic: expected option topic or a column topic")
    if "queue_key" in names and "queue_id" in names:
        raise InvalidArgumentError("columns 'queue_key' and 'queue_id': expected one of them")


@dataclass(frozen=True, slots=True)
class Maker:
    """What every message of a task gets from its surroundings."""

    ids: UniqueIds
    born_host: bytes
    wall_ms: Callable[[], int]


class Packer:
    """Collects rows by queue.  ``lanes_of`` tells the queues of a topic; rows without a key go to one queue a record batch, taking turns
    from ``turn`` on."""

    def __init__(self, maker: Maker, lanes_of: Callable[[str], Sequence[Lane]], default_topic: str, turn: int) -> None:
        self._maker = maker
        self._lanes_of = lanes_of
        self._topic = default_topic
        self._turn = turn
        self._open: dict[Lane, list[Message]] = {}
        self._sizes: dict[Lane, int] = {}
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Take the rows of a record batch; gives the packs that became full.  InvalidArgumentError for a row that can be no message."""
        columns = {name: _values(batch.column(place)) for place, name in enumerate(batch.schema.names)}
        self._turn += 1
        for message, key, queue_id in _messages(columns, self._topic, batch.num_rows):
            self._check(message)
            lane = self._lane(message.topic, key, queue_id)
            if message.delay_level or message.deliver_at_ms:
                message, parked_in = parked(message, lane.queue_id)
                lane = Lane(lane.group, message.topic, parked_in)
            waiting = self._open.setdefault(lane, [])
            waiting.append(message)
            size = self._sizes.get(lane, 0) + len(message.body) + len(message.extras) + MESSAGE_OVERHEAD_BYTES
            self._sizes[lane] = size
            if size >= PACK_BYTES:
                yield self._pack(lane)
        self.rows += batch.num_rows

    def _check(self, message: Message) -> None:
        """Refuse now what the brokers would refuse when it is published, and nobody can take it back any more."""
        if len(message.body) > MAX_BODY_BYTES:
            text = f"topic {message.topic}: body of {len(message.body)} bytes; expected at most {MAX_BODY_BYTES}"
            raise MessageTooLargeError(text, limit_bytes=MAX_BODY_BYTES)
        if message.deliver_at_ms and message.deliver_at_ms > self._maker.wall_ms() + MAX_TIMER_DELAY_MS:
            raise InvalidArgumentError(f"topic {message.topic}: delivery at {message.deliver_at_ms} ms; expected at most 40 days ahead")

    def finish(self) -> Iterator[bytes]:
        """What is left."""
        for lane in list(self._open):
            yield self._pack(lane)

    def _lane(self, topic: str, key: str | None, queue_id: int | None) -> Lane:
        lanes = self._lanes_of(topic)
        if key is not None:
            return lanes[abs(cached_java_hash(key)) % len(lanes)]  # as dledger_client's producer chooses
        if queue_id is None:
            return lanes[self._turn % len(lanes)]
        for lane in lanes:
            if lane.queue_id == queue_id:
                return lane
        known = ", ".join(str(lane.queue_id) for lane in lanes)
        raise InvalidArgumentError(f"topic {topic}: queue {queue_id} takes no messages; expected one of {known}")

    def _pack(self, lane: Lane) -> bytes:
        messages = self._open.pop(lane)
        del self._sizes[lane]
        ids = self._maker.ids.take(len(messages))
        parts = encode_messages(lane.topic, lane.queue_id, messages, ids, born_ms=self._maker.wall_ms(), born_host=self._maker.born_host)
        group = lane.group.encode()
        return b"".join([_PACK.pack(sum(len(part) for part in parts), len(group)), group, *parts])


def _values(column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def _messages(columns: Mapping[str, list[Any]], default_topic: str, count: int) -> Iterator[tuple[Message, str | None, int | None]]:
    """(message, queue key, queue id) of every row."""
    none: list[Any] = [None] * count
    get = columns.get
    rows = zip(
        columns["body"],
        get("topic", none),
        get("tags", none),
        get("keys", none),
        get("properties", none),
        get("delay_level", none),
        get("deliver_timestamp", none),
        get("queue_key", none),
        get("queue_id", none),
        strict=True,
    )
    for body, topic, tags, keys, properties, level, deliver_ms, key, queue_id in rows:
        name = topic or default_topic
        if not name:
            raise InvalidArgumentError("a row without a topic, and no option topic")
        if body is None:
            raise InvalidArgumentError(f"topic {name}: a row without a body")
        yield (
            Message(
                name,
                body.encode() if isinstance(body, str) else body,
                tags=tags or "",
                keys=_keys(name, keys),
                # Spark's maps have null values by default; a message has a property or lacks it.
                properties={key: value for key, value in properties if value is not None} if properties else None,
                delay_level=level or 0,
                deliver_at_ms=deliver_ms or 0,
            ),
            key,
            queue_id,
        )


def _keys(topic: str, keys: str | list[str | None] | None) -> str | list[str]:
    """As a message takes them."""
    if isinstance(keys, list) and None in keys:
        raise InvalidArgumentError(f"topic {topic}: a null among the keys {keys}; expected text (array_compact leaves nulls out)")
    return keys or ""  # type: ignore[return-value]


class PackReader:
    """Cuts bytes that come in pieces into (group, record) again."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[str, bytes]]:
        self._rest += piece
        at, view = 0, memoryview(self._rest)
        found = []
        while len(view) - at >= _PACK.size:
            size, name_length = _PACK.unpack_from(view, at)
            start = at + _PACK.size + name_length
            if len(view) < start + size:
                break
            found.append((bytes(view[at + _PACK.size : start]).decode(), bytes(view[start : start + size])))
            at = start + size
        view.release()
        del self._rest[:at]
        yield from found

    def finish(self) -> None:
        """CorruptBatchError when a pack is not whole."""
        if self._rest:
            raise CorruptBatchError(f"staged rows end in the middle of a pack, {len(self._rest)} bytes behind the last whole one")
