"""What producers send and consumers get: frames, batch records, bodies that are compressed, chunks."""

from __future__ import annotations

import struct

import numpy as np

from dledger_client.fetch.records import ChunkPlace, decode_chunk
from dledger_wire._pb import broker_pb2
from dledger_wire.batches.batch import (
    BatchView,
    Sequence64,
    _crc_of,
    check_batch,
    encode_batch,
    encode_command,
    iter_records,
    stamp_batch,
)
from dledger_wire.batches.small_batch import proven_good
from dledger_wire.errors import DledgerError
from dledger_wire.frames.compress import compress, decompress
from dledger_wire.frames.frame import Frame, decode_frame, encode_frame
from dledger_wire.frames.frame_layout import decode_properties, encode_properties, pack_host
from dledger_wire.frames.frames import FrameFields, encode_frames
from dledger_wire.frames.hash_columns import fold_key_hashes, hash_columns
from dledger_wire.frames.message_id import parse_offset_message_id
from dledger_wire.java_hash import key_hash
from dledger_wire.rpc import envelope
from dledger_wire.status import Compression
from tests.fuzz.target import Bounds, Target

MAX_BODY = 1 << 20
LIMIT = 1 << 20  # of a body once it is opened
HOST = pack_host("127.0.0.1:10911")


def frame(data: bytes) -> None:
    """What is taken is written the same way again."""
    found = decode_frame(data)
    again = decode_frame(encode_frame(found))
    assert (again.body, again.topic, again.born_host, again.queue_offset) == (found.body, found.topic, found.born_host, found.queue_offset)


def record(count: int, *, topic: str = "orders", keys: int = 0, sequence: Sequence64 | None = None) -> bytes:
    """A batch as a client sends it."""
    ids = np.frombuffer("".join(f"{number:032X}" for number in range(count)).encode(), np.uint8).reshape(count, 32)
    bodies = [b"body %d" % number for number in range(count)]
    frames, sizes = encode_frames(topic, 2, bodies, ids, b"", FrameFields(5, HOST))
    owners = np.arange(keys, dtype=np.uint32) % count
    hashes = np.array([key_hash(topic, f"k{number}") for number in range(keys)], np.int32)
    unique, tags = fold_key_hashes(hash_columns(ids, f"{topic}#")), np.zeros(count, np.int32)
    return encode_batch(topic, 2, frames, sizes, tags, unique, key_owners=owners, key_hashes=hashes, sequence=sequence)


def batch(data: bytes) -> None:
    """A produce payload.  A batch whose checksum is made right, as an attacker would, is looked at as well."""
    for found in iter_records(data):
        if isinstance(found, BatchView):
            _batch(found)
            mended = bytearray(found.data)
            struct.pack_into(">I", mended, 56, _crc_of(found))
            _batch(BatchView(memoryview(mended)))


def _batch(found: BatchView) -> None:
    try:
        check_batch(found, MAX_BODY)
    except DledgerError:
        return
    if found.count <= 8 and proven_good(found, MAX_BODY):
        _also_without_proof(found)
    for start in found.positions.tolist():
        decode_frame(found.data, start)
    out = bytearray(found.data)
    stamp_batch(out, 0, found, log_pos=4096, first_queue_offset=7, store_timestamp=9, store_host=HOST)
    first = decode_frame(out, found.frames_at)
    assert (first.queue_offset, first.physical_offset, first.store_timestamp) == (7, 4096 + found.frames_at, 9)


def _also_without_proof(found: BatchView) -> None:
    """The quick way says yes only where the long one does."""
    from dledger_wire.batches.batch_hashes import check_hashes
    from dledger_wire.frames.frame_check import check_frames

    frames = np.frombuffer(found.frames, np.uint8)
    try:
        heads = check_frames(frames, found.sizes, found.queue_id, found.topic.encode(), MAX_BODY)
        check_hashes(frames, found.sizes, heads, found.topic, found.tag_hashes, found.unique_hashes)
    except DledgerError as error:
        raise AssertionError("proven good, and refused") from error


def body(data: bytes) -> None:
    """One byte says how it is compressed."""
    if data:
        opened = decompress(data[1:], Compression(data[0] % 4), limit=LIMIT)
        assert len(opened) <= max(LIMIT, len(data))


def properties(data: bytes) -> None:
    found = decode_properties(data)
    try:
        packed = encode_properties(found)
    except DledgerError:
        return
    assert decode_properties(packed) == found


def produce(data: bytes) -> None:
    """A request with its payload."""
    _, payload = envelope.decode(broker_pb2.ProduceRequest, data)
    batch(bytes(payload))


def chunk(data: bytes) -> None:
    """An answer to a fetch: count, whether it has offsets and bodies, then the payload."""
    if len(data) < 3:
        return
    count, has_offsets, bodiless = data[0] | data[1] << 8, bool(data[2] & 1), bool(data[2] & 2)
    header = broker_pb2.FetchResponse(count=count, first_offset=7, has_offsets=has_offsets, next_offset=7 + count, max_offset=7 + count)
    found = decode_chunk(ChunkPlace("orders", "g0", 2, "n0"), header, memoryview(data)[3:], bodiless=bodiless)
    found.damaged_offset()
    for message in found.messages():
        parts = message.properties, message.msg_id, message.born_host, message.keys, message.tags, repr(message), message.body
        assert parts


def message_id(data: bytes) -> None:
    address, pos = parse_offset_message_id(data.decode(errors="replace"))
    assert address.rpartition(":")[2]
    assert pos >= 0


def _stored(count: int) -> bytes:
    (found,) = iter_records(record(count))
    assert isinstance(found, BatchView)
    out = bytearray(found.data)
    stamp_batch(out, 0, found, log_pos=0, first_queue_offset=7, store_timestamp=9, store_host=HOST)
    sizes = found.sizes.tobytes()
    return struct.pack("<HB", count, 0) + sizes + bytes(out[found.frames_at : found.frames_at + found.frames_size])


_FRAME = encode_frame(
    Frame(2, 7, 4096, b"a body", "orders", {"TAGS": "paid", "KEYS": "k1 k2"}, born_host="[::1]:5", store_host="10.0.0.1:9")
)
_RECORDS = [record(1), record(3, keys=5), record(9, sequence=Sequence64(1, 2, 3)), encode_command("createTopic", {"name": "t"})]
_WORDS = [
    b"DLBR",
    b"\xda\xa3\x20\xa7",
    b"\xbd\x43\x19\x77",
    b"UNIQ_KEY\x01",
    b"TAGS\x01a\x02",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    bytes(8),
]
_BODY = b"a body of some length " * 20

TARGETS = [
    Target("frame", frame, [_FRAME], _WORDS),
    Target("batch", batch, [*_RECORDS, _RECORDS[0] + _RECORDS[1]], _WORDS),
    Target("body", body, [bytes([kind]) + compress(_BODY, Compression(kind)) for kind in range(4)], bounds=Bounds(memory=40 << 20)),
    Target("properties", properties, [b"TAGS\x01paid\x02KEYS\x01k\x02"], [b"\x01", b"\x02", b"TAGS", b"\xff"]),
    Target("produce", produce, [envelope.encode(broker_pb2.ProduceRequest(request_id=7), [_RECORDS[0]])], _WORDS),
    Target("message-id", message_id, [b"7F00000100002A9F0000000000001000"], [b"0", b" "]),
    Target("chunk", chunk, [_stored(1), _stored(9)], _WORDS),
]
