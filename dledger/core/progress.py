"""A leader's view of one peer, and the window of requests in flight to it.

    PROBE      the peer's log is not known to match: one request at a time, the next after its response or a heartbeat's
    REPLICATE  it matches: requests are pipelined, as far as the window allows
    SNAPSHOT   it needs entries that this log no longer has: it was offered a snapshot, nothing is sent

Owns the arithmetic; sends nothing.  Invariants: 0 <= match < next; in-flight requests rise; both windows are kept.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from dledger.core.types import NodeId
from dledger_wire.check import require


class ProgressState(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "copy"  # the word that status reports


class Progress:
    """Replication to one peer."""

    __slots__ = (
        "added_at",
        "answers",
        "commit_sent",
        "contact_ms",
        "copied_bytes",
        "denied",
        "has_answered",
        "heartbeat_match",
        "inflight",
        "inflight_bytes",
        "keeps_from",
        "low_on_space",
        "match",
        "next",
        "node",
        "notice_open",
        "paused",
        "probe_due",
        "round",
        "seekers",
        "state",
        "store",
        "sync_ms",
        "yields",
    )

    def __init__(self, node: NodeId, next_index: int, now_ms: int) -> None:
        self.node = node
        self.state = ProgressState.PROBE
        self.match = 0
        self.next = next_index
        self.added_at = next_index - 1  # the entry that the first request to it follows
        self.paused = False  # PROBE: a request is out
        self.inflight: deque[tuple[int, int]] = deque()  # REPLICATE: (last index, bytes) of each request
        self.inflight_bytes = 0
        self.contact_ms = now_ms  # when it last answered, or when this began
        self.has_answered = False  # it has answered at all
        self.answers = False  # it has answered since, and its connection did not break afterwards
        self.commit_sent = 0
        self.notice_open = False  # a heartbeat is out and not answered
        self.heartbeat_match = -1  # ``match`` at the last heartbeat
        self.probe_due = False  # the response to the last heartbeat lets one request out
        self.round = 0
        self.low_on_space = False  # by its last answer: it would refuse new messages if it led
        self.yields = ""  # by its last answer: why it leads only as a last resort
        self.keeps_from = 0  # by its last answer: the first entry of its log; 0: it may delete entries of any age
        self.seekers: tuple[NodeId, ...] = ()  # by its last answer: voters without a leader that it hears
        self.sync_ms = 0  # by its last answer: how long a write took lately to be on its disk
        self.copied_bytes: int | None = None  # by its last answer: what it has received of snapshots
        self.denied = False  # it has denied what it had acknowledged, and was asked once more
        self.store = ""  # the data folder it answers from; empty: it has not responded, or sends none

    def answered(self, now_ms: int) -> None:
        self.contact_ms = now_ms
        self.has_answered = self.answers = True

    @property
    def is_able_to_lead(self) -> bool:
        """Whether it follows, has room for new messages, and nothing is said against it."""
        return self.state is ProgressState.REPLICATE and not self.low_on_space and not self.yields

    def room(self, max_messages: int, max_bytes: int) -> int:
        """How many bytes the window still takes."""
        if len(self.inflight) >= max_messages:
            return 0
        return max_bytes - self.inflight_bytes

    def sent(self, last_index: int, size_bytes: int) -> None:
        """A request with entries up to ``last_index`` went out without waiting."""
        require(self.state is ProgressState.REPLICATE and last_index >= self.next, "%s: sent up to %d", self.node, last_index)
        self.inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes
        self.next = last_index + 1

    def acked(self, index: int) -> bool:
        """The peer holds our entry ``index`` on stable storage; whether ``match`` rose.  Never lowers anything."""
        news = index > self.match
        self.denied = False
        if news:
            self.match = index
        if self.state is ProgressState.REPLICATE:
            inflight = self.inflight
            while inflight and inflight[0][0] <= index:
                self.inflight_bytes -= inflight.popleft()[1]
            if index >= self.next:
                self.next = index + 1
        elif self.state is ProgressState.PROBE:
            # A late acknowledgement below the entry being probed says nothing about it.
            if index >= self.next - 1:
                self.become_replicate()
        elif news:
            self.become_replicate()
        if self.next <= self.match:
            self.next = self.match + 1
        return news

    def rejected(self, rejected: int, hint: int, *, loses_unsynced: bool = False) -> bool:
        """The peer does not hold entry ``rejected``; it may match up to ``hint``.  False when the answer is a late one.

        A denial of what it had acknowledged may be late, too: it was on its way before the acknowledgement.  So the peer is asked once
        more, and only a second denial takes ``match`` back.  Under ASYNC_FLUSH (``loses_unsynced``) the first one does.
        """
        if self.state is ProgressState.REPLICATE:
            if not self.match < rejected < self.next:
                return False
            self.become_probe()
            return True
        if self.state is not ProgressState.PROBE or rejected != self.next - 1:
            return False
        self.paused = False
        following = max(min(rejected, hint + 1), 1)
        if following <= self.match and not (self.denied or loses_unsynced):
            self.denied, self.next = True, self.match + 1
            return True
        self.denied, self.next = False, following
        self.match = min(self.match, following - 1)
        return True

    def become_probe(self) -> None:
        """Of a peer that has acknowledged nothing yet, the next guess stays: from entry 1 on, a trimmed log has nothing to send."""
        self.state, self.denied = ProgressState.PROBE, False
        if self.match:
            self.next = self.match + 1
        self.paused = False
        self._empty_window()

    def forget(self, next_index: int) -> None:
        """Nothing is known of its log any more."""
        self.match = 0
        self.become_probe()
        self.next = next_index

    def become_replicate(self) -> None:
        self.state = ProgressState.REPLICATE
        self.next = self.match + 1
        self.paused = False
        self._empty_window()

    def become_snapshot(self) -> None:
        self.state = ProgressState.SNAPSHOT
        self._empty_window()

    @property
    def idle(self) -> bool:
        """Nothing is under way to the peer."""
        return self.state is ProgressState.REPLICATE and self.next == self.match + 1

    def check(self, last_index: int, max_messages: int) -> None:
        """Raise unless the invariants hold."""
        require(0 <= self.match < self.next <= last_index + 1, "%s: match %d next %d of %d", self.node, self.match, self.next, last_index)
        require(len(self.inflight) <= max_messages, "%s: %d in flight", self.node, len(self.inflight))
        require(self.inflight_bytes == sum(size for _last, size in self.inflight), "%s: window miscounted", self.node)
        require(not self.inflight or self.inflight[0][0] > self.match, "%s: acknowledged and in flight", self.node)

    def _empty_window(self) -> None:
        self.inflight.clear()
        self.inflight_bytes = 0
