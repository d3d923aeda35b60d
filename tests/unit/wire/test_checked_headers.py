"""Headers with a checksum, times of timed messages, names of segments, feature levels: what is read back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from dledger_wire._pb import raft_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.feature_levels import LevelRange, refusal, release_of, switched_on
from dledger_wire.frames.frame_layout import UNIQUE_ID_SIZE
from dledger_wire.frames.frames import FrameFields, encode_frames
from dledger_wire.frames.timer import due_times, timer_property
from dledger_wire.layout import parse_segment_name, segment_name
from dledger_wire.rpc.envelope import decode_checked, encode_checked

DUE_MS = 1_700_000_000_000


def timed(extras: list[bytes]) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Frames with these properties behind UNIQ_KEY, and where each begins."""
    ids = np.full((len(extras), UNIQUE_ID_SIZE), ord("A"), np.uint8)
    frames, sizes = encode_frames("t", 0, [b"body"] * len(extras), ids, extras, FrameFields(0, bytes(8)))
    return np.frombuffer(frames, np.uint8), np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)


def test_due_times_are_read_out_of_a_batch() -> None:
    data, positions = timed([timer_property(DUE_MS + number) + b"KEYS\x01k\x02" for number in range(3)])
    assert due_times(data, positions).tolist() == [DUE_MS, DUE_MS + 1, DUE_MS + 2]


@pytest.mark.parametrize(
    "bad", [b"", b"KEYS\x01a long one that is no time\x02", b"TIMER_OUT_MS\x0117000000000x0\x02", b"TIMER_OUT_MS\x0117000000000000\x02"]
)
def test_the_first_message_without_a_due_time_is_named(bad: bytes) -> None:
    data, positions = timed([timer_property(DUE_MS), bad])
    with pytest.raises(InvalidArgumentError, match="message 1 waits for no time"):
        due_times(data, positions)


@pytest.mark.parametrize("due_ms", [0, 10**12 - 1, 10**13])
def test_a_due_time_has_13_digits(due_ms: int) -> None:
    with pytest.raises(InvalidArgumentError, match="13 digits"):
        timer_property(due_ms)


def test_a_header_with_a_checksum_is_read_back_with_what_follows() -> None:
    payloads: tuple[list[bytes], ...] = ([], [b"entries"], [b"x" * 300, b"y" * 70_000])
    for payload in payloads:
        found, rest = decode_checked(raft_pb2.RaftMessage, encode_checked(raft_pb2.RaftMessage(term=7), payload))
        assert (found.term, bytes(rest)) == (7, b"".join(payload))


def test_every_flipped_bit_of_a_checked_header_is_refused() -> None:
    whole = encode_checked(raft_pb2.RaftMessage(term=7), [b"entries"])
    header_size = int.from_bytes(whole[1:5], "little")
    for at in range(header_size):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            with pytest.raises(InvalidArgumentError, match="checksum"):
                decode_checked(raft_pb2.RaftMessage, bytes(damaged))
    for end in range(header_size):
        with pytest.raises(InvalidArgumentError, match="checksum"):
            decode_checked(raft_pb2.RaftMessage, whole[:end])


def test_names_of_segments() -> None:
    assert parse_segment_name(segment_name(1 << 30)) == 1 << 30
    assert [parse_segment_name(name) for name in ("", "1", "x" * 20, "٣" * 20, "0" * 21)] == [None] * 5


def test_a_build_that_cannot_do_a_level_is_refused_with_what_helps() -> None:
    assert refusal("n1", LevelRange(0, 2), 1) == ""
    assert refusal("n1", LevelRange(0, 0), 7, "0.9.0").endswith("the replica group is at 7: start dledger 0.9.0 or newer")
    assert refusal("n1", LevelRange(0, 0), 99).endswith("start a newer release")
    assert "and raise the level with it first" in refusal("n1", LevelRange(3, 4), 1)
    assert release_of(99) == ""
    assert switched_on(98, 99) == []
