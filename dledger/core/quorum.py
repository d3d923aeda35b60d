"""Majorities: pure arithmetic over voters."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.core.types import NodeId


def majority(count: int) -> int:
    """How many of ``count`` voters are a majority."""
    return count // 2 + 1


def quorum_value(values: Sequence[int]) -> int:
    """The largest value that a majority reaches; one value a voter, at least one voter."""
    return sorted(values, reverse=True)[len(values) // 2]


class VoteTally:
    """Answers of one round.  Counted per voter, the first answer wins; others than voters do not count."""

    __slots__ = ("_answers", "_granted", "_voters")

    def __init__(self, voters: Sequence[NodeId]) -> None:
        self._voters = tuple(voters)
        self._answers: dict[NodeId, bool] = {}
        self._granted = 0

    def record(self, voter: NodeId, granted: bool) -> bool:
        """Count an answer; False when it does not count."""
        if voter not in self._voters or voter in self._answers:
            return False
        self._answers[voter] = granted
        self._granted += granted
        return True

    @property
    def won(self) -> bool:
        return self._granted >= majority(len(self._voters))

    @property
    def lost(self) -> bool:
        """Whether too many refused for the round to be won any more."""
        refused = len(self._answers) - self._granted
        return len(self._voters) - refused < majority(len(self._voters))
