"""History files: what was written is read, also of a killed process, and several are one history."""

from __future__ import annotations

import gzip
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dledger_drill.history.reader import merge, read_history
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.history.writer import HistoryWriter
from dledger_wire.errors import InvalidArgumentError
from tests.waiting import wait_until

WRITE_AND_WAIT = """
import pathlib, sys
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.history.writer import HistoryWriter
writer = HistoryWriter(pathlib.Path(sys.argv[1]))
for n in range(1000):
    writer.write(Operation("p", OperationKind.SEND, n, None, Outcome.UNKNOWN, 1, {"value": f"p/{n}"}))
writer.flush()
print("flushed", flush=True)
sys.stdin.read()
"""


def operation(at: int, process: str = "p") -> Operation:
    return Operation(process, OperationKind.SEND, at, at + 5, Outcome.OK, 2, {"value": f"{process}/{at}", "key": None, "text": "é\n"})


@pytest.mark.parametrize("name", ["h.jsonl", "h.jsonl.gz"])
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    written = [operation(n) for n in range(5000)]
    with HistoryWriter(tmp_path / name) as writer:
        for each in written:
            writer.write(each)
    assert list(read_history(tmp_path / name)) == written
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


@pytest.mark.parametrize("name", ["h.jsonl", "h.jsonl.gz"])
def test_flushed_operations_outlive_a_killed_process(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-c", WRITE_AND_WAIT, str(tmp_path / name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"flushed\n"
        process.send_signal(signal.SIGKILL)
    assert [each.invoked_ns for each in read_history(tmp_path / name)] == list(range(1000))


@pytest.mark.parametrize("name", ["h.jsonl", "h.jsonl.gz"])
def test_a_torn_last_line_is_left_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with HistoryWriter(path) as writer:
        for n in range(3):
            writer.write(operation(n))
    content = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    torn = content[:-7]
    path.write_bytes(gzip.compress(torn) if name.endswith(".gz") else torn)
    assert [each.invoked_ns for each in read_history(path)] == [0, 1]


def test_a_gzip_file_cut_at_any_byte_gives_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl.gz"
    with HistoryWriter(path) as writer:
        for n in range(20):
            writer.write(operation(n))
            writer.flush()
    whole = path.read_bytes()
    counts = []
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        read = [each.invoked_ns for each in read_history(path)]
        assert read == list(range(len(read)))
        counts.append(len(read))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 20)


def test_a_line_that_is_no_operation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as writer:
        writer.write(operation(1))
    with path.open("ab") as file:
        file.write(b'{"process":"p"}\n')
    with pytest.raises(InvalidArgumentError, match=r"h\.jsonl:2"):
        list(read_history(path))


@pytest.mark.parametrize("run_operations", [7, 100_000])
def test_files_are_merged_by_invocation(tmp_path: Path, run_operations: int) -> None:
    draw = random.Random(5)
    times = [draw.randrange(10_000) for _ in range(500)]
    paths = [tmp_path / f"{n}.jsonl{'.gz' * (n % 2)}" for n in range(3)]
    for n, path in enumerate(paths):
        with HistoryWriter(path) as writer:
            for at in times[n::3]:
                writer.write(operation(at, f"p{n}"))
    merged = list(merge(paths, run_operations))
    assert [each.invoked_ns for each in merged] == sorted(times)
    assert {each.process for each in merged} == {"p0", "p1", "p2"}


def test_threads_write_whole_lines_and_the_writer_flushes_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as writer:

        def write(process: str) -> None:
            for at in range(500):
                writer.write(operation(at, process))

        threads = [threading.Thread(target=write, args=(f"p{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: path.stat().st_size > 0, "a flush without a call")
    read = list(read_history(path))
    for n in range(4):
        assert [each.invoked_ns for each in read if each.process == f"p{n}"] == list(range(500))
