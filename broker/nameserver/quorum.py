"""The channel between name servers.

Owns the interface.  ``pysyncobj_quorum.py`` implements it with PySyncObj; the simulator has a model that loses, delays, duplicates and
reorders.  Nothing here has to be reliable: the table is a merge, and every node registers with every name server that it can reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class QuorumState:
    """One look at it.  ``role`` is leader, follower or candidate, "" where there is no quorum; ``reachable`` has ids of other servers."""

    role: str = ""
    has_majority: bool = False
    applied: int = 0
    reachable: frozenset[str] = field(default_factory=frozenset)


class Quorum(Protocol):
    """Spreads bytes to all name servers."""

    async def start(self, deliver: Callable[[bytes], None]) -> None:
        """Take part.  ``deliver`` is called on the event loop with what any name server spread, this one included or not.

        AddressInUseError when the address of the quorum is taken.
        """
        ...

    async def stop(self) -> None:
        """Take part no more.  Idempotent."""
        ...

    def spread(self, data: bytes) -> None:
        """Send to all name servers, if that is possible now; never waits and never fails."""
        ...

    def state(self) -> QuorumState: ...


class NoQuorum:
    """Of a name server that is the only one.  Implements ``Quorum``."""

    async def start(self, deliver: Callable[[bytes], None]) -> None:
        """Nothing will be delivered."""

    async def stop(self) -> None:
        """Nothing runs."""

    def spread(self, data: bytes) -> None:
        """There are no other name servers."""

    def state(self) -> QuorumState:
        return QuorumState(role="leader", has_majority=True)
