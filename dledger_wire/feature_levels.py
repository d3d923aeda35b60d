"""Feature levels: what a replica group may use, since every member can.

Owns the table of levels and the range of this build.  A group has one level, as replicated state.  It begins at 0, and an operator raises
it once every member reported that its build supports the new one (docs/adr/0027-feature-levels-rise-by-command.md).  Until then a release
can be taken back; from then on builds below the level are refused, by the group and by their own check of the data folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Level:
    """What a level switches on, and the first release that can do it."""

    number: int
    release: str
    switches_on: str


LEVELS: tuple[Level, ...] = (Level(0, "0.1.0", "what every release can do"),)  # a level never changes once it is released
MIN_LEVEL: Final = LEVELS[0].number
MAX_LEVEL: Final = LEVELS[-1].number


@dataclass(frozen=True, slots=True)
class LevelRange:
    """The levels that a build can do."""

    lowest: int = 0
    highest: int = 0

    def __contains__(self, level: int) -> bool:
        return self.lowest <= level <= self.highest

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}"


THIS_BUILD: Final = LevelRange(MIN_LEVEL, MAX_LEVEL)
LEVEL_0: Final = LevelRange()  # also of a build that is not known yet


def release_of(level: int) -> str:
    """The first release that can do ``level``, as far as this build knows; empty for a level of a newer one."""
    return next((each.release for each in LEVELS if each.number == level), "")


def switched_on(above: int, upto: int) -> list[Level]:
    """The levels above ``above`` up to ``upto`` that this build knows."""
    return [each for each in LEVELS if above < each.number <= upto]


def refusal(who: str, build: LevelRange, level: int, release: str = "") -> str:
    """Why a build may not work at a level, and what to do; empty when it may.  ``release``: the first one that can do it."""
    if level in build:
        return ""
    needed = release or release_of(level)
    first = f"dledger {needed} or newer" if needed else "a newer release"
    what = f"start {first}" if level > build.highest else f"start a release that can do level {level}, and raise the level with it first"
    return f"{who} can do feature levels {build}, and the replica group is at {level}: {what}"
