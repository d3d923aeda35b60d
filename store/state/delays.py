"""How far each delay level has been delivered, as replicated state.

Owns RocketMQ's config/delayOffset.json.  The command that moves a level on is in the same log entry as the messages it delivered
(``store/append/redelivery.py``): either both are committed or neither, so a delayed message is delivered once, whatever dies in between.
"""

from __future__ import annotations

from store.commands.command import JsonObject
from store.commands.redelivery import AdvanceDelayLevel
from store.state.state_machine import CommandContext, CommandHandlers

LEVELS = 18


class DelayOffsets:
    """Next offset to deliver of each level's queue in the schedule topic.  Implements ``StateMachineSection``."""

    file_name = "delayOffset.json"

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}

    def of(self, level: int) -> int:
        return self._offsets.get(level, 0)

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(AdvanceDelayLevel, self._advance)

    def _advance(self, command: AdvanceDelayLevel, _context: CommandContext) -> None:
        self._offsets[command.level] = max(command.offset, self.of(command.level))

    def dump(self) -> JsonObject:
        return {"offsetTable": {str(level): offset for level, offset in self._offsets.items()}}

    def load(self, data: JsonObject) -> None:
        self._offsets = {int(level): offset for level, offset in data["offsetTable"].items()}
