"""Frames out of log files: found at their places across pieces, and nothing taken from a folder that is not the replica's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from dledger_client.fetch.local_log_reader import LocalLogReader
from dledger_wire._pb.broker_pb2 import LogPiece
from dledger_wire.errors import ClientClosedError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two segments of 100 bytes, each byte its own log position modulo 256."""
    (tmp_path / "commitlog").mkdir()
    for start in (0, 100):
        (tmp_path / "commitlog" / f"{start:020d}").write_bytes(bytes(range(start, start + 100)))
    (tmp_path / "identity.json").write_text(json.dumps({"store_id": "s1"}))
    return tmp_path


def pieces(folder: Path, *spans: tuple[int, int]) -> list[LogPiece]:
    found = []
    for first, end in spans:
        start = first // 100 * 100
        found.append(LogPiece(file=str(folder / "commitlog" / f"{start:020d}"), at=first - start, size=end - first, pos=first))
    return found


def frames(folder: Path, spans: list[tuple[int, int]], wanted: list[tuple[int, int]], store_id: str = "s1") -> bytes:
    files = LocalLogReader()
    try:
        places, sizes = np.array([at for at, _ in wanted]), np.array([size for _, size in wanted])
        return bytes(files.frames(pieces(folder, *spans), store_id, places, sizes))
    finally:
        files.close()


def test_frames_with_gaps_in_several_pieces_and_files(folder: Path) -> None:
    wanted = [(10, 5), (15, 5), (40, 3), (90, 10), (100, 2), (150, 7)]
    expected = b"".join(bytes(range(at, at + size)) for at, size in wanted)
    assert frames(folder, [(10, 43), (90, 100), (100, 160)], wanted) == expected
    assert frames(folder, [(10, 20)], wanted[:2]) == expected[:10]
    assert frames(folder, [(5, 60)], wanted[:2]) == expected[:10]


@pytest.mark.parametrize(
    ("spans", "wanted", "store_id", "text"),
    [
        ([(10, 20)], [(10, 5)], "s2", "belongs to another node"),
        ([(10, 20)], [(10, 11)], "s1", "outside of the 1 pieces"),
        ([(10, 20), (30, 40)], [(10, 5), (19, 3)], "s1", "outside of the 2 pieces"),
        ([(10, 20)], [(5, 3)], "s1", "outside"),
        ([(150, 220)], [(195, 10)], "s1", "ends at 100, expected 105"),
        ([(250, 260)], [(250, 5)], "s1", "No such file"),
    ],
)
def test_what_is_not_there_is_an_error(
    folder: Path, spans: list[tuple[int, int]], wanted: list[tuple[int, int]], store_id: str, text: str
) -> None:
    with pytest.raises(OSError, match=text):
        frames(folder, spans, wanted, store_id)


@pytest.mark.parametrize("identity", ["", "{}", "[1]", "{'store_id': 's1'}"])
def test_a_folder_that_does_not_say_whose_it_is_is_not_read(folder: Path, identity: str) -> None:
    (folder / "identity.json").write_text(identity)
    with pytest.raises(OSError, match="does not name its store"):
        frames(folder, [(10, 20)], [(10, 5)])


def test_an_open_file_outlives_its_deletion(folder: Path) -> None:
    files = LocalLogReader()
    first = files.frames(pieces(folder, (0, 10)), "s1", np.array([0]), np.array([10]))
    (folder / "commitlog" / f"{0:020d}").unlink()
    again = files.frames(pieces(folder, (10, 20)), "s1", np.array([10]), np.array([10]))
    files.close()
    assert bytes(first) + bytes(again) == bytes(range(20))


def test_a_read_that_comes_to_its_turn_after_the_close_opens_no_file(folder: Path) -> None:
    """Reads run in threads: nobody would close the file again."""
    files = LocalLogReader()
    opened = len(os.listdir("/proc/self/fd"))
    files.close()
    with pytest.raises(ClientClosedError):
        files.frames(pieces(folder, (0, 10)), "s1", np.array([0]), np.array([10]))
    assert len(os.listdir("/proc/self/fd")) == opened
