"""Frames: the vectorised twin against the plain one, on arbitrary messages, and on damaged bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_wire.errors import CorruptBatchError, CorruptFrameError, MessageTooLargeError
from dledger_wire.frames.frame import Frame, decode_frame, encode_frame
from dledger_wire.frames.frame_check import check_frames
from dledger_wire.frames.frame_layout import encode_properties, pack_host
from dledger_wire.frames.frames import FrameFields, cut_bytes, encode_frames, frame_columns, frame_positions, stamp_frames, uniform_stride

TOPICS = ["t", "orders", "a" * 127, "b" * 128, "c" * 255]
HOSTS = ["127.0.0.1:10911", "10.1.2.3:65535", "[::1]:9876"]
IDS = "0123456789ABCDEF" * 2


def unique_ids(count: int) -> np.ndarray:
    return np.frombuffer("".join(f"{number:032X}" for number in range(1, count + 1)).encode(), np.uint8).reshape(count, 32)


@settings(max_examples=60, deadline=None)
@given(
    topic=st.sampled_from(TOPICS),
    host=st.sampled_from(HOSTS),
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=12),
    tags=st.lists(st.sampled_from(["", "created", "bezahlt ä", "订单"]), min_size=12, max_size=12),
    queue_id=st.integers(0, 1000),
    first=st.integers(0, 1 << 40),
    base=st.integers(0, 1 << 50),
)
def test_what_the_batch_encoder_writes_the_plain_decoder_reads(
    topic: str, host: str, bodies: list[bytes], tags: list[str], queue_id: int, first: int, base: int
) -> None:
    extras = [encode_properties({"TAGS": tag, "color": "red"} if tag else {}) for tag in tags[: len(bodies)]]
    born = pack_host(host)
    frames, sizes = encode_frames(topic, queue_id, bodies, unique_ids(len(bodies)), extras, FrameFields(1234, born, flags=7))
    positions = frame_positions(sizes)
    check_frames(np.frombuffer(frames, np.uint8), sizes, queue_id, topic.encode(), 300)
    stamped = np.frombuffer(bytearray(frames), np.uint8)
    stamp_frames(
        stamped,
        positions,
        first_queue_offset=first,
        physical_base=base,
        store_timestamp=99,
        store_host=pack_host("127.0.0.1:10912"),
        born_v6=len(born) == 20,
        stride=uniform_stride(sizes),
    )
    data = stamped.tobytes()
    for number, (body, position) in enumerate(zip(bodies, positions.tolist(), strict=True)):
        frame = decode_frame(data, position)
        expected = {"UNIQ_KEY": f"{number + 1:032X}"} | ({"TAGS": tags[number], "color": "red"} if tags[number] else {})
        assert (frame.topic, frame.body, frame.properties) == (topic, body, expected)
        assert (frame.queue_id, frame.queue_offset, frame.physical_offset) == (queue_id, first + number, base + position)
        assert (frame.born_timestamp, frame.born_host, frame.flag) == (1234, host, 7)
        assert (frame.store_timestamp, frame.store_host) == (99, "127.0.0.1:10912")
    columns = frame_columns(np.frombuffer(data, np.uint8), positions)
    assert cut_bytes(data, columns.body_at, columns.body_length) == bodies
    assert columns.hosts("born_host") == [host] * len(bodies)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("host", HOSTS)
def test_plain_frames_round_trip(topic: str, host: str) -> None:
    frame = Frame(3, 5, 700, b"body", topic, {"KEYS": "k1 k2", "a": ""}, 9, 0, 11, host, 13, host, 2, 17)
    data = encode_frame(frame)
    found = decode_frame(b"xx" + data, 2)
    for name in ("queue_id", "queue_offset", "physical_offset", "body", "topic", "properties", "flag", "born_host", "store_host"):
        assert getattr(found, name) == getattr(frame, name)
    assert (found.born_timestamp, found.store_timestamp, found.reconsume_times, found.prepared_offset) == (11, 13, 2, 17)
    assert found.total_size == len(data)


def test_columns_read_frames_of_mixed_hosts_and_magics() -> None:
    frames = [encode_frame(Frame(0, n, 0, bytes([n]) * n, TOPICS[n % 5], {}, born_host=HOSTS[n % 3])) for n in range(20)]
    data = b"".join(frames)
    columns = frame_columns(np.frombuffer(data, np.uint8), frame_positions(np.array([len(frame) for frame in frames])))
    assert cut_bytes(data, columns.body_at, columns.body_length) == [bytes([n]) * n for n in range(20)]
    assert cut_bytes(data, columns.topic_at, columns.topic_length) == [TOPICS[n % 5].encode() for n in range(20)]
    assert columns.hosts("born_host") == [HOSTS[n % 3] for n in range(20)]


@pytest.mark.parametrize("seed", range(6))
def test_flipped_bytes_are_told_or_harmless(seed: int) -> None:
    """No flipped bit may crash a reader or pass for another body."""
    draw = random.Random(seed)
    bodies = [draw.randbytes(draw.randrange(60)) for _ in range(6)]
    frames, sizes = encode_frames("orders", 1, bodies, unique_ids(6), b"", FrameFields(1, pack_host(HOSTS[0])))
    positions, told, refused = frame_positions(sizes), 0, 0
    for _ in range(400):
        data = bytearray(frames)
        place = draw.randrange(len(data))
        data[place] ^= 1 << draw.randrange(8)
        number = int(np.searchsorted(positions, place, side="right")) - 1
        try:
            frame = decode_frame(bytes(data), int(positions[number]))
        except CorruptFrameError:
            told += 1
        else:
            assert frame.body == bodies[number]
        refused += _refused(bytes(data), sizes)
    assert told > 80
    assert refused > 80


def _refused(data: bytes, sizes: np.ndarray) -> bool:
    try:
        check_frames(np.frombuffer(data, np.uint8), sizes, 1, b"orders", 100)
    except (CorruptBatchError, MessageTooLargeError):
        return True
    return False


def test_a_body_over_the_limit_is_named() -> None:
    frames, sizes = encode_frames("t", 0, [b"a", b"b" * 50], unique_ids(2), b"", FrameFields(1, pack_host(HOSTS[0])))
    with pytest.raises(MessageTooLargeError, match="message 1: body of 50 bytes; expected at most 49"):
        check_frames(np.frombuffer(frames, np.uint8), sizes, 0, b"t", 49)


@pytest.mark.parametrize(("queue_id", "topic"), [(1, b"t"), (0, b"u")])
def test_frames_of_another_queue_or_topic_are_refused(queue_id: int, topic: bytes) -> None:
    frames, sizes = encode_frames("t", 0, [b"a"], unique_ids(1), b"", FrameFields(1, pack_host(HOSTS[0])))
    with pytest.raises(CorruptBatchError):
        check_frames(np.frombuffer(frames, np.uint8), sizes, queue_id, topic, 49)


def test_swapped_bodies_of_equal_length_are_found() -> None:
    bodies = [bytes([n]) * 64 for n in range(16)]
    frames, sizes = encode_frames("t", 0, bodies, unique_ids(16), b"", FrameFields(1, pack_host(HOSTS[0])))
    data = bytearray(frames)
    size = int(sizes[0])
    one, other = data[88:152], data[88 + 5 * size : 152 + 5 * size]
    data[88:152], data[88 + 5 * size : 152 + 5 * size] = other, one
    with pytest.raises(CorruptBatchError, match="body CRC differs"):
        check_frames(np.frombuffer(bytes(data), np.uint8), sizes, 0, b"t", 100)


@settings(max_examples=100)
@given(
    first=st.integers(0, 20),
    step=st.integers(-3, 12),
    width=st.integers(0, 9),
    count=st.integers(0, 12),
    kind=st.sampled_from([bytes, bytearray, memoryview]),
)
def test_bytes_that_lie_equally_far_apart_are_cut_like_all_others(first: int, step: int, width: int, count: int, kind: type) -> None:
    buffer = bytes(range(256))
    starts = [first + 40 + step * number for number in range(count)]
    expected = [buffer[start : start + width] for start in starts]
    found = cut_bytes(kind(buffer), np.array(starts, np.int64), np.full(count, width, np.int64))
    assert found == expected
    assert all(type(each) is bytes for each in found)
