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

    The last two are no proof where the configuration may still be undone: what is committed was counted by the one before, whose voters
    ``former`` are, and suspects no longer refuse a candidate without it.  Then both must hold for these voters as well.
    """

    __slots__ = ("_answers", "_former", "_granted", "_voters", "suspects")

    def __init__(self, voters: Sequence[NodeId], former: Sequence[NodeId] = ()) -> None:
        self._voters = tuple(voters)
        self._former = tuple(former)
        self._answers: dict[NodeId, bool] = {}
        self._granted = 0
        self.suspects: set[NodeId] = set()

    @property
    def only_former(self) -> tuple[NodeId, ...]:
        return tuple(voter for voter in self._former if voter not in self._voters)

    def record(self, voter: NodeId, granted: bool) -> bool:
        """Count an answer; False when it does not count."""
        is_voter = voter in self._voters
        if voter in self._answers or not (is_voter or voter in self._former):
            return False
        self._answers[voter] = granted
        self._granted += granted and is_voter
        return True

    @property
    def won(self) -> bool:
        needed = majority(len(self._voters))
        if not self.suspects or self._granted < needed:
            return self._granted >= needed
        if self._granted - self._granted_by_suspects(self._voters) >= needed:
            return True
        return self._none_has_more(self._voters) and self._none_has_more(self._former)

    def _granted_by_suspects(self, voters: Sequence[NodeId]) -> int:
        return sum(self._answers.get(voter, False) for voter in voters if voter in self.suspects)

    def _none_has_more(self, voters: Sequence[NodeId]) -> bool:
        """Whether all of ``voters`` granted, or so many suspects that they may have lost what is committed."""
        return all(self._answers.get(voter, False) for voter in voters) or self._granted_by_suspects(voters) >= majority(len(voters))

    @property
    def lost(self) -> bool:
        """Whether too many refused for the round to be won any more."""
        refused = sum(not self._answers.get(voter, True) for voter in self._voters)
        return len(self._voters) - refused < majority(len(self._voters))
