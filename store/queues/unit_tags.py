"""The last field of a queue unit: the tag's hash, or in the timer topic the time at which the message is due.

Owns that choice, for everything that makes units: the dispatcher as batches come, the rebuild of damaged files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dledger_wire.batches.batch import BatchView
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.timer import due_times
from dledger_wire.names import TIMER_TOPIC


def unit_tags(batch: BatchView) -> npt.NDArray[Any]:
    """One number a message.  The leader checks that messages of the timer topic say when they are due; one that does not say it
    is due when it is stored, so that the replica goes on."""
    if batch.topic != TIMER_TOPIC:
        return batch.tag_hashes
    try:
        return batch_due_times(batch)
    except InvalidArgumentError:
        return np.array([_due_time(batch, number) for number in range(batch.count)], np.int64)


def _due_time(batch: BatchView, number: int) -> int:
    try:
        return int(due_times(np.frombuffer(batch.data, np.uint8), batch.positions[number : number + 1])[0])
    except InvalidArgumentError:
        return int(batch.store_timestamp)


def batch_due_times(batch: BatchView) -> npt.NDArray[np.int64]:
    """InvalidArgumentError when a message does not say when it is due."""
    return due_times(np.frombuffer(batch.data, np.uint8), batch.positions)
