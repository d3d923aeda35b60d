"""How long a leader may be silent before it counts as lost: the group's election timeout now.

Owns the timeout, and what it is learnt from: how much later than promised leaders' messages came.  Each node keeps the longest delay that
it saw within ``lateness_window_ms``; voters report theirs with the answers to heartbeats.  The leader makes the timeout of the worst of
them and sends it in its heartbeats, ``BEATS`` of which come within the least one.  So all wait alike, also one that has only just started.

The timeout is ``election_timeout_ms`` at first, and never more.  While messages come in time it falls to ``least_election_timeout_ms``:
all of the way in a fifth of the window, whichever node leads meanwhile.  It rises in the moment of a delay, also by what a node saw alone.

A delay that the least timeout does not bridge, a *gap*, costs an election if it is the leader's and the timeout has fallen, and nothing
announces the first one.  So a gap makes the group *wary*: it keeps the configured timeout for ``wary_ms``, and when the next gap comes
after that, for twice as long as the last time (at most ``WARY_TIMES`` the first).  Answers and heartbeats carry how much of that time is
left, so what one node saw is not forgotten with its leadership.  A silence of twice the configured timeout is no delay: no node waits for
its end.

Nothing but the pace of elections rests on all this (docs/adr/0031): no follower promises to wait, so a timeout that is too short costs an
election that was not needed, never a wrong answer.

A leader that sends no timeout sends heartbeats in the configured interval, and gets the configured timeout.
"""

from __future__ import annotations

from collections import deque

from dledger.core.state import CoreState
from dledger.core.types import NodeId

BEATS = 4  # heartbeats in the least timeout
FACTOR = 3  # how much longer than the longest delay of the window the next one may be
PARTS = 30  # of the window: what was seen is forgotten part by part, what a voter reported in one part of it
FALL = 5  # so much shorter than the window is the time in which the timeout falls all of the way
WARY_TIMES = 2048  # a week, as configured

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
        self._wary_until_ms = self._own_until_ms = core.now_ms  # the second by gaps that this node saw
        self._wary_for_ms = 0  # the last time
        self._reports: dict[NodeId, tuple[int, int]] = {}  # of voters, to this leader: the delay, and when it was reported
        self.agreed_ms = 0  # of the last known leader, or of this one; 0: none was received
        self._is_known = False  # by the leader that is known, or was last
        self._fell_from: tuple[int, int] = (0, 0)  # the timeout that this leader lets fall, and since when
        self._leadership: _Leadership | None = None  # whose messages come, and when the last one came
        self._seen_ms = 0
        self._before: tuple[_Leadership | None, int] = (None, 0)  # the same of the leader before

    # What it is

    @property
    def timeout_ms(self) -> int:
        """How long this node waits at least."""
        return max(self.agreed_ms, self._needed_ms(self.late_ms)) if self._is_known else self._most_ms

    @property
    def heartbeat_interval_ms(self) -> int:
        """How often the leader sends heartbeats, and is expected to: while all wait longer too, since silence counts from the last one."""
        interval_ms = self._core.config.heartbeat_interval_ms
        return min(interval_ms, self._least_ms // BEATS) if self._is_known else interval_ms

    @property
    def late_ms(self) -> int:
        """The longest delay that this node saw."""
        return self._seen.longest_ms(self._core.now_ms)

    @property
    def wary_ms(self) -> int:
        """How much longer the group is wary, as this node knows it."""
        return max(0, self._wary_until_ms - self._core.now_ms)

    @property
    def own_wary_ms(self) -> int:
        """By what this node saw itself.  Voters report that: what they receive would grow by the time under way each time."""
        return max(0, self._own_until_ms - self._core.now_ms)

    def _needed_ms(self, late_ms: int) -> int:
        if self.wary_ms:
            return self._most_ms
        return min(self._most_ms, max(self._least_ms, self._least_ms // BEATS + FACTOR * late_ms))

    # As a follower

    def leader_seen(self, leader: NodeId) -> None:
        """A message of the leader of this term arrived."""
        now_ms, leadership = self._core.now_ms, (self._core.term, leader)
        if leadership == self._leadership:
            self._waited(self._seen_ms)
        else:
            self._before = (self._leadership, self._seen_ms)
            self._leadership, self._is_known = leadership, False
        self._seen_ms = now_ms

    def on_late_message(self, source: NodeId, term: int) -> None:
        """A message of an older term arrived: if its leader was given up, that was too early."""
        now_ms = self._core.now_ms
        if self._leadership == (term, source):
            self._waited(self._seen_ms)
            self._seen_ms = now_ms
        elif self._before[0] == (term, source):
            self._waited(self._before[1])
            self._before = (None, 0)

    def on_timeout(self, timeout_ms: int, wary_ms: int) -> None:
        """The timeout in the leader's heartbeat; none: the configured one."""
        was_ms = self.timeout_ms
        self._be_wary(wary_ms)
        self._is_known = timeout_ms > 0
        self.agreed_ms = min(self._most_ms, max(self._least_ms, timeout_ms)) if timeout_ms else 0
        if self.timeout_ms != was_ms:
            self._core.elections.timer.reset()

    # What is seen

    def _waited(self, since_ms: int) -> None:
        """A leader's message came; ``since_ms``: when the one before it did."""
        self.delayed(since_ms + self.heartbeat_interval_ms)

    def delayed(self, due_ms: int) -> None:
        """What was due at ``due_ms`` came only now: a leader's message, or this leader to its work."""
        late_ms = self._core.now_ms - due_ms
        if not 0 < late_ms < 2 * self._most_ms:
            return
        self._seen.add(self._core.now_ms, late_ms)
        if late_ms >= self._least_ms - self._least_ms // BEATS:
            again = self._wary_for_ms if self.wary_ms else min(2 * self._wary_for_ms, WARY_TIMES * self._core.config.wary_ms)
            self._be_wary(max(self._core.config.wary_ms, again))
            self._own_until_ms = self._wary_until_ms

    def _be_wary(self, for_ms: int) -> None:
        self._wary_until_ms = max(self._wary_until_ms, self._core.now_ms + for_ms)
        self._wary_for_ms = max(self._wary_for_ms, for_ms)

    # As the leader

    def lead(self) -> None:
        """Elected: the timeout goes on from where it was."""
        self._reports.clear()
        self._fell_from = (self.agreed_ms or self._most_ms, self._core.now_ms)
        self._is_known = True
        self._announce()

    def beats(self, due_ms: int) -> None:
        """Heartbeats are sent now that were due at ``due_ms``."""
        self.delayed(due_ms)
        self._announce()

    def reported(self, voter: NodeId, late_ms: int, wary_ms: int) -> None:
        self._reports[voter] = (late_ms, self._core.now_ms)
        self._be_wary(wary_ms)

    def _announce(self) -> None:
        now_ms, (from_ms, since_ms) = self._core.now_ms, self._fell_from
        reports = [late_ms for late_ms, at_ms in self._reports.values() if now_ms - at_ms < self._seen.part_ms]
        needed_ms = self._needed_ms(max([self.late_ms, *reports]))
        fallen_ms = from_ms - (self._most_ms - self._least_ms) * (now_ms - since_ms) // self._fall_ms
        if needed_ms >= fallen_ms:
            self._fell_from = (needed_ms, now_ms)
        self.agreed_ms = max(needed_ms, fallen_ms)
