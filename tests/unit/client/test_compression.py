"""Large bodies travel and lie compressed, and everybody who reads gets what was sent."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import pytest

from dledger_client.aio import Action, Message, TransactionState
from dledger_client.fetch.records import Chunk, ReceivedMessage
from dledger_client.producer.settings import ProducerOptions
from dledger_wire.errors import CorruptFrameError, InvalidArgumentError, MessageTooLargeError
from dledger_wire.frames.compress import compress, decompress
from dledger_wire.frames.frame import Frame, decode_frame, encode_frame
from dledger_wire.frames.frames import frame_positions
from dledger_wire.status import Compression
from tests.unit.client.push_rig import Group
from tests.unit.client.sim_rig import Rig, until

TEXT = b"".join(b"line %d of a large message\n" % number for number in range(400))


def stored(messages: list[ReceivedMessage], chunks: list[Chunk]) -> list[Frame]:
    """The frames as they lie in the log."""
    places = [(chunk, place) for chunk in chunks for place in frame_positions(chunk.sizes).tolist()]
    assert len(places) == len(messages)
    return [decode_frame(chunk.frames, place) for chunk, place in places]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
@pytest.mark.parametrize("count", [1, 40])
def test_large_bodies_are_stored_small_and_read_whole(kind: str, count: int) -> None:
    bodies = [TEXT if number % 2 == 0 else b"small %d" % number for number in range(count)]
    bodies += [TEXT[:4096], TEXT[:4097], b"", random.Random(1).randbytes(20_000)]

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(compress_type=kind) as producer, rig.consumer(read_from="follower") as consumer:
            futures = [producer.send_async(Message("t", body, keys="k", tags="x"), queue_id=0) for body in bodies]
            await producer.flush()
            assert all(future.exception() is None for future in futures)
            chunks = await consumer.fetch_chunks("t", 0, 0, 1000)
            messages = [message for chunk in chunks for message in chunk.messages()]
            assert [message.body for message in messages] == bodies
            assert {(message.keys, message.tags) for message in messages} == {("k", "x")}
            flag = 0x1 | Compression[kind.upper()] << 8
            for frame, body in zip(stored(messages, chunks), bodies, strict=True):
                shrinks = len(body) > 4096 and body in TEXT
                assert frame.sys_flag == (flag if shrinks else 0)
                assert (len(frame.body) < len(body) // 2) == shrinks
            assert [message.body for message in await consumer.fetch("t", 0, 0, 1000, tags="x", sql="KEYS = 'k'")] == bodies

    Rig().run(scenario)


def test_the_threshold_and_none_are_kept_to() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        sent: list[tuple[dict[str, Any], bytes, bool]] = [
            ({"compress_type": "none"}, TEXT, False),
            ({"compress_over_bytes": len(TEXT)}, TEXT, False),
            ({"compress_over_bytes": len(TEXT) - 1}, TEXT, True),
            ({"compress_over_bytes": 0}, b"a" * 100, True),
            ({"compress_over_bytes": 0}, b"a", False),
        ]
        for how, body, _ in sent:
            async with rig.producer(**how) as producer:
                await producer.send(Message("t", body), queue_id=0)
        async with rig.consumer() as consumer:
            chunks = await consumer.fetch_chunks("t", 0, 0, 100)
            messages = [message for chunk in chunks for message in chunk.messages()]
            assert [message.body for message in messages] == [body for _, body, _ in sent]
            assert [bool(frame.sys_flag & 1) for frame in stored(messages, chunks)] == [small for *_, small in sent]

    Rig().run(scenario)


def test_a_delayed_message_stays_compressed_on_its_way() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send(Message("t", TEXT, delay_level=1), queue_id=0)
            found = await consumer.fetch_chunks("t", 0, 0, wait_ms=5000)
            (message,) = [message for chunk in found for message in chunk.messages()]
            assert message.body == TEXT
            assert stored([message], found)[0].sys_flag == 0x301

    Rig().run(scenario)


def test_push_consumers_get_it_whole_also_when_it_is_sent_back() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig)
        group.answers = [Action.RECONSUME_LATER]
        await group.start("a")
        async with rig.producer() as producer:
            await producer.send(Message("t", TEXT, keys="k"), queue_id=0)
        await until(lambda: len(group.seen) == 2)
        assert [(seen.body, seen.topic) for seen in group.seen] == [(TEXT, "t")] * 2
        await group.stop()

    Rig().run(scenario)


def test_a_transaction_carries_it_whole_to_the_check_and_to_the_consumer() -> None:
    asked: list[bytes] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.transactions(check) as producer, rig.consumer() as consumer:
            message = Message("t", TEXT)
            await producer.send_in_transaction(message, lambda *_: TransactionState.COMMIT, queue_id=0)
            await producer.send_in_transaction(message, lambda *_: TransactionState.UNKNOWN, queue_id=0)
            found: list[ReceivedMessage] = []
            while len(found) < 2:
                found += await consumer.fetch("t", 0, len(found), wait_ms=20_000)
            assert [each.body for each in found] == [TEXT, TEXT]
            assert asked == [TEXT]

    Rig().run(scenario)


def test_the_limit_of_a_body_counts_what_consumers_get() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(max_message_bytes=5000) as producer:
            with pytest.raises(MessageTooLargeError, match="body of 5001 bytes; expected at most 5000"):
                await producer.send(Message("t", bytes(5001)), queue_id=0)
            await producer.send(Message("t", bytes(5000)), queue_id=0)

    Rig().run(scenario)


def test_a_body_that_does_not_open_is_an_error_of_its_message_only() -> None:
    """docs/reference/semantics, row R8."""
    frames = [
        encode_frame(Frame(0, 0, 0, b"plain", "t")),
        encode_frame(Frame(0, 1, 0, b"not compressed at all", "t", sys_flag=0x301)),
        encode_frame(Frame(0, 2, 0, b"whatever", "t", sys_flag=0x701)),
        encode_frame(Frame(0, 3, 0, zlib.compress(b"older client"), "t", sys_flag=0x1)),
    ]
    chunk = Chunk("t", "g0", 0, "n0", np.arange(4), np.array([len(frame) for frame in frames]), b"".join(frames))
    messages = chunk.messages()
    assert (messages[0].body, messages[3].body) == (b"plain", b"older client")
    with pytest.raises(CorruptFrameError, match="does not decompress as zlib"):
        _ = messages[1].body
    with pytest.raises(CorruptFrameError, match="compression type 7"):
        _ = messages[2].body


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"compress_type": "brotli"}, "compression 'brotli': expected one of none, lz4, zstd, zlib"),
        ({"compressLevel": 0}, "compress_level 0: expected 1 to 9"),
        ({"compressMsgBodyOverHowmuch": -1}, "compress_over_bytes -1: expected at least 0"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        ProducerOptions.of("g", settings)


@pytest.mark.parametrize("size", [1, 65_536, 65_537, 1 << 20])
def test_lz4_frames_have_independent_blocks_which_rocketmq_asks_for(size: int) -> None:
    body = (TEXT * (size // len(TEXT) + 1))[:size]
    packed = compress(body, Compression.LZ4)
    assert packed[4] & 0x20, "the frame's FLG byte: B.Indep"
    assert decompress(packed, Compression.LZ4) == body
