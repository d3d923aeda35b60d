"""The group's time: the median of a majority of wall clocks, carried forward by this machine's monotonic clock.

Owns the evaluation of wall clocks.  Replicas send their clocks with heartbeats and responses.  The leader takes the value that a
majority of the voters agrees on (within ``max_skew_ms``) and sends it to the others.  From then on the group's time follows the
monotonic clock. It is slewed towards the majority by at most ``SLEW`` of the elapsed time, so a clock that jumps cannot make the
group's time jump, even if all clocks do.  Only a node that has just started steps its time, so that a long downtime counts.

A node whose clock is off from the majority's knows it and should not lead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dledger.core.types import NodeId
from dledger_wire.clock import Clock

SLEW = 0.01
MAX_SKEW_MS = 10_000
# Samples kept of a peer; the fastest message counts, so that a delayed one does not look like a slow clock.
KEPT = 8
FRESH_MS = 10_000
MAX_MS = 1 << 50  # some thirty thousand years: anything beyond is no time


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks that one node sends to another (see ``Clocks`` in raft.proto); 0 is not known."""

    wall_ms: int
    group_ms: int = 0
    agreed_ms: int = 0


class _Offsets:
    """How far a clock elsewhere is ahead of the own monotonic one, by its newest words."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=KEPT)
        self._last_ms = 0

    def add(self, sent_ms: int, now_ms: int) -> None:
        if 0 < sent_ms < MAX_MS:
            self._samples.append(sent_ms - now_ms)
            self._last_ms = now_ms

    def at(self, now_ms: int) -> int | None:
        """The offset; None without a recent sample."""
        return max(self._samples) if self._samples and now_ms - self._last_ms <= FRESH_MS else None


class GroupTime:
    """One node's view; itself a ``Clock`` whose wall clock shows the group's time."""

    def __init__(self, clock: Clock, max_skew_ms: int = MAX_SKEW_MS) -> None:
        self.max_skew_ms = max_skew_ms
        self._clock, self.monotonic_ms = clock, clock.monotonic_ms
        self._offset: float | None = None  # of the group's time from the own monotonic clock
        self._target: int | None = None
        self._moved_ms = 0
        self._guessed = False  # no majority has agreed on the time so far
        self._peers: dict[NodeId, _Offsets] = {}
        self._groups: dict[NodeId, _Offsets] = {}
        self._leader: NodeId | None = None
        self._led, self._agreed = _Offsets(), _Offsets()  # as sent by the leader

    # Clock

    def wall_ms(self) -> int:
        """The group's time; this machine's own clock as long as nothing of the group's is known."""
        if self._offset is None:
            return self._clock.wall_ms()
        now_ms = self._clock.monotonic_ms()
        self._move(self._offset, now_ms)
        return now_ms + int(self._offset)

    @property
    def is_known(self) -> bool:
        return self._offset is not None

    def _move(self, offset: float, now_ms: int) -> None:
        if self._target is not None and self._target != offset:
            most = max(0, now_ms - self._moved_ms) * SLEW
            self._offset = offset + min(most, max(-most, self._target - offset))
        self._moved_ms = now_ms

    def _set(self, offset: int, *, guessed: bool = False) -> None:
        self._offset, self._target, self._guessed = float(offset), offset, guessed
        self._moved_ms = self._clock.monotonic_ms()

    # What is sent

    def for_leader(self) -> Clocks:
        return Clocks(self._clock.wall_ms(), self.wall_ms() if self.is_known else 0)

    def for_followers(self, own: NodeId, voters: Sequence[NodeId]) -> Clocks:
        """See ``lead``."""
        agreed = self.lead(own, voters)
        agreed_ms = 0 if agreed is None else self._clock.monotonic_ms() + agreed
        return Clocks(self._clock.wall_ms(), self.wall_ms() if self.is_known else 0, agreed_ms)

    def answered(self, peer: NodeId, clocks: Clocks) -> None:
        """A follower sent its clocks to this leader."""
        now_ms = self._clock.monotonic_ms()
        self._peers.setdefault(peer, _Offsets()).add(clocks.wall_ms, now_ms)
        self._groups.setdefault(peer, _Offsets()).add(clocks.group_ms, now_ms)

    def led(self, leader: NodeId, clocks: Clocks) -> None:
        """The leader sent its clocks to this follower."""
        now_ms = self._clock.monotonic_ms()
        if leader != self._leader:
            self._leader, self._led, self._agreed = leader, _Offsets(), _Offsets()
            self._peers.clear()
            self._groups.clear()
        self._led.add(clocks.group_ms, now_ms)
        self._agreed.add(clocks.agreed_ms, now_ms)
        offset = self._led.at(now_ms)
        if offset is not None:
            self._set(offset)

    # The leader's judgement

    def lead(self, own: NodeId, voters: Sequence[NodeId]) -> int | None:
        """Draw the group's time towards what a majority of the voters' clocks says; returns that offset, None when no majority agrees."""
        now_ms = self._clock.monotonic_ms()
        self._leader = None
        agreed = self._majority(own, voters, now_ms)
        if not self.is_known and (sent := self._group_offsets(voters, now_ms)):
            self._set(sent[(len(sent) - 1) // 2])
        if agreed is not None:
            if not self.is_known or self._guessed:
                self._set(agreed)
            self._target = agreed
        elif self._offset is not None:
            self._target = int(self._offset)
        return agreed

    def guess(self, own: NodeId, voters: Sequence[NodeId], not_before_ms: int) -> None:
        """No majority agrees and the group must continue: use the earliest clock that is not behind the log until one does."""
        if self.lead(own, voters) is None and not self.is_known:
            now_ms = self._clock.monotonic_ms()
            clocks = [each for each in self._offsets(own, voters, now_ms).values() if now_ms + each >= not_before_ms]
            self._set(min(clocks, default=not_before_ms - now_ms), guessed=True)

    def _offsets(self, own: NodeId, voters: Sequence[NodeId], now_ms: int) -> dict[NodeId, int]:
        """By voter, those with recent samples."""
        found = {}
        for voter in voters:
            offset = self._clock.wall_ms() - now_ms if voter == own else self._offset_of(voter, now_ms)
            if offset is not None:
                found[voter] = offset
        return found

    def _offset_of(self, peer: NodeId, now_ms: int) -> int | None:
        known = self._peers.get(peer)
        return known.at(now_ms) if known is not None else None

    def _group_offsets(self, voters: Sequence[NodeId], now_ms: int) -> list[int]:
        sent = [known.at(now_ms) for voter in voters if (known := self._groups.get(voter)) is not None]
        return sorted(offset for offset in sent if offset is not None)

    def _majority(self, own: NodeId, voters: Sequence[NodeId], now_ms: int) -> int | None:
        offsets = sorted(self._offsets(own, voters, now_ms).values())
        if not offsets:
            return None
        middle = offsets[(len(offsets) - 1) // 2]  # a majority of all voters is more than half of those with samples: this is one of them
        near = sum(abs(offset - middle) <= self.max_skew_ms for offset in offsets)
        return middle if 2 * near > len(voters) else None

    # Clocks that are off

    def skew_ms(self, own: NodeId, voters: Sequence[NodeId]) -> int:
        """How far this machine's clock is ahead of the majority's; 0 when that is not known."""
        now_ms = self._clock.monotonic_ms()
        agreed = self._majority(own, voters, now_ms) if self._leader is None else self._agreed.at(now_ms)
        return 0 if agreed is None else self._clock.wall_ms() - now_ms - agreed

    def peer_skew_ms(self, own: NodeId, peer: NodeId, voters: Sequence[NodeId]) -> int:
        """The same of a peer, as this leader knows it."""
        now_ms = self._clock.monotonic_ms()
        agreed, offset = self._majority(own, voters, now_ms), self._offset_of(peer, now_ms)
        return 0 if agreed is None or offset is None else offset - agreed

    def lag_ms(self) -> int:
        """How far the clocks that count are ahead of the group's time; it follows them slowly."""
        return 0 if self._offset is None or self._target is None else self._target - int(self._offset)
