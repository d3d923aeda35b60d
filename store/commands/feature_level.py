"""The command that raises the replica group's feature level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dledger_wire.errors import InvalidArgumentError
from store.commands.command import Command


@dataclass(frozen=True, slots=True)
class GroupLevel:
    """The level of a replica group; ``release``: the first one that can do it; ``since_ms``: when it was raised last, 0: never."""

    level: int = 0
    release: str = ""
    since_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseFeatureLevel(Command[GroupLevel]):
    """Raise the level.  A replica that cannot do it stops."""

    KIND: ClassVar[str] = "feature_level"
    level: int
    release: str

    def check(self) -> None:
        if self.level < 1:
            raise InvalidArgumentError(f"feature level {self.level}: expected a number from 1 on")
