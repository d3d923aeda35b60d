"""Who leads a group, for one that keeps a stream to its leader.

Owns the memory of the leader that failed: it is not taken again unless it says itself that it leads, or does so in a newer term.
"""

from __future__ import annotations

from dledger_client.cluster.metadata import Router


class LeaderTracker:
    """Asked for before each stream; told when one of them works."""

    def __init__(self, router: Router, group: str) -> None:
        self._router, self._group = router, group
        self._tried_address, self._tried_term = "", 0

    @property
    def works(self) -> bool:
        """Whether the last leader told has answered since."""
        return not self._tried_address

    async def address(self) -> str:
        """The leader's address now.  NotLeaderError when nobody is known to lead."""
        view = await self._router.leader(self._group, self._tried_address, self._tried_term)
        self._tried_address, self._tried_term = view.leader_address, view.term
        return view.leader_address

    def answered(self) -> None:
        """The leader told last does its work: should it fail later, it may be tried again."""
        self._tried_address = ""
