"""How far messages with a delivery time of their own were delivered, as replicated state.

Owns config/timer.json.  Such messages wait in one queue of the timer topic in the order they were stored, and are due in another one, so
three numbers and a moment say which of them are still to be delivered, but for the few that damage held up:

    offset >= seen                                  waits
    low <= offset < seen, (due, offset) > done      waits
    offset in held                                  waits: it was due, and could not be read then
    everything else                                 delivered, or stored again further back

The command that moves them is in the same log entry as the messages it delivered (``redelivery.py``): both are committed or neither.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from store.commands.command import JsonObject
from store.commands.redelivery import AdvanceTimers
from store.state.state_machine import CommandContext, CommandHandlers


@dataclass(frozen=True, slots=True)
class TimerProgress:
    """``done_ms`` and ``done_offset``: the greatest (due time, offset) delivered of what lies before ``seen``; ``held`` rises."""

    low: int = 0
    seen: int = 0
    done_ms: int = 0
    done_offset: int = -1
    held: tuple[int, ...] = ()

    def command(self) -> AdvanceTimers:
        """What makes this the replicated progress."""
        return AdvanceTimers(low=self.low, seen=self.seen, done_ms=self.done_ms, done_offset=self.done_offset, held=self.held)

    def waiting(self, offsets: npt.NDArray[np.int64], due: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which messages before ``seen`` are still to be delivered, without those held."""
        later = (due > self.done_ms) | ((due == self.done_ms) & (offsets > self.done_offset))
        result: npt.NDArray[np.bool_] = later & (offsets >= self.low)
        return result

    def undelivered(self, offsets: npt.NDArray[np.int64], due: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which messages are still to be delivered, whatever they wait for."""
        return self.waiting(offsets, due) | (offsets >= self.seen) | np.isin(offsets, self.held)


class Timers:
    """Implements ``StateMachineSection``."""

    file_name = "timer.json"

    def __init__(self) -> None:
        self.progress = TimerProgress()

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(AdvanceTimers, self._advance)

    def _advance(self, command: AdvanceTimers, _context: CommandContext) -> None:
        self.progress = TimerProgress(command.low, command.seen, command.done_ms, command.done_offset, command.held)

    def dump(self) -> JsonObject:
        return asdict(self.progress)

    def load(self, data: JsonObject) -> None:
        held = tuple(int(offset) for offset in data.get("held", ()))
        self.progress = TimerProgress(int(data["low"]), int(data["seen"]), int(data["done_ms"]), int(data["done_offset"]), held)
