"""Feature levels at a link: which peers may take part, by the levels that their builds can do.

Owns the check.  The level itself belongs to the state machine (``store/state/feature_level.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dledger.core.types import NodeId
from dledger.membership.handshake import Handshake
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError
from dledger_wire.feature_levels import LEVEL_0, LevelRange, refusal

TOO_OLD = "feature_level_of"  # detail of a refusal: the node whose build cannot do the group's level


class AppliedLevel(Protocol):
    """The level of the replica group, as far as the log is applied."""

    @property
    def level(self) -> int: ...
    @property
    def release(self) -> str: ...


@dataclass(frozen=True, slots=True)
class GroupLevel:
    """Implements ``AppliedLevel`` as it stands."""

    level: int = 0
    release: str = ""


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """Of one replica: what its build can do, ``version`` of that build, and where its group is."""

    build: LevelRange = LEVEL_0
    version: str = ""
    group: Callable[[], AppliedLevel] = GroupLevel

    def check(self, peer: NodeId, said: Handshake) -> None:
        """InvalidArgumentError when the peer's build cannot do what the group is at, as this replica knows."""
        now = self.group()
        member = f"{peer} ({said.version})"
        if text := refusal(member, said.levels, now.level, now.release):
            raise InvalidArgumentError(text, **{TOO_OLD: peer})

    def check_own(self, own: NodeId, said: Handshake) -> None:
        """DataDirectoryError when the peer knows its group to be at a level that this build cannot do."""
        if text := refusal(f"{own} ({self.version})", self.build, said.group_level, said.group_release):
            raise DataDirectoryError(text)


NO_LEVELS = FeatureLevels()  # of a replica whose state machine has none


def refuses_build_of(refusal: InvalidArgumentError, node: NodeId) -> bool:
    return refusal.details.get(TOO_OLD) == node
