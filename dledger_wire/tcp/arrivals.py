"""Counts of a process's connections: in all, from each source, and of those that are not authenticated yet.

Owns the limits on that.  Beyond the limit in all, or of its source, a connection has a place of the reserve: it must turn out to be a
member of the cluster, all others get BUSY.  One source gets at most a quarter of the reserve, and when the reserve is full the
oldest connection in it that is not known gives way to a new one, so that a flood does not keep members out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from dledger_wire.addresses import source_of
from dledger_wire.event_loop import loop_s
from dledger_wire.security.limits import Limits
from dledger_wire.tcp.rare_warning import RareWarning

RESERVE_SHARE = 4

_logger = logging.getLogger(__name__)


def _in_plaintext(text: str) -> None:
    _logger.warning("%s", text, extra={"event": "plaintext_accepted"})


def nothing() -> None:
    """There is nothing to drop (any more)."""


@dataclass(eq=False, slots=True)
class Arrival:
    """One connection, from before its first byte to its end.  ``over``: why it may only be that of a member; empty: it may be anybody's."""

    source: str
    since_s: float
    over: str = ""
    is_known: bool = False
    drop: Callable[[], object] = nothing


class Arrivals:
    """The connections of one process.  ``counts`` has what was refused, by reason."""

    def __init__(self, limits: Limits, counts: Counter[str] | None = None, clock: Callable[[], float] = loop_s) -> None:
        self.limits = limits
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.warning = RareWarning()
        self._plaintext = RareWarning(_in_plaintext)
        self._clock = clock
        self._here: dict[Arrival, None] = {}
        self._of_source: Counter[str] = Counter()
        self._unknown: dict[Arrival, None] = {}  # oldest first
        self._unknown_of: dict[str, dict[Arrival, None]] = {}  # by source
        self._unknown_over: dict[Arrival, None] = {}

    def __len__(self) -> int:
        return len(self._here)

    @property
    def unknown(self) -> int:
        """How many are not authenticated yet."""
        return len(self._unknown)

    def by_kind(self) -> dict[str, int]:
        """How many are open: ``known``, and ``unknown`` while they are not authenticated."""
        return {"known": len(self) - self.unknown, "unknown": self.unknown}

    def has_room(self) -> bool:
        """Whether one more can be accepted now: not while too many are not known and the oldest of them has not had its chance."""
        if len(self._unknown) < self.limits.unknown:
            return True
        return self._clock() - next(iter(self._unknown)).since_s >= self.limits.chance_s

    def enter(self, address: str) -> Arrival | None:
        """A connection from ``address``; None: it is to be closed.  When too many are not known the oldest of them gives way; of the same
        source if that has a good part of them, so that one source cannot push out all others."""
        source = source_of(address)
        if len(self._unknown) >= self.limits.unknown:
            same = self._unknown_of.get(source, {})
            oldest = next(iter(same if len(same) * RESERVE_SHARE >= self.limits.unknown else self._unknown))
            self._give_way(oldest, "unknown", f"{len(self._unknown)} connections are not authenticated")
        arrival = Arrival(source, self._clock(), self._over(source))
        if arrival.over and not self._reserve_has_room(arrival):
            return None
        self._here[arrival] = self._unknown[arrival] = None
        self._unknown_of.setdefault(source, {})[arrival] = None
        self._of_source[source] += 1
        if arrival.over:
            self._unknown_over[arrival] = None
        return arrival

    def _no_more_unknown(self, arrival: Arrival) -> None:
        self._unknown.pop(arrival, None)
        self._unknown_over.pop(arrival, None)
        same = self._unknown_of.get(arrival.source, {})
        same.pop(arrival, None)
        if not same:
            self._unknown_of.pop(arrival.source, None)

    def _over(self, source: str) -> str:
        limits = self.limits
        if len(self._here) >= limits.connections:
            return f"{limits.connections} connections in all"
        if self._of_source[source] >= limits.per_source:
            return f"{limits.per_source} connections from {source}"
        return ""

    def _reserve_has_room(self, arrival: Arrival) -> bool:
        share = max(1, self.limits.reserve // RESERVE_SHARE)
        same = sum(other.source == arrival.source for other in self._unknown_over)
        in_all = len(self._here) >= self.limits.connections + self.limits.reserve
        if not self.limits.reserve or same >= share or (in_all and not self._unknown_over):
            self.refused("connections", f"{arrival.source}: closed: {arrival.over}")
            return False
        if in_all or len(self._unknown_over) >= self.limits.reserve:
            self._give_way(next(iter(self._unknown_over)), "connections", arrival.over)
        return True

    def _give_way(self, arrival: Arrival, reason: str, why: str) -> None:
        drop = arrival.drop
        self.refused(reason, f"{arrival.source}: closed: {why}")
        self.left(arrival)
        drop()

    def known(self, arrival: Arrival, *, is_member: bool) -> bool:
        """The connection is authenticated now; False: it is one too many."""
        self._no_more_unknown(arrival)
        if arrival.over and not is_member:
            self.refused("connections", f"{arrival.source}: refused: {arrival.over}")
            return False
        arrival.is_known = True
        return True

    def left(self, arrival: Arrival) -> None:
        """It is gone."""
        arrival.drop = nothing  # else it would stay in memory, by what it drops, until the collector finds it
        if arrival not in self._here:
            return
        del self._here[arrival]
        self._no_more_unknown(arrival)
        self._of_source[arrival.source] -= 1
        if not self._of_source[arrival.source]:
            del self._of_source[arrival.source]

    def refused(self, reason: str, text: str) -> None:
        """Count a connection that was refused or dropped, and log it now and then."""
        self.counts[reason] += 1
        self.warning.log(text)

    def plaintext(self, peer: str) -> None:
        """A connection without TLS, where that is still taken."""
        self.counts["plaintext"] += 1
        self._plaintext.log(f"{peer}: a connection without TLS")
