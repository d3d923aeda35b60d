"""How long a leader may be silent before it counts as lost: the group's election timeout now.

Owns the timeout, and what it is learnt from: how much later than promised leaders' messages came.  Each node keeps the longest delay that
it saw within ``lateness_window_ms``; voters report theirs with the answers to heartbeats.  The leader makes the timeout of the worst of
them, tells it in its heartbeats, and sends those ``BEATS`` times within it.  So all wait alike, also one that has only just started.

The timeout is ``election_timeout_ms`` at first, and never more.  While messages come in time it falls to ``least_election_timeout_ms``:
all of the way in a fifth of the window, whoever leads meanwhile.  It rises in the moment of a delay, also by what a node saw alone.

Nothing but the pace of elections rests on it (docs/adr/0031): no follower promises to wait, so a timeout that is too short costs an
election that was not needed, never a wrong answer.  A silence that outlasts even the configured timeout is no delay: no timeout that is
allowed would have waited for its end.

A leader of a release that tells no timeout sends heartbeats in the configured interval, and gets the configured timeout.
"""

from __future__ import annotations

from collections import deque

from dledger.core.state import CoreState
from dledger.core.types import NodeId

BEATS = 4  # heartbeats in a timeout
FACTOR = 3  # how much longer than the longest delay of the window the next one may be
PARTS = 30  # of the window: what was seen is forgotten part by part, what a voter reported in one part of it
FALL = 5  # so much shorter than the window is the time in which the timeout falls all of the way

_Leadership = tuple[int, NodeId]


class Lateness:
    """The longest delay within a window of time that moves on."""

    def __init__(self, window_ms: int) -> None:
        self.part_ms = max(1, window_ms // PARTS)
        self._parts: deque[tuple[int, int]] = deque()  # number of the part, longest delay: falling from the oldest to the newest

    def add(self, now_ms: int, late_ms: int) -> None:
        parts, number = self._parts, now_ms // self.part_ms
        while parts and parts[-1][1] <= late_ms:
            parts.pop()
        if not parts or parts[-1][0] != number:
            parts.append((number, late_ms))

    def longest_ms(self, now_ms: int) -> int:
        parts, oldest = self._parts, now_ms // self.part_ms - PARTS
        while parts and parts[0][0] < oldest:
            parts.popleft()
        return parts[0][1] if parts else 0


class Silence:
    """The election timeout of one core."""

    def __init__(self, core: CoreState) -> None:
        self._core = core
        self._most_ms = core.config.election_timeout_ms
        self._least_ms = min(core.config.least_election_timeout_ms, self._most_ms)
        self._fall_ms = max(1, core.config.lateness_window_ms // FALL)
        self._seen = Lateness(core.config.lateness_window_ms)
        self._reports: dict[NodeId, tuple[int, int]] = {}  # of voters, to this leader: the delay, and when it was reported
        self.told_ms = 0  # by the last leader that was heard of it, or by this one; 0: none was told
        self._is_told = False  # by the leader that is known, or was last
        self._fell_from: tuple[int, int] = (0, 0)  # the timeout that this leader lets fall, and since when
        self._leadership: _Leadership | None = None  # whose messages come, and when the last one came
        self._heard_ms = 0
        self._before: tuple[_Leadership | None, int] = (None, 0)  # the same of the leader before

    # What it is

    @property
    def timeout_ms(self) -> int:
        """How long this node waits at least."""
        return min(self._most_ms, max(self.told_ms, self._needed_ms(self.late_ms))) if self._is_told else self._most_ms

    @property
    def heartbeat_interval_ms(self) -> int:
        """How often the leader sends heartbeats, and is expected to."""
        interval_ms = self._core.config.heartbeat_interval_ms
        return interval_ms if not self._is_told or self.told_ms >= self._most_ms else min(interval_ms, self.told_ms // BEATS)

    @property
    def late_ms(self) -> int:
        """The longest delay that this node saw."""
        return self._seen.longest_ms(self._core.now_ms)

    def _needed_ms(self, late_ms: int) -> int:
        return max(self._least_ms, self._least_ms // BEATS + FACTOR * late_ms)

    # As a follower

    def heard(self, leader: NodeId) -> None:
        """A message of the leader of this term arrived."""
        now_ms, leadership = self._core.now_ms, (self._core.term, leader)
        if leadership == self._leadership:
            self._waited(now_ms - self._heard_ms)
        else:
            self._before = (self._leadership, self._heard_ms)
            self._leadership, self._is_told = leadership, False
        self._heard_ms = now_ms

    def heard_late(self, source: NodeId, term: int) -> None:
        """A message of an older term arrived: if its leader was given up, that was too early."""
        now_ms = self._core.now_ms
        if self._leadership == (term, source):
            self._waited(now_ms - self._heard_ms)
            self._heard_ms = now_ms
        elif self._before[0] == (term, source):
            self._waited(now_ms - self._before[1])
            self._before = (None, 0)

    def told(self, timeout_ms: int) -> None:
        """What the leader's heartbeat tells; 0: nothing."""
        was_ms = self.timeout_ms
        self._is_told = timeout_ms > 0
        self.told_ms = min(self._most_ms, max(self._least_ms, timeout_ms)) if timeout_ms else 0
        if self.timeout_ms != was_ms:
            self._core.elections.timer.reset()

    def _waited(self, for_ms: int) -> None:
        if for_ms < self._most_ms:
            self._saw(for_ms - self.heartbeat_interval_ms)

    def _saw(self, late_ms: int) -> None:
        if 0 < late_ms < self._most_ms:
            self._seen.add(self._core.now_ms, late_ms)

    # As the leader

    def lead(self) -> None:
        """Elected: the timeout goes on from where it was."""
        self._reports.clear()
        self._fell_from = (self.told_ms or self._most_ms, self._core.now_ms)
        self._is_told = True
        self._tell()

    def beats(self, due_ms: int) -> None:
        """Heartbeats are sent now that were due at ``due_ms``."""
        self.delayed(due_ms)
        self._tell()

    def delayed(self, due_ms: int) -> None:
        """This leader comes to its work only now; heartbeats were due at ``due_ms``."""
        self._saw(self._core.now_ms - due_ms)

    def reported(self, voter: NodeId, late_ms: int) -> None:
        self._reports[voter] = (late_ms, self._core.now_ms)

    def _tell(self) -> None:
        now_ms, (from_ms, since_ms) = self._core.now_ms, self._fell_from
        reports = [late_ms for late_ms, at_ms in self._reports.values() if late_ms < self._most_ms and now_ms - at_ms < self._seen.part_ms]
        needed_ms = min(self._most_ms, self._needed_ms(max([self.late_ms, *reports])))
        fallen_ms = from_ms - (self._most_ms - self._least_ms) * (now_ms - since_ms) // self._fall_ms
        if needed_ms >= fallen_ms:
            self._fell_from = (needed_ms, now_ms)
        self.told_ms = max(needed_ms, fallen_ms)
