"""Frames decoded into Arrow: every column against the plain frame decoder."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broker.api.bodiless import without_bodies
from dledger_client.fetch import arrow_chunks as arrow
from dledger_client.fetch.arrow_chunks import record_batches
from dledger_client.fetch.records import Chunk
from dledger_wire.clock import SystemClock
from dledger_wire.errors import CorruptFrameError
from dledger_wire.frames.compress import compress, flags_of
from dledger_wire.frames.frame import Frame, decode_frame, encode_frame
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.frames.frames import FrameFields, encode_frames
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.status import Compression
from pyspark_dledger.schema import ALL_COLUMNS, COLUMNS


def record_batch(chunk: Chunk, *how: Any, **filters: Any) -> pa.RecordBatch:
    """Of a chunk that makes one."""
    (batch,) = record_batches(chunk, *how, **filters)
    return batch


def chunk_of(frames: list[bytes]) -> Chunk:
    sizes = np.array([len(frame) for frame in frames], ">u4")
    return Chunk("orders", "g0", 3, "n1", np.arange(10, 10 + len(frames)), sizes, b"".join(frames))


def frame(body: bytes, properties: dict[str, str], **fields: int | str) -> bytes:
    base = Frame(queue_id=3, queue_offset=10, physical_offset=77, body=body, topic="orders", properties=properties)
    base.born_timestamp, base.store_timestamp, base.store_host = 1_700_000_000_123, 1_700_000_000_456, "127.0.0.1:10911"
    for name, value in fields.items():
        setattr(base, name, value)
    return encode_frame(base)


def test_every_column_of_mixed_frames_equals_the_plain_decoder() -> None:
    frames = [
        frame(b"one\r\n", {"UNIQ_KEY": "A" * 32, "TAGS": "paid", "KEYS": "k1 k2"}),
        frame(b"", {}),
        frame("größer".encode(), {"TAGS": "created", "x": "y\u20ac", "XTAGS": "no"}),
        frame(b"from far away", {"TAGS": "x"}, born_host="[2001:db8::1]:9"),
        frame(b"", {}, born_host="[2001:db8::1]:9", store_host="[2001:db8::a]:10911"),
    ]
    rows = record_batch(chunk_of(frames), tuple(COLUMNS)).to_pylist()
    for number, (row, raw) in enumerate(zip(rows, frames, strict=True)):
        plain = decode_frame(raw)
        assert row["body"] == plain.body
        assert dict(row["properties"]) == plain.properties
        assert row["tags"] == plain.properties.get("TAGS")
        assert row["keys"] == plain.properties.get("KEYS")
        assert row["queue_offset"] == 10 + number
        assert row["born_timestamp"] == datetime.fromtimestamp(plain.born_timestamp / 1000, UTC)
        assert row["store_timestamp"] == datetime.fromtimestamp(plain.store_timestamp / 1000, UTC)
        assert (row["topic"], row["queue_id"], row["group"], row["replica"]) == ("orders", 3, "g0", "n1")
    assert rows[0]["msg_id"] == "A" * 32
    assert rows[1]["msg_id"] == rows[3]["msg_id"] == "7F00000100002A9F000000000000004D"
    assert rows[4]["msg_id"] == "20010DB800000000000000000000000A00002A9F000000000000004D"


@pytest.mark.parametrize("sizes", [[100] * 50, [0, 1, 7, 300, 5]])
def test_frames_of_our_own_producer(sizes: list[int]) -> None:
    generator = random.Random(5)
    bodies = [generator.randbytes(size) for size in sizes]
    ids = UniqueIds(SystemClock(), generator).take(len(bodies))
    frames, frame_sizes = encode_frames("orders", 3, bodies, ids, b"TAGS\x01a\x02", FrameFields(5, pack_host("127.0.0.1:1")))
    chunk = Chunk("orders", "g0", 3, "n1", np.arange(len(bodies)), frame_sizes, bytes(frames))
    rows = record_batch(chunk, ("msg_id", "body", "tags", "properties")).to_pylist()
    assert [row["body"] for row in rows] == bodies
    assert [row["msg_id"] for row in rows] == [bytes(row).decode() for row in ids]
    assert {row["tags"] for row in rows} == {"a"}
    assert dict(rows[0]["properties"]) == {"UNIQ_KEY": rows[0]["msg_id"], "TAGS": "a"}


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZSTD, Compression.ZLIB])
def test_compressed_bodies_are_opened(kind: Compression) -> None:
    text = b"again and again " * 500
    frames = [frame(compress(text, kind), {}, sys_flag=flags_of(kind)), frame(b"plain", {})]
    assert record_batch(chunk_of(frames), ("body",)).to_pylist() == [{"body": text}, {"body": b"plain"}]


def test_bodies_that_grow_when_they_are_opened_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MAX_DECOMPRESSED_BYTES", 10_000)
    bodies = [b"%d " % n + bytes(3_000 * (n % 3)) for n in range(20)]
    frames = [
        frame(compress(body, Compression.ZSTD), {"TAGS": "ab"[n % 2]}, sys_flag=flags_of(Compression.ZSTD))
        if n % 3
        else frame(body, {"TAGS": "ab"[n % 2]})
        for n, body in enumerate(bodies)
    ]
    batches = list(record_batches(chunk_of(frames), ("queue_offset", "body", "tags", "properties")))
    assert len(batches) > 4
    assert all(10_000 <= sum(map(len, batch["body"].to_pylist())) <= 16_100 for batch in batches[:-1])
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["queue_offset"], row["body"], dict(row["properties"])["TAGS"]) for row in rows] == [
        (10 + n, body, "ab"[n % 2]) for n, body in enumerate(bodies)
    ]
    found = [row for batch in record_batches(chunk_of(frames), ("body",), tags=("b",)) for row in batch.to_pylist()]
    assert [row["body"] for row in found] == bodies[1::2]
    assert [row for batch in record_batches(chunk_of(frames[1:3]), ("body",), tags=("c",)) for row in batch.to_pylist()] == []


def test_only_wanted_tags_pass_exactly() -> None:
    frames = [frame(b"1", {"TAGS": "a"}), frame(b"2", {"TAGS": "b"}), frame(b"3", {})]
    assert record_batch(chunk_of(frames), ("body",), tags=("a",)).to_pylist() == [{"body": b"1"}]


def test_a_body_length_that_leaves_its_frame_is_refused() -> None:
    raw = bytearray(frame(b"abc", {}))
    raw[84:88] = (5000).to_bytes(4, "big")
    with pytest.raises(CorruptFrameError, match="body length"):
        record_batch(chunk_of([bytes(raw)]), ("body",))


def test_only_wanted_keys_pass_a_word_at_a_time() -> None:
    given = ["a", "a b", "ab", "x a", "", "b.c"]
    frames = [frame(b"%d" % n, {"KEYS": keys} if keys else {}) for n, keys in enumerate(given)]
    found = record_batch(chunk_of(frames), ("body",), keys=("a", "b.c")).to_pylist()
    assert [row["body"] for row in found] == [b"0", b"1", b"3", b"5"]
    assert record_batch(chunk_of([frame(b"", {"KEYS": "bXc"})]), ("body",), keys=("b.c",)).num_rows == 0
    many = tuple(sha256(b"%d" % number).hexdigest() for number in range(20_000))  # a pattern of so many is too large
    assert record_batch(chunk_of(frames), ("body",), keys=(*many, "a", "b.c")).num_rows == len(found)
    both = [frame(b"%d" % n, {"KEYS": "k", "TAGS": tag}) for n, tag in enumerate("abca")]
    found = record_batch(chunk_of(both), ("body",), keys=("k",), tags=("a", "c")).to_pylist()
    assert [row["body"] for row in found] == [b"0", b"2", b"3"]


def test_the_trace_context_of_messages_is_a_column_where_it_is_named() -> None:
    frames = [frame(b"1", {"traceparent": "P", "tracestate": "a=1,b=2"}), frame(b"2", {"xtraceparent": "no"}), frame(b"3", {})]
    columns = ("traceparent", "tracestate")
    assert record_batch(chunk_of(frames), columns).to_pylist() == [
        {"traceparent": "P", "tracestate": "a=1,b=2"},
        {"traceparent": None, "tracestate": None},
        {"traceparent": None, "tracestate": None},
    ]
    assert not set(columns) & set(COLUMNS)


@pytest.mark.parametrize("sizes", [[5] * 9, [0, 300, 1, 0, 77]])
def test_frames_without_bodies_have_everything_else(sizes: list[int]) -> None:
    frames = [frame(random.randbytes(size), {"UNIQ_KEY": f"{n:032X}", "KEYS": f"k{n}", "TAGS": "t"}) for n, size in enumerate(sizes)]
    whole = chunk_of(frames)
    columns = tuple(name for name in ALL_COLUMNS if name != "body")
    left, cut = without_bodies(bytes(whole.frames), whole.sizes.tobytes())
    assert len(cut) == len(whole.frames) - sum(sizes)
    bare = Chunk("orders", "g0", 3, "n1", whole.offsets, np.frombuffer(left, ">u4"), cut, bodiless=True)
    assert record_batch(bare, columns).to_pylist() == record_batch(whole, columns).to_pylist()
    assert record_batch(bare, ("body_size",)).to_pylist() == [{"body_size": size} for size in sizes]
