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
    """Answers of one round.  Counted per voter, the first answer wins; others than voters do not count.

    A majority keeps two out of one term.  That the winner has all that is committed, only voters show that hold what they acknowledged:
    where ``suspects`` are among those who granted, a majority of others must be too; or *every* voter, so that none is left that could
    have more; or else a majority of suspects, which is the loss that ASYNC_FLUSH is documented to take.
    """

    __slots__ = ("_answers", "_granted", "_voters", "suspects")

    def __init__(self, voters: Sequence[NodeId]) -> None:
        self._voters = tuple(voters)
        self._answers: dict[NodeId, bool] = {}
        self._granted = 0
        self.suspects: set[NodeId] = set()

    def record(self, voter: NodeId, granted: bool) -> bool:
        """Count an answer; False when it does not count."""
        if voter not in self._voters or voter in self._answers:
            return False
        self._answers[voter] = granted
        self._granted += granted
        return True

    @property
    def won(self) -> bool:
        needed = majority(len(self._voters))
        if not self.suspects or self._granted < needed:
            return self._granted >= needed
        suspects = sum(self._answers.get(voter, False) for voter in self.suspects)
        return self._granted - suspects >= needed or suspects >= needed or self._granted == len(self._voters)

    @property
    def lost(self) -> bool:
        """Whether too many refused for the round to be won any more."""
        refused = len(self._answers) - self._granted
        return len(self._voters) - refused < majority(len(self._voters))
