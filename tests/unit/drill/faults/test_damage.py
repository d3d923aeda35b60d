"""Where bits may flip: inside entries, in the file that was asked for, and not at the log's very end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dledger.runtime.real_direct import BLOCK
from dledger_drill.faults.damage import entry_ends, place, segments
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, FILLER, segment_name

SEGMENT = 16384


def segment(folder: Path, start: int, bodies: list[int], *, sealed: bool) -> None:
    data = b""
    for index, size in enumerate(bodies):
        data += ENTRY_HEADER.pack(1, ENTRY_HEADER_SIZE + size, index, 1, start + len(data), 0, 0, 0, size) + b"x" * size
    if sealed:
        data += FILLER.pack(-1, SEGMENT - len(data))
    file = folder / "commitlog" / segment_name(start)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data.ljust(SEGMENT, b"\0"))


def test_the_ends_of_entries_are_found(tmp_path: Path) -> None:
    segment(tmp_path, 0, [100, 0, 300], sealed=True)
    segment(tmp_path, SEGMENT, [7], sealed=False)
    segment(tmp_path, 2 * SEGMENT, [], sealed=False)
    (tmp_path / "commitlog" / "README").write_text("not ours")
    assert [(file.name, ends) for file, ends in segments(tmp_path)] == [
        (segment_name(0), [148, 196, 544]),
        (segment_name(SEGMENT), [55]),
    ]


def test_a_file_that_entries_fill_to_its_last_byte(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(ENTRY_HEADER.pack(2, ENTRY_HEADER_SIZE, 1, 1, 0, 0, 0, 0, 0) * 3)
    assert entry_ends(file) == [48, 96, 144]


# The log ends in its second block, so that only the first may be flipped in; or it has just begun its third, and the share of old entries
# is the lower limit.
@pytest.mark.parametrize(("entries", "limit"), [(40, BLOCK), (56, 148 * 56 * 0.8)])
def test_places_are_in_the_file_asked_for_and_behind_them_something_was_written(tmp_path: Path, entries: int, limit: float) -> None:
    for number in range(3):
        segment(tmp_path, number * SEGMENT, [100] * entries, sealed=number < 2)
    found = segments(tmp_path)
    for seed in range(200):
        file, byte = place(found, sealed=True, draw=random.Random(seed))
        assert file.name in (segment_name(0), segment_name(SEGMENT))
        assert byte < 148 * entries
        file, byte = place(found, sealed=False, draw=random.Random(seed))
        assert file.name == segment_name(2 * SEGMENT)
        assert byte < 148 * entries * 0.8
        assert byte < limit
        assert place(found[:1], sealed=True, draw=random.Random(seed))[0].name == segment_name(0)


def test_a_seed_gives_the_same_place(tmp_path: Path) -> None:
    segment(tmp_path, 0, [100] * 40, sealed=False)
    found = segments(tmp_path)
    assert place(found, sealed=False, draw=random.Random(7)) == place(found, sealed=False, draw=random.Random(7))


def test_a_file_that_has_just_begun_is_not_flipped_in(tmp_path: Path) -> None:
    """The next entry writes its only block anew: seen in a run in which the flip was gone before the node read it."""
    segment(tmp_path, 0, [100] * 40, sealed=True)
    segment(tmp_path, SEGMENT, [2160], sealed=False)
    found = segments(tmp_path)
    for seed in range(100):
        file, byte = place(found, sealed=False, draw=random.Random(seed))
        assert file.name == segment_name(0)
        assert byte < 148 * 40
    with pytest.raises(InvalidArgumentError, match=f"{segment_name(SEGMENT)} has only entries that were written just now"):
        place(found[1:], sealed=True, draw=random.Random(7))
