"""RocketMQ's checkpoint file: up to which times and positions log, queues and index are on disk.

Owns the file.  Recovery here rests on the snapshots' exact indexes; this file is for operators and tools that know it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.runtime.env import Disk
from dledger_wire.store_layout import CHECKPOINT, CHECKPOINT_FILE_SIZE

CHECKPOINT_PATH = "checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The five numbers."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    flushed_pos: int = 0
    confirmed_pos: int = 0

    def encode(self) -> bytes:
        packed = CHECKPOINT.pack(self.log_ms, self.queues_ms, self.index_ms, self.flushed_pos, self.confirmed_pos)
        return packed + bytes(CHECKPOINT_FILE_SIZE - len(packed))


async def write_checkpoint(disk: Disk, checkpoint: Checkpoint) -> None:
    """One small write in place; a torn one harms nothing."""
    file = await disk.open(CHECKPOINT_PATH, create=True)
    try:
        await file.pwrite(0, [checkpoint.encode()])
    finally:
        await file.close()
