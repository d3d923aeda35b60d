"""Reads history files: one by itself, or several as one history in the order of invocation."""

from __future__ import annotations

import heapq
import itertools
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from dledger_drill.history.records import Operation, decode, encode
from dledger_wire.errors import InvalidArgumentError

CHUNK_BYTES = 256 * 1024
RUN_OPERATIONS = 100_000  # sorted in memory at a time; with their lines about 60 MB
GZIP_FORMAT = 31  # zlib's number for a stream with gzip's header


def read_history(path: Path) -> Iterator[Operation]:
    """The operations of one file, in the order in which they were written: that of their answers.

    A last line that was cut off, as a killed process leaves it, is left out.
    """
    rest, number = b"", 0
    for chunk in _chunks(path):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            number += 1
            try:
                yield decode(line)
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidArgumentError(f"{path}:{number}: not an operation of a drill's history: {error}") from error


def merge(paths: Iterable[Path], run_operations: int = RUN_OPERATIONS) -> Iterator[Operation]:
    """The operations of all files by ``invoked_ns``, with flat memory: sorted runs in a temporary folder are merged.

    A file has the order of its answers, and an operation may take as long as the drill, so no window in memory would be enough.
    """
    operations = itertools.chain.from_iterable(map(read_history, paths))
    with tempfile.TemporaryDirectory(prefix="dledger-drill-sort-") as folder:
        runs: list[Path] = []
        while run := sorted(itertools.islice(operations, run_operations), key=_invoked):
            if not runs and len(run) < run_operations:
                yield from run
                return
            runs.append(Path(folder, f"run-{len(runs)}"))
            with runs[-1].open("wb") as file:
                file.writelines(map(encode, run))
        yield from heapq.merge(*map(read_history, runs), key=_invoked)


def _invoked(operation: Operation) -> int:
    return operation.invoked_ns


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        if path.name.endswith(".gz"):
            yield from _inflated(file)
        else:
            yield from iter(lambda: file.read(CHUNK_BYTES), b"")


def _inflated(file: IO[bytes]) -> Iterator[bytes]:
    """What is there of a gzip file, also one without its end: the gzip module raises before it gives out the last part."""
    stream = zlib.decompressobj(GZIP_FORMAT)
    while raw := file.read(CHUNK_BYTES):
        while raw:
            yield stream.decompress(raw)
            raw = stream.unused_data
            if stream.eof:
                stream = zlib.decompressobj(GZIP_FORMAT)
