"""How far messages with a delivery time of their own were delivered, as replicated state.

Owns config/timer.json.  Such messages wait in one queue of the timer topic in the order they were stored, and are due in another one, so
three numbers and a moment say which of them are still to be delivered, but for the few that damage held up:

    offset >= seen                                  waits
    low <= offset < seen, (due, offset) > done      waits
    offset in held                                  waits: it was due, and could not be read then
    everything else                                 delivered, or stored again further back

The command that moves them is in the same log entry as the messages it delivered (``redelivery.py``): both are committed or neither.

A message that waits may be recalled, which is decided where that command stands in the log: behind the entry that delivered the message it
is refused.  What is recalled keeps its place until its time has come; ``MAX_RECALLED`` at once, since each is in every snapshot.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from dledger_wire.errors import BusyError, InvalidArgumentError
from store.commands.command import JsonObject
from store.commands.redelivery import AdvanceTimers, RecallTimed
from store.state.row_table import RowTable
from store.state.state_machine import CommandContext, CommandHandlers

MAX_RECALLED = 100_000


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

    def awaits(self, offset: int, due_ms: int) -> bool:
        """Whether one message is still to be delivered, and not held."""
        return offset >= self.seen or (offset >= self.low and (due_ms, offset) > (self.done_ms, self.done_offset))


class Timers:
    """Implements ``StateMachineSection``."""

    file_name = "timer.json"

    def __init__(self) -> None:
        self.progress = TimerProgress()
        self._recalled: RowTable[int, int] = RowTable(int, _encoded)  # due times by offset
        self._by_due: list[tuple[int, int]] = []  # (due time, offset) of the same, a heap

    def not_recalled(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which messages were not recalled."""
        if not len(self._recalled):
            return np.ones(len(offsets), np.bool_)
        return np.fromiter((self._recalled.get(offset) is None for offset in offsets.tolist()), np.bool_, len(offsets))

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(AdvanceTimers, self._advance)
        handlers.on(RecallTimed, self._recall)

    def _advance(self, command: AdvanceTimers, _context: CommandContext) -> None:
        self.progress = TimerProgress(command.low, command.seen, command.done_ms, command.done_offset, command.held)
        while self._by_due and not self.progress.awaits(offset := self._by_due[0][1], self._by_due[0][0]):
            heappop(self._by_due)
            self._recalled.pop(offset)

    def _recall(self, command: RecallTimed, _context: CommandContext) -> None:
        offset, due_ms = command.offset, command.due_ms
        if not self.progress.awaits(offset, due_ms):
            raise InvalidArgumentError("the message does not wait any more: its delivery time has come")
        if self._recalled.get(offset) is not None:
            return
        if len(self._recalled) >= MAX_RECALLED:
            raise BusyError(f"{MAX_RECALLED} messages were recalled whose delivery time has not come yet; expected fewer")
        self._recalled.change(offset, lambda: due_ms)
        heappush(self._by_due, (due_ms, offset))

    def dump(self) -> JsonObject:
        return self._dumped({str(offset): due_ms for offset, due_ms in self._recalled.items()})

    def capture(self) -> JsonObject:
        return self._dumped(self._recalled.capture())

    def _dumped(self, recalled: object) -> JsonObject:
        # First, since ``json_pieces`` takes the first value for as large as the others.
        return ({"recalled": recalled} if len(self._recalled) else {}) | asdict(self.progress)

    def load(self, data: JsonObject) -> None:
        held = tuple(int(offset) for offset in data.get("held", ()))
        self.progress = TimerProgress(int(data["low"]), int(data["seen"]), int(data["done_ms"]), int(data["done_offset"]), held)
        self._recalled.load((int(offset), int(due_ms)) for offset, due_ms in data.get("recalled", {}).items())
        self._by_due = [(due_ms, offset) for offset, due_ms in self._recalled.items()]
        heapify(self._by_due)


def _encoded(offset: int, due_ms: int) -> bytes:
    return b'"%d":%d' % (offset, due_ms)
