"""Record batches as Spark takes them: small ones of many chunks are put together."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

ENOUGH_ROWS, ENOUGH_BYTES = 4096, 1 << 20  # smaller batches are coalesced before they go to Spark


def coalesced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: many small batches cost Spark more than their rows."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ENOUGH_ROWS or size >= ENOUGH_BYTES:
            yield from _one(waiting)
            waiting, rows, size = [], 0, 0
    yield from _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) < 2:
        yield from batches
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
