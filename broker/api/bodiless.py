"""Frames without their bodies, for readers that need only the other fields of many messages.

Owns the cutting.  The heads are unchanged, with the sizes of the whole frame and of its body; only the separate array of sizes says how
long each cut frame is.
"""

from __future__ import annotations

import numpy as np

from dledger_wire.frames.frames import frame_columns, frame_positions, uniform_stride


def without_bodies(frames: bytes, sizes: bytes) -> tuple[bytes, bytes]:
    """(sizes, frames) of frames back to back, with their bodies cut out; sizes are big-endian u32."""
    whole = np.frombuffer(sizes, ">u4")
    data = np.frombuffer(frames, np.uint8)
    columns = frame_columns(data, frame_positions(whole))
    left = (whole.astype(np.int64) - columns.body_length).astype(">u4")
    stride = uniform_stride(whole)
    at, length = columns.body_at - frame_positions(whole), columns.body_length
    if stride and bool((at == at[0]).all()) and bool((length == length[0]).all()):
        rows = data.reshape(-1, stride)
        start = int(at[0])
        return left.tobytes(), np.concatenate([rows[:, :start], rows[:, start + int(length[0]) :]], axis=1).tobytes()
    view = memoryview(frames)
    # Everything between two bodies is one piece.
    starts = [0, *(columns.body_at + length).tolist()]
    ends = [*columns.body_at.tolist(), len(frames)]
    return left.tobytes(), b"".join([view[start:end] for start, end in zip(starts, ends, strict=True)])
