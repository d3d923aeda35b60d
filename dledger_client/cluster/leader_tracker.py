"""Leader tracking for long-lived streams.

Owns the memory of the leader that failed: it is not tried again unless it claims to lead itself, or leads in a newer term.
"""

from __future__ import annotations

from dledger_client.cluster.router import Router


class LeaderTracker:
    """The leader of one replica group, as one stream sees it."""

    def __init__(self, router: Router, replica_group: str) -> None:
        self._router, self._replica_group = router, replica_group
        self._address = ""  # located last
        self._failed_address, self._failed_term = "", 0  # not tried again

    async def address(self) -> str:
        """The leader's address now.  NotLeaderError when no node is known to lead."""
        self._router.watch_group(self._replica_group)
        view = await self._router.leader(self._replica_group, self._failed_address, self._failed_term)
        self._address = self._failed_address = view.leader_address
        self._failed_term = view.term
        return self._address

    @property
    def term(self) -> int:
        """In which the leader located last was elected; 0: none was located."""
        return self._failed_term

    def confirm(self) -> None:
        """The leader located last does its work: if it fails later, it may be tried again."""
        self._failed_address = ""

    def suspect(self) -> None:
        """The leader located last failed, even if it worked before."""
        self._failed_address = self._address
