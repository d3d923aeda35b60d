"""Batch and command records: what is written is read, anything else is a typed error."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dledger_wire.batches.batch import (
    HEADER_SIZE,
    BatchView,
    CommandView,
    Sequence64,
    check_batch,
    encode_batch,
    encode_batch_parts,
    encode_command,
    iter_records,
    stamp_batch,
    stamp_sequence,
)
from dledger_wire.errors import CorruptBatchError, DledgerError, InvalidArgumentError, MessageTooLargeError
from dledger_wire.frames.frame import decode_frame
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.frames.frames import FrameFields, encode_frames
from dledger_wire.frames.hash_columns import fold_key_hashes, hash_columns
from dledger_wire.java_hash import key_hash

HOST = pack_host("127.0.0.1:10911")


def record(bodies: list[bytes], *, topic: str = "orders", queue_id: int = 2, sequence: Sequence64 | None = None, keys: int = 0) -> bytes:
    count = len(bodies)
    ids = np.frombuffer("".join(f"{n:032X}" for n in range(count)).encode(), np.uint8).reshape(count, 32)
    frames, sizes = encode_frames(topic, queue_id, bodies, ids, b"", FrameFields(5, HOST))
    owners = np.arange(keys, dtype=np.uint32) % max(1, count)
    hashes = np.array([key_hash(topic, f"k{n}") for n in range(keys)], np.int32)
    unique = fold_key_hashes(hash_columns(ids, f"{topic}#"))
    tags = np.zeros(count, np.int32)
    return encode_batch(topic, queue_id, frames, sizes, tags, unique, key_owners=owners, key_hashes=hashes, sequence=sequence)


def batches(data: bytes) -> list[BatchView]:
    return [view for view in iter_records(data) if isinstance(view, BatchView)]


def check_all(data: bytes) -> None:
    for view in batches(data):
        check_batch(view, 1000)


@pytest.mark.parametrize("count", [1, 3, 8, 9, 100])
@pytest.mark.parametrize("keys", [0, 5])
def test_a_record_reads_back_and_passes_its_check(count: int, keys: int) -> None:
    bodies = [bytes([n % 256]) * (n % 50) for n in range(count)]
    data = record(bodies, sequence=Sequence64(7, 2, 40), keys=keys)
    (view,) = batches(data)
    assert (view.topic, view.queue_id, view.count, view.key_count) == ("orders", 2, count, keys)
    assert view.sequence == Sequence64(7, 2, 40)
    assert len(data) % 8 == 0
    check_batch(view, 1000)
    assert [decode_frame(view.frames, position - view.frames_at).body for position in view.positions.tolist()] == bodies
    assert view.key_hashes.tolist() == [key_hash("orders", f"k{n}") for n in range(keys)]


@pytest.mark.parametrize("count", [2, 40])
def test_stamped_records_say_where_they_are(count: int) -> None:
    data = record([b"x" * n for n in range(count)])
    (view,) = batches(data)
    out = bytearray(view.data)
    stamp_batch(out, 0, view, log_pos=8192, first_queue_offset=100, store_timestamp=77, store_host=HOST)
    (stamped,) = iter_records(out)
    assert isinstance(stamped, BatchView)
    assert (stamped.first_queue_offset, stamped.store_timestamp, stamped.crc) == (100, 77, 0)
    for number, position in enumerate(stamped.positions.tolist()):
        frame = decode_frame(out, position)
        assert (frame.queue_offset, frame.physical_offset, frame.store_timestamp) == (100 + number, 8192 + position, 77)


def test_a_sequence_can_be_written_late() -> None:
    ids = np.full((1, 32), ord("A"), np.uint8)
    frames, sizes = encode_frames("t", 0, [b"b"], ids, b"", FrameFields(5, HOST))
    unique = fold_key_hashes(hash_columns(ids, "t#"))
    parts = encode_batch_parts("t", 0, frames, sizes, np.zeros(1, np.int32), unique)
    stamp_sequence(parts, Sequence64(9, 1, 5))
    (view,) = batches(b"".join(parts))
    assert view.sequence == Sequence64(9, 1, 5)
    check_batch(view, 10)


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("seed", range(4))
def test_no_flipped_bit_passes(count: int, seed: int) -> None:
    draw = random.Random(seed)
    data = record([draw.randbytes(30) for _ in range(count)], sequence=Sequence64(1, 0, 0), keys=2)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        with pytest.raises(DledgerError):
            check_all(bytes(damaged))


@pytest.mark.parametrize("seed", range(4))
def test_garbage_is_a_typed_error(seed: int) -> None:
    draw = random.Random(seed)
    good = record([b"a", b"b"])
    for _ in range(300):
        junk = good[: draw.randrange(len(good))] + draw.randbytes(draw.randrange(40))
        if junk in (good, b""):
            continue
        with pytest.raises(CorruptBatchError):
            check_all(junk)


def test_commands_read_back_between_batches() -> None:
    data = encode_command("create_topic", {"name": "Büro", "queues": 4})
    found = list(iter_records(record([b"x"]) + data + record([b"y"])))
    assert [type(each) for each in found] == [BatchView, CommandView, BatchView]
    command = found[1]
    assert isinstance(command, CommandView)
    assert (command.kind, command.arguments) == ("create_topic", {"name": "Büro", "queues": 4})


def test_an_empty_batch_cannot_be_made() -> None:
    empty = np.empty(0, np.int32)
    with pytest.raises(InvalidArgumentError, match="a batch of 0 messages"):
        encode_batch("t", 0, b"", np.empty(0, np.uint32), empty, empty)


def test_too_large_messages_are_named() -> None:
    (view,) = batches(record([b"a"] * 20 + [b"b" * 200_000]))
    with pytest.raises(MessageTooLargeError, match="message 20: body over 1000 bytes"):
        check_batch(view, 1000)


def test_a_cut_header_is_refused() -> None:
    with pytest.raises(CorruptBatchError):
        list(iter_records(record([b"x"])[: HEADER_SIZE - 8]))
