"""What a replica and its log count: how long disks and peers take, and what happened how often since the start.

Owns the counters.  They rise where things happen, once a write, a request or an entry; nothing acts upon them, and the core knows nothing
of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from dledger.core.causes import Cause
from dledger.core.effects import RoleChanged
from dledger.core.messages import AppendRequest
from dledger.core.types import NodeId, Role
from dledger_wire.measures import BYTES, COUNTS, SECONDS, Histogram

MAX_WAITING = 4096  # requests to one peer that are timed at once

Stopwatch = Callable[[], float]  # seconds, fine enough for a sync; see ``Environment.stopwatch``


def stands_still() -> float:
    """The stopwatch of callers that measure nothing."""
    return 0.0


class SlowestFlush:
    """How long the slowest write of the last 15 to 30 seconds took to be on the disk; one under way counts with what it has taken."""

    WINDOW_S = 15.0

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._window_s = self._largest_s = self._before_s = 0.0  # when this window began; the largest of it, and of the one before
        self._began_s: float | None = None
        self._held_s = self._held_until_s = 0.0

    def began(self) -> None:
        self._turn()
        self._began_s = self._stopwatch()

    def ended(self, *, on_loop: bool = False) -> None:
        """``on_loop``: the event loop waited for it, and heard nothing meanwhile."""
        if self._began_s is not None:
            took_s = self._turn() - self._began_s
            self._began_s, self._largest_s = None, max(self._largest_s, took_s)
            if on_loop:
                self._held_s, self._held_until_s = took_s, self._stopwatch()

    @property
    def took_s(self) -> float:
        now_s = self._turn()
        return max(self._largest_s, self._before_s, now_s - self._began_s if self._began_s is not None else 0.0)

    def held_loop_s(self, within_s: float) -> float:
        """How long the event loop waited for the last write that it waited for, if that ended in the last ``within_s``."""
        return self._held_s if self._stopwatch() - self._held_until_s <= within_s else 0.0

    def _turn(self) -> float:
        now_s = self._stopwatch()
        if now_s - self._window_s >= self.WINDOW_S:
            self._before_s = self._largest_s if now_s - self._window_s < 2 * self.WINDOW_S else 0.0
            self._window_s, self._largest_s = now_s, 0.0
        return now_s


class LogMeasures:
    """Of all logs that one process opens one after the other."""

    def __init__(self, stopwatch: Stopwatch = stands_still) -> None:
        self.stopwatch = stopwatch
        self.fsync_s = Histogram(SECONDS)  # writes that are durable when they end
        self.write_s = Histogram(SECONDS)  # writes that are not
        self.truncations = 0
        self.repairs = 0
        self.corruptions = 0


class RaftMeasures:
    """Of one replica."""

    def __init__(self, stopwatch: Stopwatch = stands_still) -> None:
        self.stopwatch = stopwatch
        self.log = LogMeasures(stopwatch)
        self.slowest_flush = SlowestFlush(stopwatch)
        self.commit_s = Histogram(SECONDS)
        self.replication_s: dict[NodeId, Histogram] = {}
        self.batch_bytes, self.batch_entries = Histogram(BYTES), Histogram(COUNTS)
        self.proposals: Counter[str] = Counter()  # by result: committed, refused, unknown
        self.elections: Counter[str] = Counter()  # by reason
        self.transfers: Counter[str] = Counter()  # by result: done, failed
        self.contradictions: Counter[str] = Counter()  # of followers, by ``ContradictionKind``
        self.prevotes = 0
        self.leader_changes = 0
        self._leader: tuple[int, NodeId] | None = None  # with its term: a node that is elected again is a new leader
        self._sent: dict[NodeId, deque[tuple[int, float]]] = {}  # last index and time of requests that are not acknowledged

    def sent(self, to: NodeId, request: AppendRequest) -> None:
        """A request with entries goes to a peer."""
        entries = request.entries
        self.batch_entries.observe(len(entries))
        self.batch_bytes.observe(sum(entry.size_bytes for entry in entries))
        last_index = request.prev.index + len(entries)
        waiting = self._sent.get(to)
        if waiting is None:
            waiting = self._sent[to] = deque(maxlen=MAX_WAITING)
        if waiting and waiting[-1][0] >= last_index:
            waiting.clear()  # what was sent before is sent again
        waiting.append((last_index, self.stopwatch()))

    def acknowledged(self, source: NodeId, match_index: int) -> None:
        """A peer has everything up to ``match_index`` on disk."""
        waiting = self._sent.get(source)
        if not waiting or waiting[0][0] > match_index:
            return
        now_s = self.stopwatch()
        took = self.replication_s.get(source)
        if took is None:
            took = self.replication_s[source] = Histogram(SECONDS)
        while waiting and waiting[0][0] <= match_index:
            took.observe(now_s - waiting.popleft()[1])

    def role_changed(self, event: RoleChanged, before: Role) -> None:
        """The role, the term or the leader changed; ``before``: the role until now."""
        leader = event.leader
        if event.role is not Role.LEADER:
            self._sent.clear()
        if event.role is not before:
            self.prevotes += event.role is Role.PRE_CANDIDATE
            # The only voter of a group leads without asking anybody.
            if event.role is Role.CANDIDATE or (event.role is Role.LEADER and before is not Role.CANDIDATE):
                self.elections[event.loss.cause.value if event.loss is not None else Cause.START.value] += 1
        if leader is not None and (event.term, leader) != self._leader:
            self.leader_changes += self._leader is not None
            self._leader = (event.term, leader)
