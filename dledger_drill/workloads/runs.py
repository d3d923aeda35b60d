"""Rows of queues as runs of consecutive offsets, as the history keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

from dledger_drill.workloads.bodies import value_of

Row = TypeVar("Row")


def consecutive_runs(rows: Iterable[tuple[int, Row]]) -> list[tuple[int, list[Row]]]:
    """Rows with their offsets in rising order -> first offset and rows of each run; an offset that comes twice begins a run."""
    runs: list[tuple[int, list[Row]]] = []
    for offset, row in rows:
        if not runs or offset != runs[-1][0] + len(runs[-1][1]):
            runs.append((offset, []))
        runs[-1][1].append(row)
    return runs


def of_queues(rows: Iterable[Sequence[object]]) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Rows (group, queue, offset, body) in any order -> by queue, (offset, value) in rising order."""
    queues: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for group, queue, offset, body in rows:
        queues.setdefault((str(group), int(str(queue))), []).append((int(str(offset)), value_of(bytes(cast(bytearray, body)))))
    for content in queues.values():
        content.sort()
    return queues
