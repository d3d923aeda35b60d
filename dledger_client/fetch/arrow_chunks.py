"""Decodes chunks of raw frames into Arrow record batches, without a Python loop over messages.

Owns the columns that messages have in Arrow: names, types, and how each is made.  Only the requested ones are built.  Needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, reduce
from itertools import groupby
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dledger_client.fetch.property_columns import PropertyColumns, cut
from dledger_client.fetch.records import Chunk, ReceivedMessage
from dledger_wire.errors import CorruptFrameError, InvalidArgumentError
from dledger_wire.frames.compress import compression_in, decompress
from dledger_wire.frames.frame_layout import UNIQ_KEY_PREFIX, UNIQUE_ID_SIZE
from dledger_wire.frames.frames import Records, gather
from dledger_wire.frames.message_id import offset_message_id
from dledger_wire.status import SysFlag
from dledger_wire.trace_context import TRACEPARENT, TRACESTATE

MAX_DECOMPRESSED_BYTES = 32 << 20  # decompressed bodies per record batch, plus at most one body
_STRING_OFFSET_LIMIT = (1 << 31) - 1


class ChunkDecoder:
    """Builds the columns of one chunk on demand."""

    def __init__(self, chunk: Chunk) -> None:
        if len(chunk.frames) > _STRING_OFFSET_LIMIT:
            raise CorruptFrameError(f"a chunk of {len(chunk.frames)} bytes; expected at most {_STRING_OFFSET_LIMIT}")
        self._chunk = chunk
        self._count = len(chunk.sizes)
        self._data = np.frombuffer(chunk.frames, np.uint8)
        self._buffer = pa.py_buffer(chunk.frames)
        columns = chunk.columns
        self.heads: Records = columns.heads
        self._body_spans = columns.body_at, columns.body_at + columns.body_length
        self._property_spans = columns.properties_at, columns.properties_at + columns.properties_length

    @cached_property
    def _properties(self) -> PropertyColumns:
        return PropertyColumns(cut(pa.string(), self._buffer, *self._property_spans))

    def body(self) -> pa.Array:
        """Stored bodies; ``has_compressed``: whether some are compressed."""
        return cut(pa.binary(), self._buffer, *self._body_spans)

    @property
    def has_compressed(self) -> bool:
        return bool((self.heads["sys_flag"] & SysFlag.COMPRESSED).any())

    def decompressed_bodies(self, rows: npt.NDArray[np.int64]) -> Iterator[list[bytes]]:
        """Bodies of ``rows`` in order, decompressed, in lists of about ``MAX_DECOMPRESSED_BYTES``."""
        # Compressed bodies are large (compressMsgBodyOverHowmuch): decompression costs far more than this loop.
        opened: list[bytes] = []
        size = 0
        for stored, flag in zip(self.body().take(pa.array(rows)), self.heads["sys_flag"][rows].tolist(), strict=True):
            opened.append(decompress(stored.as_py(), compression_in(flag)))
            size += len(opened[-1])
            if size >= MAX_DECOMPRESSED_BYTES:
                yield opened
                opened, size = [], 0
        if opened:
            yield opened

    def msg_id(self) -> pa.Array:
        """The producer's unique id; for frames without one as first property, the offset message id."""
        starts, ends = self._property_spans
        width = len(UNIQ_KEY_PREFIX) + UNIQUE_ID_SIZE
        if bool((ends - starts >= width).all()):
            found = gather(self._data, starts, width)
            if (found[:, : len(UNIQ_KEY_PREFIX)] == np.frombuffer(UNIQ_KEY_PREFIX, np.uint8)).all():
                ids = np.ascontiguousarray(found[:, len(UNIQ_KEY_PREFIX) :])
                borders = np.arange(0, (self._count + 1) * UNIQUE_ID_SIZE, UNIQUE_ID_SIZE, dtype=np.int32)
                return pa.Array.from_buffers(pa.string(), self._count, [None, pa.py_buffer(borders), pa.py_buffer(ids)])
        by_offset = [
            offset_message_id(bytes(host)[: 20 if flag & SysFlag.STORE_HOST_V6 else 8], int(pos))
            for host, pos, flag in zip(*(self.heads[name] for name in ("store_host", "physical_offset", "sys_flag")), strict=True)
        ]
        return pc.coalesce(self.property_column("UNIQ_KEY"), pa.array(by_offset, pa.string()))

    def property_column(self, name: str) -> pa.Array:
        """One property of every message, null where it is missing."""
        return self._properties.values(name)

    def properties(self) -> pa.Array:
        """All properties of every message as a map."""
        return self._properties.maps()

    def timestamp(self, field: str) -> pa.Array:
        micros = self.heads[field].astype(np.int64) * 1000
        return pa.array(micros, pa.timestamp("us", tz="UTC"))

    def column(self, name: str) -> pa.Array:
        """The column of that name."""
        return _COLUMNS[name][1](self)

    @property
    def chunk(self) -> Chunk:
        return self._chunk

    @property
    def count(self) -> int:
        return self._count


_MOMENT = pa.timestamp("us", tz="UTC")
_COLUMNS: dict[str, tuple[pa.DataType, Callable[[ChunkDecoder], pa.Array]]] = {
    "topic": (pa.string(), lambda decoder: pa.repeat(pa.scalar(decoder.chunk.topic, pa.string()), decoder.count)),
    "queue_id": (pa.int32(), lambda decoder: pa.repeat(pa.scalar(decoder.chunk.queue_id, pa.int32()), decoder.count)),
    "queue_offset": (pa.int64(), lambda decoder: pa.array(decoder.chunk.offsets, pa.int64())),
    "msg_id": (pa.string(), ChunkDecoder.msg_id),
    "keys": (pa.string(), lambda decoder: decoder.property_column("KEYS")),
    "tags": (pa.string(), lambda decoder: decoder.property_column("TAGS")),
    "body": (pa.binary(), ChunkDecoder.body),
    "born_timestamp": (_MOMENT, lambda decoder: decoder.timestamp("born_timestamp")),
    "store_timestamp": (_MOMENT, lambda decoder: decoder.timestamp("store_timestamp")),
    "properties": (pa.map_(pa.string(), pa.string()), ChunkDecoder.properties),
    "group": (pa.string(), lambda decoder: pa.repeat(pa.scalar(decoder.chunk.replica_group, pa.string()), decoder.count)),
    "replica": (pa.string(), lambda decoder: pa.repeat(pa.scalar(decoder.chunk.replica, pa.string()), decoder.count)),
    "body_size": (pa.int32(), lambda decoder: pa.array(decoder.heads["body_length"].astype(np.int32))),
    "physical_offset": (pa.int64(), lambda decoder: pa.array(decoder.heads["physical_offset"].astype(np.int64))),
    "traceparent": (pa.string(), lambda decoder: decoder.property_column(TRACEPARENT)),
    "tracestate": (pa.string(), lambda decoder: decoder.property_column(TRACESTATE)),
}


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns.  InvalidArgumentError for one that messages do not have, or that is named twice."""
    wrong = [name for name in columns if name not in _COLUMNS]
    if wrong or not columns or isinstance(columns, str):
        raise InvalidArgumentError(f"columns {columns!r}: expected a list of {', '.join(_COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise InvalidArgumentError(f"columns {columns!r}: one is named twice")
    return pa.schema([pa.field(name, _COLUMNS[name][0], nullable=True) for name in columns])


def table_of(chunks: Sequence[Chunk], columns: Sequence[str], tags: Sequence[str] = ()) -> pa.Table:
    """The messages of consecutive chunks of a queue, of which there is one at least, as one table.

    Its schema's metadata has the queue, ``next_offset``, where to read on, and ``max_offset``, the end of the queue.
    """
    batches = [batch for chunk in chunks if chunk.count for batch in record_batches(chunk, columns, tags)]
    last = chunks[-1]
    place = {"replica_group": last.replica_group, "queue_id": last.queue_id, "next_offset": last.next_offset, "max_offset": last.max_offset}
    table = pa.Table.from_batches(batches, arrow_schema(columns))
    return table.replace_schema_metadata({name: str(value) for name, value in place.items()})


def table_of_messages(messages: Sequence[ReceivedMessage], columns: Sequence[str]) -> pa.Table:
    """Messages that were decoded already, in their order, as one table; those of one chunk at a time."""
    schema = arrow_schema(columns)
    tables = [schema.empty_table()]
    for rows, found in groupby(messages, attrgetter("_rows")):
        numbers = [message._row for message in found]
        table = pa.Table.from_batches(record_batches(rows.chunk, columns), schema)
        tables.append(table if len(numbers) == rows.chunk.count else table.take(pa.array(numbers)))
    return pa.concat_tables(tables)


def record_batches(chunk: Chunk, columns: Sequence[str], tags: Sequence[str] = (), keys: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """The chunk as record batches of ``columns``, only messages with one of ``tags`` and one of ``keys`` if given.

    One batch, unless decompressed bodies exceed ``MAX_DECOMPRESSED_BYTES``.
    """
    decoder = ChunkDecoder(chunk)
    keep = [pc.is_in(decoder.property_column("TAGS"), value_set=pa.array(list(tags), pa.string()))] if tags else []
    keep += [_has_key(decoder, keys)] if keys else []
    wanted = reduce(pc.and_, keep) if keep else None
    schema = arrow_schema(columns)
    if "body" not in columns or not decoder.has_compressed:
        batch = pa.RecordBatch.from_arrays([decoder.column(name) for name in columns], schema=schema)
        yield batch if wanted is None else batch.filter(wanted)
        return
    rows = np.arange(decoder.count) if wanted is None else np.flatnonzero(wanted.to_numpy(zero_copy_only=False))
    others = {name: decoder.column(name).take(pa.array(rows)) for name in columns if name != "body"}
    start = 0
    for bodies in decoder.decompressed_bodies(rows):
        arrays = [others[name].slice(start, len(bodies)) if name != "body" else pa.array(bodies, pa.binary()) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        start += len(bodies)


def _has_key(decoder: ChunkDecoder, wanted: Sequence[str]) -> pa.Array:
    """Whether a message has one of the ``wanted`` keys."""
    words = pc.split_pattern(decoder.property_column("KEYS"), " ")
    found = pc.filter(pc.list_parent_indices(words), pc.is_in(words.flatten(), value_set=pa.array(list(wanted), pa.string())))
    passed = np.zeros(decoder.count, np.bool_)
    passed[found.to_numpy()] = True
    return pa.array(passed)
