"""Staged batches: the batch records that a task builds from rows and that the driver's commit publishes.

Owns the mapping from columns to messages, the choice of the queue, and the encoding of a staged batch: replica group
and batch record.  Only the sequence number is missing, so publishing does not touch single messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dledger_client import Message
from dledger_client.producer.batches import MESSAGE_OVERHEAD_BYTES
from dledger_client.producer.half_messages import staged_delayed
from dledger_client.producer.message_columns import MessageColumns
from dledger_client.producer.record_encoder import encode_messages
from dledger_wire.errors import CorruptBatchError, InvalidArgumentError, MessageTooLargeError
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.frames.timer import MAX_TIMER_DELAY_MS
from dledger_wire.java_hash import cached_java_hash
from dledger_wire.trace_context import TRACEPARENT, TRACESTATE
from pyspark_dledger.options.kafka_names import COLUMN_HINTS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Name -> accepted Spark types.
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
    TRACEPARENT: ("string",),
    TRACESTATE: ("string",),
}
PLAIN_COLUMNS = frozenset({"body", "tags", "keys", "queue_key", "queue_id"})
STAGED_BATCH_BYTES = 512 << 10
MAX_BODY_BYTES = 4 << 20  # where no topic is known: the default of maxMessageSize
_HEADER = struct.Struct(">IB")  # size of the record, length of the group's name


@dataclass(frozen=True, slots=True, order=True)
class TargetQueue:
    """A queue of a topic in a replica group."""

    group: str
    topic: str
    queue_id: int


def check_schema(schema: StructType, default_topic: str) -> None:
    """Check the columns before a job starts.  Raises InvalidArgumentError."""
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
    if TRACESTATE in names and TRACEPARENT not in names:
        raise InvalidArgumentError("column 'tracestate' requires column 'traceparent'")
    if "queue_key" in names and "queue_id" in names:
        raise InvalidArgumentError("columns 'queue_key' and 'queue_id' are mutually exclusive")


class StagedBatch(NamedTuple):
    """A batch record of some rows as it is staged, for a queue of replica group ``group``."""

    group: str
    rows: int
    data: bytes

    @property
    def record(self) -> memoryview:
        return memoryview(self.data)[_HEADER.size + self.data[_HEADER.size - 1] :]


@dataclass(frozen=True, slots=True)
class FrameStamp:
    """Ids, host and clock that stamp the messages of a task."""

    ids: UniqueIds
    born_host: bytes
    wall_ms: Callable[[], int]


class RowBatcher:
    """Collects rows per queue and encodes staged batches.

    ``queues_of``: returns the writable queues of a topic.  Rows without a key go to one queue per record batch,
    round-robin from ``first_queue``.  ``max_body_bytes_of``: returns the largest body that the brokers of a topic take.
    """

    def __init__(
        self,
        maker: FrameStamp,
        queues_of: Callable[[str], Sequence[TargetQueue]],
        default_topic: str,
        first_queue: int,
        max_body_bytes_of: Callable[[str], int] = lambda _topic: MAX_BODY_BYTES,
    ) -> None:
        self._maker = maker
        self._max_body_bytes_of = max_body_bytes_of
        self._queues_of = queues_of
        self._topic = default_topic
        self._next_queue = first_queue
        self._open: dict[TargetQueue, list[Message]] = {}
        self._open_columns: dict[TargetQueue, MessageColumns] = {}
        self._sizes: dict[TargetQueue, int] = {}
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[StagedBatch]:
        """Add the rows of a record batch; yields full staged batches.  Raises InvalidArgumentError for an invalid row."""
        if self._topic and _is_plain(batch.schema):
            yield from self._add_columns(batch)
        else:
            yield from self._add_rows(batch)
        self.rows += batch.num_rows

    def _add_columns(self, batch: pa.RecordBatch) -> Iterator[StagedBatch]:
        """Rows that have nothing but a body, a tag and keys are not looked at one by one."""
        self._next_queue += 1
        columns = _columns_of(batch, self._topic)
        limit_bytes = self._max_body_bytes_of(self._topic)
        if columns.largest_body > limit_bytes:
            raise _too_large(self._topic, next(len(body) for body in columns.bodies if len(body) > limit_bytes), limit_bytes)
        for queue, part in self._by_queue(columns, batch):
            waiting = self._open_columns.pop(queue, None)
            parts = (part if waiting is None else waiting.followed_by(part)).batches(STAGED_BATCH_BYTES)
            for _, full, _ in parts[:-1]:
                yield self._encode(queue, full)
            self._open_columns[queue] = parts[-1][1]

    def _by_queue(self, columns: MessageColumns, batch: pa.RecordBatch) -> Iterator[tuple[TargetQueue, MessageColumns]]:
        """The rows of each queue, in order."""
        chosen = {"queue_key", "queue_id"} & set(batch.schema.names)
        if not chosen:
            if len(columns):
                yield self._queue(self._topic, None, None), columns
            return
        name = chosen.pop()
        values = batch.column(name).to_pylist()
        numbers: dict[str | int | None, list[int]] = {}
        for number, value in enumerate(values):
            numbers.setdefault(value, []).append(number)
        rows: dict[TargetQueue, list[int]] = {}
        for value, found in numbers.items():
            queue = self._queue(self._topic, value if isinstance(value, str) else None, value if isinstance(value, int) else None)
            rows.setdefault(queue, []).extend(found)
        for queue, found in rows.items():
            yield queue, columns.rows(sorted(found))

    def _add_rows(self, batch: pa.RecordBatch) -> Iterator[StagedBatch]:
        columns = {name: _values(batch.column(number)) for number, name in enumerate(batch.schema.names)}
        self._next_queue += 1
        for message, key, queue_id in _messages(columns, self._topic, batch.num_rows):
            self._check(message)
            queue = self._queue(message.topic, key, queue_id)
            if message.delay_level or message.deliver_at_ms:
                message, delay_queue_id = staged_delayed(message, queue.queue_id)
                queue = TargetQueue(queue.group, message.topic, delay_queue_id)
            waiting = self._open.setdefault(queue, [])
            waiting.append(message)
            size = self._sizes.get(queue, 0) + len(message.body) + len(message.extras) + MESSAGE_OVERHEAD_BYTES
            self._sizes[queue] = size
            if size >= STAGED_BATCH_BYTES:
                yield self._encode(queue, self._open.pop(queue))
                del self._sizes[queue]

    def _check(self, message: Message) -> None:
        """Reject now what brokers would reject at publishing, when the write can no longer be aborted."""
        limit_bytes = self._max_body_bytes_of(message.topic)
        if len(message.body) > limit_bytes:
            raise _too_large(message.topic, len(message.body), limit_bytes)
        if message.deliver_at_ms and message.deliver_at_ms > self._maker.wall_ms() + MAX_TIMER_DELAY_MS:
            raise InvalidArgumentError(f"topic {message.topic}: delivery at {message.deliver_at_ms} ms; expected at most 40 days ahead")

    def finish(self) -> Iterator[StagedBatch]:
        """Yield the remaining staged batches."""
        for queue, messages in [*self._open.items(), *self._open_columns.items()]:
            yield self._encode(queue, messages)
        self._open.clear()
        self._open_columns.clear()

    def _queue(self, topic: str, key: str | None, queue_id: int | None) -> TargetQueue:
        queues = self._queues_of(topic)
        if key is not None:
            return queues[abs(cached_java_hash(key)) % len(queues)]  # the same choice as the producer of dledger_client
        if queue_id is None:
            return queues[self._next_queue % len(queues)]
        for queue in queues:
            if queue.queue_id == queue_id:
                return queue
        known = ", ".join(str(queue.queue_id) for queue in queues)
        raise InvalidArgumentError(f"topic {topic}: queue {queue_id} is not writable; expected one of {known}")

    def _encode(self, queue: TargetQueue, messages: Sequence[Message]) -> StagedBatch:
        ids = self._maker.ids.take(len(messages))
        parts = encode_messages(queue.topic, queue.queue_id, messages, ids, born_ms=self._maker.wall_ms(), born_host=self._maker.born_host)
        group = queue.group.encode()
        data = b"".join([_HEADER.pack(sum(len(part) for part in parts), len(group)), group, *parts])
        return StagedBatch(queue.group, len(messages), data)


def _too_large(topic: str, size: int, limit_bytes: int) -> MessageTooLargeError:
    text = f"topic {topic}: body of {size} bytes; expected at most {limit_bytes} (maxMessageSize)"
    return MessageTooLargeError(text, limit_bytes=limit_bytes)


def _is_plain(schema: pa.Schema) -> bool:
    """Whether rows have only what ``MessageColumns`` have, and the choice of their queue."""
    import pyarrow as pa

    is_text = all(pa.types.is_string(schema.field(name).type) for name in ("tags", "keys") if name in schema.names)
    return is_text and PLAIN_COLUMNS.issuperset(schema.names)


def _columns_of(batch: pa.RecordBatch, topic: str) -> MessageColumns:
    import pyarrow as pa

    bodies = batch.column("body")
    if bodies.null_count:
        raise InvalidArgumentError(f"topic {topic}: row without a body")
    keys, tags = (_texts(batch.column(name)) if name in batch.schema.names else "" for name in ("keys", "tags"))
    with _naming_topic(topic):
        return MessageColumns.of(topic, bodies.cast(pa.binary()), keys, tags)


def _texts(column: pa.Array) -> str | list[str]:
    """The texts of a column, null as empty; a single one when all are equal."""
    distinct = column.unique().to_pylist()
    return distinct[0] or "" if len(distinct) == 1 else list(column.fill_null("").to_pylist())


def _values(column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def _messages(columns: Mapping[str, list[Any]], default_topic: str, count: int) -> Iterator[tuple[Message, str | None, int | None]]:
    """(message, queue key, queue id) of each row."""
    none: list[Any] = [None] * count
    get = columns.get
    rows = zip(
        columns["body"],
        get("topic", none),
        get("tags", none),
        get("keys", none),
        _properties(columns, none),
        get("delay_level", none),
        get("deliver_timestamp", none),
        get("queue_key", none),
        get("queue_id", none),
        strict=True,
    )
    for body, topic, tags, keys, properties, level, deliver_ms, key, queue_id in rows:
        name = topic or default_topic
        if not name:
            raise InvalidArgumentError("row without a topic; expected option topic or a value in column topic")
        if body is None:
            raise InvalidArgumentError(f"topic {name}: row without a body")
        with _naming_topic(name):
            message = Message(
                name,
                body.encode() if isinstance(body, str) else body,
                tags=tags or "",
                keys=_keys(keys),
                properties=properties,
                delay_level=level or 0,
                deliver_at_ms=deliver_ms or 0,
            )
        yield message, key, queue_id


@contextmanager
def _naming_topic(topic: str) -> Iterator[None]:
    """Add to an error what only its row knows: rows of one write may be for many topics."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"topic {topic}: {error.message}", **error.details) from None


def _properties(columns: Mapping[str, list[Any]], none: list[Any]) -> Iterable[dict[str, str] | None]:
    """The properties of each row, with its trace context."""
    # Spark's maps may have null values; a null property is left out.
    given = ({name: value for name, value in pairs if value is not None} if pairs else None for pairs in columns.get("properties", none))
    if TRACEPARENT not in columns:
        return given
    return map(_traced, given, columns[TRACEPARENT], columns.get(TRACESTATE, none))


def _traced(properties: dict[str, str] | None, parent: str | None, state: str | None) -> dict[str, str] | None:
    if not parent:
        return properties
    others = {name: value for name, value in (properties or {}).items() if name not in (TRACEPARENT, TRACESTATE)}
    return others | {TRACEPARENT: parent} | ({TRACESTATE: state} if state else {})


def _keys(keys: str | list[str | None] | None) -> str | list[str]:
    """The keys of a row as ``Message`` expects them."""
    if isinstance(keys, list) and None in keys:
        raise InvalidArgumentError(f"null in keys {keys}; expected strings (array_compact removes nulls)")
    return keys or ""  # type: ignore[return-value]


class StagedBatchReader:
    """Splits a byte stream that arrives in pieces into (replica group, batch record)."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[tuple[str, memoryview]]:
        # A piece has whole batches as a rule, which are then not copied.
        view, at = memoryview(self._rest + piece if self._rest else piece), 0
        while len(view) - at >= _HEADER.size:
            size, name_length = _HEADER.unpack_from(view, at)
            start = at + _HEADER.size + name_length
            if len(view) < start + size:
                break
            yield bytes(view[at + _HEADER.size : start]).decode(), view[start : start + size]
            at = start + size
        self._rest = bytes(view[at:])

    def finish(self) -> None:
        """Raise CorruptBatchError if the last staged batch is incomplete."""
        if self._rest:
            raise CorruptBatchError(f"staged data ends with an incomplete batch of {len(self._rest)} bytes")
