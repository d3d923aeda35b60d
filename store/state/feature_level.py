"""The feature level of the replica group as replicated state.  It only rises.

A replica whose build cannot do a level stops where it would have to go on with it: at the command, or at the snapshot that holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from dledger_wire.errors import DataDirectoryError, InvalidArgumentError
from dledger_wire.feature_levels import THIS_BUILD, LevelRange, refusal
from store.commands.command import JsonObject
from store.commands.feature_level import GroupLevel, RaiseFeatureLevel
from store.state.state_machine import CommandContext, CommandHandlers


class FeatureLevelState:
    """Implements ``StateMachineSection``.  ``build``: the levels that this node can do."""

    file_name = "featureLevel.json"

    def __init__(self, build: LevelRange = THIS_BUILD) -> None:
        self.build = build
        self.now = GroupLevel()
        self.changed: Callable[[], object] = lambda: None  # called after every change, a snapshot included

    @property
    def level(self) -> int:
        return self.now.level

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(RaiseFeatureLevel, self._raise)

    def require_known(self, wanted: GroupLevel) -> None:
        """DataDirectoryError unless this build can do the level."""
        if text := refusal("this build", self.build, wanted.level, wanted.release):
            raise DataDirectoryError(text, feature_level=str(wanted.level))

    def _raise(self, command: RaiseFeatureLevel, context: CommandContext) -> GroupLevel:
        if command.level <= self.level:
            raise InvalidArgumentError(f"the replica group is at feature level {self.level}; expected a higher one than {command.level}")
        self.now = GroupLevel(command.level, command.release, context.at_ms)
        self.changed()
        return self.now

    # Snapshot

    def dump(self) -> JsonObject:
        return asdict(self.now)

    def load(self, data: JsonObject) -> None:
        found = GroupLevel(level=int(data["level"]), release=str(data["release"]), since_ms=int(data["since_ms"]))
        self.require_known(found)
        self.now = found
        self.changed()
