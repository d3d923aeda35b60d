"""The short way of small batches: it may only say yes where the vectorised check does, and stamps the same bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest

import dledger_wire.batches.batch as batch_module
import dledger_wire.batches.batch_hashes as hashes_module
from dledger_wire.batches.batch import BatchView, check_batch, encode_batch_parts, stamp_batch
from dledger_wire.batches.frame_batch import FrameBatch
from dledger_wire.batches.small_batch import SMALL_COUNT, encode_small, proven_good
from dledger_wire.checksum import crc32c
from dledger_wire.errors import DledgerError
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.frames.frame_layout import encode_properties
from dledger_wire.frames.frames import FrameFields, encode_frames
from dledger_wire.frames.hash_columns import fold_key_hashes, hash_columns
from dledger_wire.java_hash import cached_java_hash

TOPIC = "orders"
HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
LIMIT = 4096


def make(draw: random.Random, count: int, tags: list[str]) -> bytearray:
    ids = np.frombuffer(draw.randbytes(16 * count).hex().upper().encode(), np.uint8).reshape(count, 32)
    chosen = [draw.choice(tags) for _ in range(count)]
    extras = [encode_properties({"TAGS": tag} if tag else {}) for tag in chosen]
    bodies = [draw.randbytes(draw.choice((0, 1, 30, 900))) for _ in range(count)]
    frames, sizes = encode_frames(TOPIC, 3, bodies, ids, extras, FrameFields(77, HOST))
    hashes = np.array([cached_java_hash(tag) if tag else 0 for tag in chosen], np.int32)
    parts = encode_batch_parts(TOPIC, 3, frames, sizes, hashes, fold_key_hashes(hash_columns(ids, f"{TOPIC}#")))
    return bytearray(b"".join(bytes(part) for part in parts))


def make_of_another_client(draw: random.Random, count: int, id_digits: int) -> bytearray:
    batch, start = FrameBatch(TOPIC, 3), draw.randbytes(id_digits).hex().upper()[: max(0, id_digits - 12)]
    for _ in range(count):
        properties = {"UNIQ_KEY": start + draw.randbytes(6).hex().upper()[:id_digits], "TAGS": draw.choice("ab"), "WAIT": "true"}
        frame = Frame(queue_id=3, queue_offset=0, physical_offset=0, body=draw.randbytes(20), topic=TOPIC, properties=properties)
        batch.add(encode_frame(frame), properties)
    return bytearray(b"".join(bytes(part) for part in batch.parts()))


def refresh_crc(record: bytearray) -> None:
    record[56:60] = crc32c(record[:56], bytes(4), record[60:]).to_bytes(4, "big")


def accepted(monkeypatch: pytest.MonkeyPatch, record: bytearray, *, small: int) -> bool:
    monkeypatch.setattr(batch_module, "SMALL_COUNT", small)
    try:
        # Parsing comes first on both ways.
        check_batch(BatchView(memoryview(record)), LIMIT)
    except DledgerError:
        return False
    return True


@pytest.mark.parametrize("count", [1, 2, SMALL_COUNT])
def test_good_batches_take_the_short_way(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    draw = random.Random(count)
    for _ in range(40):
        record = make(draw, count, ["", "created", "paid"])
        assert proven_good(BatchView(memoryview(record)), LIMIT)
        assert accepted(monkeypatch, record, small=SMALL_COUNT)
        assert accepted(monkeypatch, record, small=0)


@pytest.mark.parametrize("seed", range(8))
def test_what_the_vectorised_check_refuses_is_refused(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)
    refused = 0
    for _ in range(300):
        record = make(draw, draw.randint(1, SMALL_COUNT), ["", "created"])
        for _ in range(draw.randint(1, 3)):
            record[draw.randrange(60, len(record))] ^= 1 << draw.randrange(8)
        refresh_crc(record)
        verdicts = {accepted(monkeypatch, record, small=small) for small in (0, SMALL_COUNT)}
        assert len(verdicts) == 1
        refused += verdicts == {False}
    assert refused > 200


@pytest.mark.parametrize("id_digits", [56, 32, 30, 12])
def test_ids_of_any_client_are_checked_without_a_look_at_each_message(monkeypatch: pytest.MonkeyPatch, id_digits: int) -> None:
    draw = random.Random(id_digits)
    assert proven_good(BatchView(memoryview(make_of_another_client(draw, 3, id_digits))), LIMIT)
    looks: list[object] = []
    check_each = vars(hashes_module)["_check_each"]
    monkeypatch.setattr(hashes_module, "_check_each", lambda *of: looks.append(of) or check_each(*of))
    record = make_of_another_client(draw, 40, id_digits)
    assert accepted(monkeypatch, record, small=0)
    assert not looks
    for _ in range(200):
        damaged = bytearray(record)
        at = record.index(b"UNIQ_KEY", draw.randrange(len(record) - 200)) + draw.randrange(9 + id_digits)
        damaged[at] ^= 1 << draw.randrange(7)
        refresh_crc(damaged)
        assert not accepted(monkeypatch, damaged, small=0)


@pytest.mark.parametrize("id_digits", [56, 8, 1])
def test_damaged_batches_of_other_clients_are_judged_alike(monkeypatch: pytest.MonkeyPatch, id_digits: int) -> None:
    draw = random.Random(id_digits)
    assert accepted(monkeypatch, make_of_another_client(draw, 40, id_digits), small=0)
    for _ in range(300):
        record = make_of_another_client(draw, draw.randint(1, SMALL_COUNT), id_digits)
        record[draw.randrange(60, len(record))] ^= 1 << draw.randrange(8)
        refresh_crc(record)
        assert len({accepted(monkeypatch, record, small=small) for small in (0, SMALL_COUNT)}) == 1


def test_a_wrong_crc_or_a_stamped_header_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    record = make(random.Random(5), 2, ["t"])
    record[100] ^= 1
    assert not accepted(monkeypatch, record, small=SMALL_COUNT)
    record = make(random.Random(5), 2, ["t"])
    record[71] = 9  # a store time
    refresh_crc(record)
    assert not accepted(monkeypatch, record, small=SMALL_COUNT)


def test_bodies_over_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    record = make(random.Random(6), 1, ["t"])
    view = BatchView(memoryview(record))
    assert proven_good(view, 900)
    assert not proven_good(view, -1)


@pytest.mark.parametrize("count", [1, 3, SMALL_COUNT])
def test_stamps_are_the_same_bytes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    record = make(random.Random(count), count, ["", "created"])
    view = BatchView(memoryview(record))
    stamped = []
    for small in (0, SMALL_COUNT):
        monkeypatch.setattr(batch_module, "SMALL_COUNT", small)
        out = bytearray(8) + record + bytes(8)
        stamp_batch(out, 8, view, log_pos=10_008, first_queue_offset=55, store_timestamp=123_456, store_host=HOST)
        stamped.append(out)
    assert stamped[0] == stamped[1]
    assert stamped[0][8:] != record


@pytest.mark.parametrize("topic", ["t", "orders", "x" * 130])
def test_a_few_frames_are_encoded_to_the_same_bytes(topic: str) -> None:
    draw = random.Random(len(topic))
    for count in range(1, SMALL_COUNT + 1):
        ids = np.frombuffer(draw.randbytes(16 * count).hex().upper().encode(), np.uint8).reshape(count, 32)
        bodies = [draw.randbytes(draw.randrange(200)) for _ in range(count)]
        extras = [encode_properties({"TAGS": "a"} if draw.random() < 0.5 else {}) for _ in range(count)]
        wanted, wanted_sizes = encode_frames(topic, 3, bodies, ids, extras, FrameFields(99, HOST))
        frames, sizes = encode_small(topic, 3, bodies, [row.tobytes() for row in ids], extras, born_ms=99, born_host=HOST)
        assert frames == wanted
        assert sizes == wanted_sizes.tolist()
