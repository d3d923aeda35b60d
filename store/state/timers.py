"""How far messages with a delivery time of their own were delivered, as replicated state.

Owns config/timer.json.  Such messages wait in one queue of the timer topic in the order they were stored, and are due in another one, so
three numbers and a moment say which of them are still to be delivered, but for the few that damage held up:

    offset >= seen                                  waits
    low <= offset < seen, (due, offset) > done      waits
    offset in held                                  waits: it was due, and could not be read then
    everything else                                 delivered, or stored again further back

The command that moves them stands in the same log entry as the messages it delivered (``delivery.py``): both are committed or neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from store.state.sections import CommandContext, CommandResult, Handler

ADVANCE_TIMERS = "advance_timers"


@dataclass(frozen=True, slots=True)
class TimerProgress:
    """``done_ms`` and ``done_offset``: the greatest (due time, offset) delivered of what lies before ``seen``; ``held`` rises."""

    low: int = 0
    seen: int = 0
    done_ms: int = 0
    done_offset: int = -1
    held: tuple[int, ...] = ()

    def waiting(self, offsets: npt.NDArray[np.int64], due: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which messages before ``seen`` are still to be delivered, without those held."""
        later = (due > self.done_ms) | ((due == self.done_ms) & (offsets > self.done_offset))
        result: npt.NDArray[np.bool_] = later & (offsets >= self.low)
        return result


class Timers:
    """Implements ``group_state.Section``."""

    file_name = "timer.json"

    def __init__(self) -> None:
        self.progress = TimerProgress()

    def handlers(self) -> Mapping[str, Handler]:
        return {ADVANCE_TIMERS: self._advance}

    def _advance(self, arguments: dict[str, Any], _context: CommandContext) -> CommandResult:
        self.progress = _progress(arguments)
        return {}

    def dump(self) -> dict[str, Any]:
        return asdict(self.progress)

    def load(self, data: dict[str, Any]) -> None:
        self.progress = _progress(data)


def _progress(data: Mapping[str, Any]) -> TimerProgress:
    held = tuple(int(offset) for offset in data.get("held", ()))
    return TimerProgress(int(data["low"]), int(data["seen"]), int(data["done_ms"]), int(data["done_offset"]), held)
