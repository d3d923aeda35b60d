"""Records inside a log entry: message batches and group-state commands.

Owns the record layout.  An entry's body is a sequence of records.  A batch record carries messages of one queue: a fixed header, the topic,
arrays that save a walk over the frames, and the frames themselves in RocketMQ's layout.

    header 80 | topic, padded to 8 | sizes u32[n] | tag hashes i32[n] | unique key hashes i32[n] | key owners u32[k] | key hashes i32[k] |
    frames, padded to 8

The client fills everything but the stamps.  ``crc`` is the crc32c of the whole record as the client sent it, with this field and the stamps
zero: it is checked once, by the leader, and zeroed when the batch is stamped, since from then on the entry's body CRC covers every byte.
A command record has the same first 16 bytes and a JSON body.  All integers are big-endian.

    encode_batch(topic, queue_id, frames, sizes, tag_hashes, unique_hashes, *, key_owners, key_hashes, sequence) -> bytes
    encode_batch_parts(...) -> list[Buffer]       the same, unjoined: for callers that join it with other bytes anyway
    BatchView(data, pos)                          zero-copy view of one record
    iter_records(body) -> Iterator[BatchView | CommandView]
    check_batch(batch, max_message_size)                   a client's batch, whole: CRC, arrays, every frame, hashes
    stamp_batch(out, at, batch, *, log_pos, first_queue_offset, store_timestamp, store_host)
    encode_command(kind, arguments) -> bytes;  CommandView.kind, .arguments
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dledger_wire import strict_json
from dledger_wire.batches.batch_hashes import check_hashes
from dledger_wire.batches.small_batch import SMALL_COUNT, proven_good, stamp_small
from dledger_wire.check import require
from dledger_wire.checksum import Buffer, crc32c
from dledger_wire.errors import CorruptBatchError, InvalidArgumentError, MessageTooLargeError
from dledger_wire.formats import RECORD
from dledger_wire.frames.frame_check import check_frames
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES, MIN_FRAME_SIZE, SYS_FLAG_AT
from dledger_wire.frames.frames import HOST_FLAGS, frame_positions, host_kinds, stamp_frames, uniform_stride

MAGIC = 0x444C4252  # "DLBR"
VERSION = RECORD.current
KIND_MESSAGES = 1
KIND_COMMAND = 2
FLAG_SEQUENCED = 1  # producer id, epoch and first sequence mean something
FLAG_UNIQUE = 2  # of a client without a producer id: a batch with the same UNIQ_KEY is the same one
MAX_MESSAGES = 1 << 20

HEADER = struct.Struct(
    ">"
    "I"  # 0  magic
    "I"  # 4  record size, padding included
    "B"  # 8  version
    "B"  # 9  kind
    "H"  # 10 flags
    "I"  # 12 count of messages (command: size of the JSON)
    "I"  # 16 queue id
    "I"  # 20 count of further keys
    "Q"  # 24 first queue offset (stamped)
    "Q"  # 32 producer id
    "I"  # 40 producer epoch
    "I"  # 44 size of the frames
    "Q"  # 48 first sequence
    "I"  # 56 crc32c of the record as sent (zero once stamped)
    "H"  # 60 topic length
    "H"  # 62 reserved, 0
    "Q"  # 64 store time in ms (stamped)
    "Q"  # 72 reserved, 0
)
HEADER_SIZE = 80
COMMAND_HEADER = struct.Struct(">IIBBHI")  # as far as the size of the JSON
_U32, _I32, _U64 = struct.Struct(">I"), struct.Struct(">i"), struct.Struct(">Q")
_SIZE_AND_TAG = struct.Struct(">Ii")
COMMAND_HEADER_SIZE = 16
_FIRST_OFFSET_AT, _CRC_AT, _STORE_TIME_AT = 24, 56, 64
_FLAGS_AT, _PRODUCER_AT, _EPOCH_AT, _SEQUENCE_AT = 10, 32, 40, 48
_MAX_OVERHEAD = MIN_FRAME_SIZE + 12 + 255 + 1 + MAX_PROPERTIES_BYTES  # an IPv6 born host, the longest topic
if HEADER.size != HEADER_SIZE or COMMAND_HEADER.size != COMMAND_HEADER_SIZE:
    raise ImportError(f"record headers take {HEADER.size} and {COMMAND_HEADER.size} bytes, expected 80 and 16")

Int32s = npt.NDArray[np.int32]


@dataclass(slots=True)  # not frozen: one is made for each batch, and that takes three times as long
class Sequence64:
    """The producer of a batch and its place in the producer's stream for this queue: identifies a retry.  Never changed."""

    producer_id: int
    epoch: int
    first_sequence: int


def _padded(size: int) -> int:
    return (size + 7) & ~7


def encode_batch(
    topic: str,
    queue_id: int,
    frames: Buffer,
    sizes: npt.NDArray[np.uint32],
    tag_hashes: Int32s,
    unique_hashes: Int32s,
    *,
    key_owners: npt.NDArray[np.uint32] | None = None,
    key_hashes: Int32s | None = None,
    sequence: Sequence64 | None = None,
) -> bytes:
    """One batch record as a client sends it; arrays of equal length, one element a message (keys: one element a key)."""
    return b"".join(
        encode_batch_parts(
            topic, queue_id, frames, sizes, tag_hashes, unique_hashes, key_owners=key_owners, key_hashes=key_hashes, sequence=sequence
        )
    )


def encode_batch_parts(
    topic: str,
    queue_id: int,
    frames: Buffer,
    sizes: npt.NDArray[np.uint32],
    tag_hashes: Int32s,
    unique_hashes: Int32s,
    *,
    key_owners: npt.NDArray[np.uint32] | None = None,
    key_hashes: Int32s | None = None,
    sequence: Sequence64 | None = None,
) -> list[Buffer]:
    """``encode_batch`` before its join: header, topic and arrays, frames, padding."""
    owners = key_owners if key_owners is not None else np.empty(0, np.uint32)
    hashes = key_hashes if key_hashes is not None else np.empty(0, np.int32)
    require(len(tag_hashes) == len(unique_hashes) == len(sizes) and len(owners) == len(hashes), "columns of unequal length")
    arrays: list[npt.NDArray[Any]] = [sizes, tag_hashes, unique_hashes, owners, hashes]
    columns = b"".join(array.astype(">u4" if array.dtype.kind == "u" else ">i4").tobytes() for array in arrays)
    return encode_record_parts(topic, queue_id, len(sizes), len(owners), columns, frames, sequence=sequence)


def encode_record_parts(
    topic: str, queue_id: int, count: int, key_count: int, columns: bytes, frames: Buffer, *, sequence: Sequence64 | None = None
) -> list[Buffer]:
    """``encode_batch_parts`` of columns that are packed, one behind the other."""
    if not 0 < count <= MAX_MESSAGES:
        raise InvalidArgumentError(f"a batch of {count} messages; expected 1 to {MAX_MESSAGES}")
    packed_topic = topic.encode()
    front = b"".join((packed_topic, bytes(_padded(len(packed_topic)) - len(packed_topic)), columns))
    unpadded = HEADER_SIZE + len(front) + len(frames)
    padding = bytes(_padded(unpadded) - unpadded)
    made_by = sequence or Sequence64(0, 0, 0)
    flags = FLAG_SEQUENCED if sequence else 0
    fields = [MAGIC, unpadded + len(padding), VERSION, KIND_MESSAGES, flags, count, queue_id, key_count, 0, made_by.producer_id]
    fields += [made_by.epoch, len(frames), made_by.first_sequence, 0, len(packed_topic), 0, 0, 0]
    header = bytearray(HEADER.pack(*fields))
    _U32.pack_into(header, _CRC_AT, crc32c(header, front, frames, padding))
    return [header, front, frames, padding]


def stamp_sequence(parts: list[Buffer], sequence: Sequence64) -> None:
    """Write the producer of a batch, and its place in the stream, into the parts of ``encode_batch_parts``; recompute their CRC."""
    header = _flagged(parts, FLAG_SEQUENCED)
    _U64.pack_into(header, _PRODUCER_AT, sequence.producer_id)
    _U32.pack_into(header, _EPOCH_AT, sequence.epoch)
    _U64.pack_into(header, _SEQUENCE_AT, sequence.first_sequence)
    _U32.pack_into(header, _CRC_AT, crc32c(*parts))


def stamp_unique(parts: list[Buffer]) -> None:
    """Let the batch in the parts of ``encode_batch_parts`` be recognised by its UNIQ_KEY when it is sent again; recompute their CRC."""
    header = _flagged(parts, FLAG_UNIQUE)
    _U32.pack_into(header, _CRC_AT, crc32c(*parts))


def _flagged(parts: list[Buffer], flags: int) -> bytearray:
    """The header among these parts, with ``flags``, and without a CRC."""
    header = parts[0]
    require(isinstance(header, bytearray), "the first part is not a header of encode_batch_parts")
    struct.pack_into(">H", header, _FLAGS_AT, flags)
    _U32.pack_into(header, _CRC_AT, 0)
    return header  # type: ignore[return-value]


def encode_command(kind: str, arguments: dict[str, Any]) -> bytes:
    """A group-state command as a record; ``arguments`` is plain JSON data."""
    require("kind" not in arguments, "a command's arguments may not be called kind")
    body = json.dumps({"kind": kind, **arguments}, sort_keys=True, separators=(",", ":")).encode()
    size = _padded(COMMAND_HEADER_SIZE + len(body))
    header = COMMAND_HEADER.pack(MAGIC, size, VERSION, KIND_COMMAND, 0, len(body))
    return header + body + bytes(size - COMMAND_HEADER_SIZE - len(body))


class CommandView:
    """A command record: ``kind`` and the other arguments."""

    __slots__ = ("arguments", "kind", "pos", "size")

    def __init__(self, data: memoryview, pos: int) -> None:
        self.pos, self.size = pos, len(data)
        length = int.from_bytes(data[12:16], "big")
        try:
            loaded = strict_json.parse(bytes(data[COMMAND_HEADER_SIZE : COMMAND_HEADER_SIZE + length]))
        except ValueError as error:
            raise CorruptBatchError(f"command record at {pos}: not JSON ({error})", first_bad=-1) from None
        if not isinstance(loaded, dict) or not isinstance(loaded.get("kind"), str):
            raise CorruptBatchError(f"command record at {pos}: not an object with a kind", first_bad=-1)
        self.kind: str = loaded.pop("kind")
        self.arguments: dict[str, Any] = loaded


class BatchView:
    """A batch record, parsed without copying: header fields, arrays and frames are views of the record's bytes.

    ``pos`` is the record's place in the body it was found in, ``frames_at`` that of the frames inside the record.
    """

    __slots__ = (
        "count",
        "crc",
        "data",
        "first_queue_offset",
        "flags",
        "frames_at",
        "frames_size",
        "key_count",
        "pos",
        "queue_id",
        "sequence",
        "size",
        "store_timestamp",
        "topic",
    )

    def __init__(self, data: memoryview, pos: int = 0) -> None:
        """``data`` is exactly one record.  Raises CorruptBatchError when header and size disagree."""
        if len(data) < HEADER_SIZE:
            raise CorruptBatchError(f"batch record at {pos}: {len(data)} bytes, expected at least {HEADER_SIZE}", first_bad=-1)
        _, size, _, _, flags, count, self.queue_id, key_count, *fields = HEADER.unpack_from(data)
        self.first_queue_offset, producer_id, epoch, frames_size, first_sequence, self.crc, topic_length = fields[:7]
        self.store_timestamp = fields[8]
        self.size, self.flags, self.count, self.key_count, self.frames_size = size, flags, count, key_count, frames_size
        self.sequence = Sequence64(producer_id, epoch, first_sequence) if flags & FLAG_SEQUENCED else None
        self.data, self.pos = data, pos
        self.frames_at = frames_at = HEADER_SIZE + _padded(topic_length) + 12 * count + 8 * key_count
        # Sizes first: everything below indexes by them.
        if not 0 < count <= MAX_MESSAGES or _padded(frames_at + frames_size) != size or size != len(data):
            raise CorruptBatchError(f"batch record at {pos}: counts and sizes of its header disagree", first_bad=-1)
        try:
            self.topic = bytes(data[HEADER_SIZE : HEADER_SIZE + topic_length]).decode()
        except UnicodeDecodeError:
            raise CorruptBatchError(f"batch record at {pos}: topic is not UTF-8", first_bad=-1) from None

    @property
    def is_unique(self) -> bool:
        """Whether a batch with the same UNIQ_KEY is the same one, sent again."""
        return bool(self.flags & FLAG_UNIQUE)

    def _array(self, skip: int, count: int, dtype: str) -> npt.NDArray[Any]:
        arrays_at = self.frames_at - 12 * self.count - 8 * self.key_count
        return np.frombuffer(self.data, dtype, count, arrays_at + 4 * skip)

    @property
    def sizes(self) -> npt.NDArray[Any]:
        """Frame sizes, >u4[count]."""
        return self._array(0, self.count, ">u4")

    @property
    def tag_hashes(self) -> npt.NDArray[Any]:
        """Java hash of each message's tag, 0 without one, >i4[count]."""
        return self._array(self.count, self.count, ">i4")

    def only_unit(self) -> tuple[int, int]:
        """(frame size, tag hash) of a batch of one message."""
        size, tag_hash = _SIZE_AND_TAG.unpack_from(self.data, self.frames_at - 12 - 8 * self.key_count)
        return size, tag_hash

    def only_key_hashes(self) -> tuple[int, ...]:
        """Unique hash and key hashes of a batch of one message, in that order."""
        keys_at = self.frames_at - 4 * self.key_count
        return (
            *_I32.unpack_from(self.data, keys_at - 4 * self.key_count - 4),
            *struct.unpack_from(f">{self.key_count}i", self.data, keys_at),
        )

    @property
    def unique_hashes(self) -> npt.NDArray[Any]:
        """Index hash of TOPIC#UNIQ_KEY of each message, >i4[count]."""
        return self._array(2 * self.count, self.count, ">i4")

    @property
    def key_owners(self) -> npt.NDArray[Any]:
        """Message number of each further key, >u4[key_count]."""
        return self._array(3 * self.count, self.key_count, ">u4")

    @property
    def key_hashes(self) -> npt.NDArray[Any]:
        """Index hash of TOPIC#KEY of each further key, >i4[key_count]."""
        return self._array(3 * self.count + self.key_count, self.key_count, ">i4")

    @property
    def frames(self) -> memoryview:
        return self.data[self.frames_at : self.frames_at + self.frames_size]

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Start of each frame from the start of the record."""
        starts = frame_positions(self.sizes)
        starts += self.frames_at
        return starts


_KNOWN = {(VERSION, KIND_MESSAGES), (VERSION, KIND_COMMAND)}


def iter_records(body: Buffer) -> Iterator[BatchView | CommandView]:
    """The records of an entry's body or of a produce payload, in order.  Raises CorruptBatchError at the first byte that is none."""
    view, pos = memoryview(body), 0
    while pos < len(view):
        if len(view) - pos < COMMAND_HEADER_SIZE:
            raise CorruptBatchError(f"record at {pos}: {len(view) - pos} bytes left, expected a record", first_bad=-1)
        magic, size, version, kind, _, count = COMMAND_HEADER.unpack_from(view, pos)
        if magic != MAGIC or (version, kind) not in _KNOWN:
            if magic == MAGIC and version > RECORD.current:
                raise CorruptBatchError(f"record at {pos}: version {version}; this build reads {RECORD.reads}", first_bad=-1, newer=version)
            raise CorruptBatchError(f"record at {pos}: magic {magic:#010x}, version {version}, kind {kind} is no record's", first_bad=-1)
        least = COMMAND_HEADER_SIZE + count if kind == KIND_COMMAND else HEADER_SIZE
        if size % 8 or not least <= size <= len(view) - pos:
            raise CorruptBatchError(f"record at {pos}: size {size} does not fit the {len(view) - pos} bytes there", first_bad=-1)
        data = view[pos : pos + size]
        yield BatchView(data, pos) if kind == KIND_MESSAGES else CommandView(data, pos)
        pos += size


def check_batch(batch: BatchView, max_message_size: int) -> None:
    """Check a batch that came from a client, whole: CRC, arrays, every frame.

    Raises MessageTooLargeError or CorruptBatchError, both naming the first bad message.
    """
    if batch.count <= SMALL_COUNT and _header_is_clean(batch) and _crc_of(batch) == batch.crc and proven_good(batch, max_message_size):
        return
    sizes = batch.sizes
    too_large = sizes > max_message_size + _MAX_OVERHEAD
    if too_large.any():
        first = int(too_large.argmax())
        raise MessageTooLargeError(f"message {first}: body over {max_message_size} bytes (maxMessageSize)", first_bad=first)
    frames, topic = np.frombuffer(batch.frames, np.uint8), batch.topic.encode()
    if _crc_of(batch) != batch.crc:
        # The frames' own checks can say which message it is; when they find none, an array or the header is what was damaged.
        check_frames(frames, sizes, batch.queue_id, topic, max_message_size)
        raise CorruptBatchError("batch CRC differs: header, arrays or frames were damaged on the way", first_bad=-1)
    if not _header_is_clean(batch):
        raise CorruptBatchError("unknown flags, or stamps that only the leader may set", first_bad=-1)
    if batch.key_count and int(batch.key_owners.max()) >= batch.count:
        raise CorruptBatchError("a key names a message that is not in the batch", first_bad=-1)
    heads = check_frames(frames, sizes, batch.queue_id, topic, max_message_size)
    check_hashes(frames, sizes, heads, batch.topic, batch.tag_hashes, batch.unique_hashes)


def _crc_of(batch: BatchView) -> int:
    return crc32c(batch.data[:_CRC_AT], bytes(4), batch.data[_CRC_AT + 4 :])


def _header_is_clean(batch: BatchView) -> bool:
    return not (batch.flags & ~(FLAG_SEQUENCED | FLAG_UNIQUE) or batch.first_queue_offset or batch.store_timestamp)


def stamp_batch(
    out: bytearray, at: int, batch: BatchView, *, log_pos: int, first_queue_offset: int, store_timestamp: int, store_host: bytes
) -> None:
    """Stamp the copy of ``batch`` that lies at ``out[at:]``: header and every frame.  ``log_pos`` is the log position of ``out[at]``."""
    _U64.pack_into(out, at + _FIRST_OFFSET_AT, first_queue_offset)
    _U32.pack_into(out, at + _CRC_AT, 0)
    _U64.pack_into(out, at + _STORE_TIME_AT, store_timestamp)
    if batch.count <= SMALL_COUNT and not batch.data[batch.frames_at + SYS_FLAG_AT + 3] & HOST_FLAGS:
        stamp = _U64.pack(store_timestamp) + store_host
        sizes_at = batch.frames_at - 12 * batch.count - 8 * batch.key_count
        sizes_bytes = batch.data[sizes_at : sizes_at + 4 * batch.count]
        places = {"first_queue_offset": first_queue_offset, "log_pos": log_pos + batch.frames_at}
        stamp_small(out, at + batch.frames_at, sizes_bytes, **places, stamp=stamp)
        return
    frames = np.frombuffer(out, np.uint8, batch.frames_size, at + batch.frames_at)
    sizes = batch.sizes
    positions = frame_positions(sizes)
    stamp_frames(
        frames,
        positions,
        first_queue_offset=first_queue_offset,
        physical_base=log_pos + batch.frames_at,
        store_timestamp=store_timestamp,
        store_host=store_host,
        born_v6=host_kinds(frames, positions)[0],
        stride=uniform_stride(sizes),
    )


def total_size(records: Sequence[BatchView]) -> int:
    """Bytes the records take together."""
    return sum(record.size for record in records)
