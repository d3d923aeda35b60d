"""What the benches send and how they account for it: numbered bodies, bitmaps of numbers, the line that says what was checked."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import typer

from dledger_client.fetch.records import Chunk
from dledger_drill.bench.account import NumberSet, ReadAccount, consumed_text, produced_text
from dledger_drill.bench.bodies import BLOCK_BYTES, HEAD, NUMBERS_LIMIT, SMALLEST_BODY, Bodies, numbers_in
from dledger_drill.bench.runs import bodies_of
from dledger_wire.frames.frame_layout import UNIQUE_ID_SIZE
from dledger_wire.frames.frames import FrameFields, encode_frames


def chunk_of(*bodies: bytes) -> Chunk:
    count = len(bodies)
    ids = np.full((count, UNIQUE_ID_SIZE), ord("A"), np.uint8)
    frames, sizes = encode_frames("t", 0, bodies, ids, b"", FrameFields(0, bytes(8)))
    return Chunk("t", "g0", 0, "n0", np.arange(count), sizes, bytes(frames))


def marked(*numbers: int) -> NumberSet:
    found = NumberSet()
    found.mark(np.array(numbers, np.uint64))
    return found


def test_bodies_are_distinct_of_their_sizes_and_do_not_compress() -> None:
    bodies = Bodies(512, 1536)
    made = [bodies.make(number) for number in range(3000)]
    assert len(set(made)) == 3000
    sizes = [len(body) for body in made]
    assert 512 <= min(sizes) < max(sizes) <= 1536
    assert len(set(sizes)) > 500
    assert bodies.bytes_in(np.arange(3000, dtype=np.uint64)) == sum(sizes)
    together = b"".join(made)
    assert len(zlib.compress(together)) > 0.98 * len(together)
    assert [bodies.number_in(body) for body in made] == list(range(3000))
    with pytest.raises(ValueError, match="did not send"):
        Bodies(16, 16).number_in(made[0])
    large = Bodies(BLOCK_BYTES + 5, BLOCK_BYTES + 5)
    assert len(large.make(1)) == BLOCK_BYTES + 5


def test_sizes_are_one_or_two() -> None:
    assert ((one := bodies_of("1KiB")).low, one.high, one.text) == (1024, 1024, "1024 B")
    assert ((two := bodies_of("512-1KiB")).low, two.high, two.text) == (512, 1024, "512 to 1024 B")
    for wrong in ("8", "1KiB-512", "512-", "-512", "a-b", "1-2-3"):
        with pytest.raises(typer.BadParameter):
            bodies_of(wrong)


def test_numbers_are_counted_once_and_what_is_not_a_benchs_apart() -> None:
    first, second = Bodies(SMALLEST_BODY, 40), Bodies(100, 100)
    account = ReadAccount()
    huge = HEAD.pack(0x646C6231, first.run, NUMBERS_LIMIT)
    account.read(chunk_of(first.make(0), first.make(9000), b"", second.make(0), b"hello, I am not of a bench", huge))
    account.read(chunk_of(first.make(3), second.make(1)))
    assert numbers_in(chunk_of(b"short")).by_run == {}
    assert (account.distinct, account.duplicated, account.others) == (5, 0, 3)
    account.read(chunk_of(first.make(3), first.make(3)))
    assert (account.distinct, account.duplicated) == (5, 2)
    assert marked(0, 3, 9000).missing_in(account.runs[first.run]) == 0
    assert marked(0, 4, 90_000).missing_in(account.runs[first.run]) == 2
    assert account.runs[first.run].numbers().tolist() == [0, 3, 9000]
    assert consumed_text(account, 6, 1) == "checked: 5 distinct messages of 6; lost 1, duplicated 2; 3 without a bench's number"


def test_the_line_says_what_was_checked() -> None:
    text = "checked: 1 000 000 of 1 000 000 distinct messages acknowledged"
    assert produced_text(1_000_000, 1_000_000, (0, 2)) == f"{text}, then all read back: lost 0, duplicated 2"
    assert produced_text(1_000_000, 1_000_000, None) == f"{text}; not read back"
