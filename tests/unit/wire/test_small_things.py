"""Envelope, hashes, compression, names, ids: the small agreements of both sides."""

from __future__ import annotations

import random

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_wire._pb import broker_pb2
from dledger_wire.errors import (
    CorruptFrameError,
    DledgerError,
    InvalidArgumentError,
    InvalidNameError,
    NotLeaderError,
    OffsetOutOfRangeError,
)
from dledger_wire.frames.compress import compress, compression_in, compression_of, decompress, flags_of, is_worthwhile
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.frames.hash_columns import fold_key_hashes, hash_columns
from dledger_wire.frames.message_id import UniqueIds, offset_message_id, parse_offset_message_id
from dledger_wire.java_hash import java_hash, key_hash
from dledger_wire.names import check_group, check_new_topic, check_topic, dlq_topic, is_system_topic, retry_topic
from dledger_wire.rpc import envelope
from dledger_wire.rpc.error_detail import from_detail, to_detail
from dledger_wire.status import Compression


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300_000])
def test_an_envelope_hands_its_payload_out_as_a_view(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    data = envelope.encode(broker_pb2.ProduceRequest(request_id=9), [payload[: size // 2], payload[size // 2 :]])
    header, found = envelope.decode(broker_pb2.ProduceRequest, data)
    assert (header.request_id, bytes(found)) == (9, payload)
    # A stock protobuf reader sees the same message, and what a stock writer sends is read.
    assert broker_pb2.ProduceRequest.FromString(data).payload == payload
    plain = broker_pb2.ProduceRequest(request_id=3, payload=payload).SerializeToString()
    header, found = envelope.decode(broker_pb2.ProduceRequest, plain)
    assert (header.request_id, bytes(found)) == (3, payload)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_an_envelope_of_garbage_is_a_typed_error_or_a_message(data: bytes) -> None:
    try:
        header, payload = envelope.decode(broker_pb2.ProduceRequest, data)
    except InvalidArgumentError:
        return
    assert isinstance(header, broker_pb2.ProduceRequest)
    assert len(payload) <= len(data)


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("TagA", 2598919), ("hello", 99162322), ("polygenelubricants", -2147483648), ("订单", 1129459), ("😀", 1772899)],
)
def test_java_hashes_are_javas(text: str, value: int) -> None:
    assert java_hash(text) == value


@pytest.mark.parametrize("key", ["", "k", "0" * 32, "\u00e4" * 32])
@pytest.mark.parametrize("topic", [f"orders-{number}" for number in range(8)])
def test_key_hashes_are_those_of_the_whole_text(topic: str, key: str) -> None:
    assert key_hash(topic, key) == abs(java_hash(f"{topic}#{key}"))


def test_column_hashes_equal_single_ones() -> None:
    draw = random.Random(3)
    rows = [draw.randbytes(16).hex().upper() for _ in range(50)]
    matrix = np.frombuffer("".join(rows).encode(), np.uint8).reshape(50, 32)
    assert fold_key_hashes(hash_columns(matrix, "orders#")).tolist() == [key_hash("orders", row) for row in rows]


@pytest.mark.parametrize("name", ["none", "lz4", "zstd", "zlib"])
def test_compressed_bodies_come_back(name: str) -> None:
    kind = compression_of(name)
    body = b"abc" * 5000
    packed = compress(body, kind)
    assert decompress(packed, compression_in(flags_of(kind))) == body
    assert (len(packed) < len(body)) == (kind is not Compression.NONE)


@pytest.mark.parametrize("name", ["lz4", "zstd", "zlib"])
def test_what_does_not_decompress_or_grows_too_far_is_told(name: str) -> None:
    kind = compression_of(name)
    with pytest.raises(CorruptFrameError):
        decompress(b"no such thing at all", kind)
    with pytest.raises(CorruptFrameError, match="more than 9999 bytes"):
        decompress(compress(bytes(10_000), kind), kind, limit=9_999)
    packed = compress(random.Random(1).randbytes(100) * 20, kind)
    for cut in range(len(packed)):
        with pytest.raises(CorruptFrameError):
            decompress(packed[:cut], kind)


def test_zstd_frames_of_other_clients_open_within_the_limit() -> None:
    def stream(body: bytes) -> bytes:
        packer = zstandard.ZstdCompressor(level=5).compressobj()  # does not know how much will come, as RocketMQ's Java client
        return packer.compress(body) + packer.flush()

    body = random.Random(1).randbytes(70_000) + bytes(70_000)
    packed = stream(body)
    assert zstandard.frame_content_size(packed) == -1
    assert decompress(packed, Compression.ZSTD) == body
    with pytest.raises(CorruptFrameError, match="ends too early"):
        decompress(packed[:-5], Compression.ZSTD)
    with pytest.raises(CorruptFrameError, match="more than 1000000 bytes"):
        decompress(stream(bytes(1 << 23)), Compression.ZSTD, limit=1_000_000)


def test_the_older_flag_for_zlib_is_understood() -> None:
    assert compression_in(0x1) is Compression.ZLIB
    assert [flags_of(kind) for kind in Compression] == [0, 0x101, 0x201, 0x301]
    assert compression_in(0x300) is Compression.NONE
    with pytest.raises(CorruptFrameError, match="compression type 4"):
        compression_in(0x401)


def test_a_large_body_that_will_not_shrink_is_told_by_a_sample() -> None:
    draw = random.Random(2)
    assert not is_worthwhile(draw.randbytes(20_000))
    assert is_worthwhile(draw.randbytes(1000).hex().encode() * 20)
    assert is_worthwhile(draw.randbytes(5000))  # too small to tell: compressing it is no more work


def test_an_unknown_compression_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="expected one of none, lz4, zstd, zlib"):
        compression_of("brotli")


@pytest.mark.parametrize("bad", ["", "a b", "ä", "x" * 128, "a/b", "a.b", "-a"])
def test_bad_topic_names_are_told_why(bad: str) -> None:
    with pytest.raises(InvalidNameError):
        check_topic(bad)


@pytest.mark.parametrize("taken", ["%RETRY%audit", "%DLQ%audit", "%DLQ%"])
def test_topics_of_consumer_groups_are_not_created_by_users(taken: str) -> None:
    assert check_topic(taken) == taken, "they are read and written"
    with pytest.raises(InvalidNameError, match=f"'{taken}' is that of the (retries|dead letters) of consumer group '"):
        check_new_topic(taken)


def test_good_names_and_derived_ones() -> None:
    assert check_topic("orders_2026-EU") == "orders_2026-EU"
    assert check_group("billing") == "billing"
    assert (retry_topic("billing"), dlq_topic("billing")) == ("%RETRY%billing", "%DLQ%billing")
    assert is_system_topic("TBW102")
    assert not is_system_topic("orders")


class _Clock:
    def __init__(self) -> None:
        self.now_ms = 1000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


def test_unique_ids_never_repeat_and_grow() -> None:
    clock = _Clock()
    made = UniqueIds(clock, random.Random(1), process_id=77)
    ids: list[str] = []
    for count in (1, 70_000, 3):
        ids += [row.tobytes().decode() for row in made.take(count)]
        clock.now_ms += 1
    assert len(set(ids)) == len(ids) == 70_004
    assert ids == sorted(ids)
    assert {len(each) for each in ids} == {32}


def test_offset_message_ids_round_trip() -> None:
    for address in ("10.0.0.7:10911", "[2001:db8::1]:10911"):
        assert parse_offset_message_id(offset_message_id(pack_host(address), 123_456_789)) == (address, 123_456_789)
    with pytest.raises(InvalidArgumentError, match="expected 32 or 56 hex digits"):
        parse_offset_message_id("xyz")


def test_errors_travel_whole() -> None:
    for error in (NotLeaderError("n1 leads", leader_address="a:1"), OffsetOutOfRangeError("no", min_offset=3, max_offset=9)):
        found = from_detail(to_detail(error))
        assert (type(found), found.message, found.details) == (type(error), error.message, error.details)
    newer = to_detail(DledgerError("what is this"))
    newer.code = "FROM_THE_FUTURE"
    assert from_detail(newer).message == "what is this"
