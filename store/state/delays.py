"""How far each delay level has been delivered, as replicated state.

Owns RocketMQ's config/delayOffset.json.  The command that moves a level on stands in the same log entry as the messages it delivered
(``delivery.py``): either both are committed or neither, so a delayed message is delivered once, whatever dies in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store.state.sections import CommandContext, CommandResult, Handler

ADVANCE = "advance_delay"
LEVELS = 18


class DelayOffsets:
    """Next offset to deliver of each level's queue in the schedule topic.  Implements ``group_state.Section``."""

    file_name = "delayOffset.json"

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}

    def of(self, level: int) -> int:
        return self._offsets.get(level, 0)

    def handlers(self) -> Mapping[str, Handler]:
        return {ADVANCE: self._advance}

    def _advance(self, arguments: dict[str, Any], _context: CommandContext) -> CommandResult:
        level, offset = int(arguments.get("level", 0)), int(arguments.get("offset", 0))
        self._offsets[level] = max(offset, self.of(level))
        return {"level": level, "offset": self._offsets[level]}

    def dump(self) -> dict[str, Any]:
        return {"offsetTable": {str(level): offset for level, offset in self._offsets.items()}}

    def load(self, data: dict[str, Any]) -> None:
        self._offsets = {int(level): offset for level, offset in data["offsetTable"].items()}
