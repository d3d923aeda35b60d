"""Bits flipped in what a replica gives out: each is noticed where there is something to compare it with, put right, or read elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from broker.api.bodiless import without_bodies
from dledger.log.segment import log_path
from dledger_client.fetch.records import Chunk
from dledger_wire.errors import CorruptFrameError
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.frames.frame_layout import HEAD_SIZE
from tests.unit.client.sim_rig import Rig
from tests.unit.client.test_other_replicas import COUNT, fill, numbers

# place and size of the fields that a reader compares; the others have no checksum of their own
CHECKED = {"total_size": (0, 4), "magic": (4, 4), "queue_id": (12, 4), "queue_offset": (20, 8), "body_length": (84, 4)}
BODY = b"something"


def chunk_of(frames: list[bytes], *, bodiless: bool) -> Chunk:
    data, sizes = b"".join(frames), np.array([len(frame) for frame in frames], ">u4").tobytes()
    if bodiless:
        sizes, data = without_bodies(data, sizes)
    return Chunk("t", "g0", 3, "n1", np.arange(10, 10 + len(frames)), np.frombuffer(sizes, ">u4"), data, bodiless=bodiless)


def frames() -> list[bytes]:
    made: list[bytes] = []
    for number in range(3):
        at = 1000 + sum(map(len, made))
        made.append(encode_frame(Frame(3, 10 + number, at, BODY, "t", {"TAGS": "a", "KEYS": "k"})))
    return made


@pytest.mark.parametrize("bodiless", [False, True], ids=["whole", "without body"])
def test_a_flipped_bit_in_a_head_is_noticed(bodiless: bool) -> None:
    sound = chunk_of(frames(), bodiless=bodiless)
    assert sound.damaged_offset() is None
    each = len(sound.frames) // 3
    for at, size in CHECKED.values():
        for bit in range(8 * size):
            data = bytearray(sound.frames)
            data[each + at + bit // 8] ^= 1 << bit % 8
            bad = Chunk("t", "g0", 3, "n1", sound.offsets, sound.sizes, bytes(data), bodiless=bodiless)
            assert bad.damaged_offset() == 11, (at, bit)
    for bit in range(8 * each):  # anything else is noticed, or makes no difference to where things are
        data = bytearray(sound.frames)
        data[each + bit // 8] ^= 1 << bit % 8
        Chunk("t", "g0", 3, "n1", sound.offsets, sound.sizes, bytes(data), bodiless=bodiless).damaged_offset()


def test_a_body_and_the_order_of_places_are_noticed() -> None:
    for at, offset in ((8, 11), (HEAD_SIZE, 11), (28 + 7 - 2, 12)):  # CRC, body, physical offset
        data = bytearray(b"".join(frames()))
        data[len(data) // 3 + at] ^= 1
        assert chunk_of_bytes(bytes(data)).damaged_offset() == offset


def chunk_of_bytes(data: bytes) -> Chunk:
    return Chunk("t", "g0", 3, "n1", np.arange(10, 13), np.full(3, len(data) // 3, ">u4"), data)


async def flip_head(rig: Rig, node_id: str, field: str) -> Callable[[], bool]:
    """Flip a bit of a field of message 7 on the disk of a node; returns whether it is flipped back."""
    host = rig.cluster.hosts[node_id]
    assert host.node is not None
    host.rotten = "commitlog"
    units = await host.node.store.reader.units("t", 0, 7, 1)
    pos = int(units["pos"][0])
    start = max(segment.start_pos for segment in host.node.raft.log.segments if segment.start_pos <= pos)
    at, size = CHECKED[field]
    path, place = log_path(start), pos - start + at + size - 1
    sound = host.disk.names[path].current.whole()
    host.disk.flip_bit(path, place, 3)
    assert host.disk.names[path].current.whole() != sound
    return lambda: host.disk.names[path].current.whole() == sound


@pytest.mark.parametrize("without_body", [False, True], ids=["whole", "without body"])
@pytest.mark.parametrize("field", CHECKED)
def test_a_damaged_head_on_a_replica_is_put_right(field: str, without_body: bool) -> None:
    """docs/reference/semantics, row R3."""

    async def scenario(rig: Rig) -> None:
        await fill(rig)
        follower = rig.followers[0]
        is_sound = await flip_head(rig, follower, field)
        async with rig.consumer(replica=follower, timeout_ms=5_000) as consumer:
            chunks = [chunk async for chunk in consumer.read_chunks("t", 0, 0, COUNT, without_body=without_body)]
        assert [offset for chunk in chunks for offset in chunk.offsets.tolist()] == list(range(COUNT))
        if not without_body:
            assert [number for chunk in chunks for number in numbers(chunk.messages())] == list(range(COUNT))
        assert is_sound()

    Rig().run(scenario)


def test_a_reader_of_one_replica_that_does_not_repair_is_told_of_damage_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig)
        follower = rig.followers[0]
        is_sound = await flip_head(rig, follower, "queue_id")
        began_s, timeout_ms = rig.cluster.loop.time(), 60_000
        async with rig.consumer(replica=follower, repair=False, timeout_ms=timeout_ms) as consumer:
            with pytest.raises(CorruptFrameError, match=f"{follower}: t/0: message 7 is damaged"):
                await consumer.fetch("t", 0, 7)
            with pytest.raises(CorruptFrameError, match=f"{follower}: t/0: message 7 is damaged"):
                [chunk async for chunk in consumer.read_chunks("t", 0, 0, COUNT)]
        assert rig.cluster.loop.time() - began_s < timeout_ms / 1000
        assert not is_sound()
        async with rig.consumer(read_from="follower", repair=False) as consumer:  # of any replica: another one is read
            chunks = [chunk async for chunk in consumer.read_chunks("t", 0, 0, COUNT)]
        assert sum(chunk.count for chunk in chunks) == COUNT

    Rig().run(scenario)
