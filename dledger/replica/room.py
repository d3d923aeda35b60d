"""How much a leader takes on at a time, and whose request is next once there is room again.

Owns two things.

*The window*: bytes proposed and not committed.  More than the disks and followers need to stay busy only makes everyone wait, so it
follows what they do, as BBR does for a network path (Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016): ``GAIN`` times
the product of the highest rate of commits seen and the shortest time that a commit took, beyond what the least window takes.  The gain
is well above 2 since a flush carries only what came during the flush before.  That shortest time is learnt with little under way, so now
and then the window is small for a moment.

*The order*: start-time fair queueing (Goyal, Vin, Cheng, 1996).  A flow, one stream of a client, pays for its bytes with virtual time;
the flow that has used the least is next.  So a flow that sends little goes ahead of those that always wait.  What flows of one tenant
pay is multiplied by how many of them wait: a tenant gains nothing by more connections.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

GAIN = 4
LEAST_SHARE = 3  # eighths of the least window that do not count: below one half, or a window that is too small would never grow
LEAST_BYTES = 4 << 20  # less costs throughput where a commit takes a few milliseconds, more makes small senders wait
RESERVE_BYTES = 256 << 10  # beyond the window, for a flow that has not had its share
TURN_BYTES = 64 << 10  # virtual time that is granted at once: less costs a turn of the event loop for each few small requests
SLOT_S = 0.1  # of time, at least, in which the rate is measured
SLOTS = 32
RECENT_S = 0.1
PROBE_EVERY_S = 10.0
PROBE_SHARE = 50  # probes take so small a part of the time when commits take long


class Window:
    """Bytes that may be under way, at most ``most_bytes``, and how long what is proposed now will take.

    ``took_s``: of the last commit.  ``waits_since_s``: when the oldest entry that is not committed was proposed; 0: there is none.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._least_bytes = min(LEAST_BYTES, most_bytes)
        self.size_bytes = self._least_bytes
        self.took_s = self.waits_since_s = self._committed_s = 0.0
        self._shortest_s = 0.0  # since the last probe; 0: not known
        self._slot_since_s = 0.0
        self._slot_bytes = 0
        self._rates: deque[float] = deque(maxlen=SLOTS)
        self._next_probe_s = 0.0
        self._probe_since_s: float | None = None

    def expected_s(self, now_s: float) -> float:
        """How long a commit takes now: as long as the last one, or longer when the oldest that is under way already takes longer."""
        return max(self.took_s, now_s - self.waits_since_s) if self.waits_since_s else 0.0

    def recent_s(self, now_s: float) -> float:
        """How long the last commit took; 0 when it was some time ago."""
        return self.took_s if now_s - self._committed_s < RECENT_S else 0.0

    def committed(self, now_s: float, took_s: float, size_bytes: int) -> None:
        """A round of ``size_bytes`` was committed ``took_s`` after it was proposed."""
        self.took_s, self._committed_s = took_s, now_s
        self._slot_bytes += size_bytes
        slot_s = now_s - self._slot_since_s
        if slot_s >= max(SLOT_S, 2 * took_s):
            self._rates.append(self._slot_bytes / slot_s)
            self._slot_since_s, self._slot_bytes = now_s, 0
        if self._probe_since_s is not None and now_s - took_s >= self._probe_since_s:
            self._probe_since_s, self._shortest_s = None, took_s
            self._next_probe_s = now_s + max(PROBE_EVERY_S, PROBE_SHARE * took_s)
        elif not self._shortest_s or took_s < self._shortest_s:
            self._shortest_s = took_s
        elif now_s >= self._next_probe_s and self._probe_since_s is None:
            self._probe_since_s = now_s
        least_bytes = self._least_bytes
        fitting = int(max(self._rates, default=0.0) * self._shortest_s) if self._probe_since_s is None else 0
        self.size_bytes = min(self._most_bytes, least_bytes + GAIN * max(0, fitting - LEAST_SHARE * least_bytes // 8))


@dataclass(slots=True, eq=False)
class Flow:
    """The requests of one stream.  ``finish``: the virtual time up to which it has paid."""

    tenant: str
    finish: float = 0.0


class Room:
    """Streams that wait for room.  ``is_open``: whether more may be proposed now beside so many bytes.  ``reserve_bytes``: how far small
    requests may pass that."""

    def __init__(self, is_open: Callable[[int], bool], reserve_bytes: int = RESERVE_BYTES) -> None:
        self._is_open, self._reserve_bytes = is_open, reserve_bytes
        self._time = 0.0  # virtual: where the flow served last began to pay, of those granted together the first
        self._turn_end = math.inf  # virtual: what begins to pay later goes on after those that were granted room
        self.waiting: list[tuple[float, int, int, Flow, asyncio.Future[None]]] = []  # a heap, by start
        self._tenants: Counter[str] = Counter()  # flows that wait
        self._number = 0
        self.granted_bytes = 0  # to flows that have not taken it up yet

    def enters(self, flow: Flow, size_bytes: int) -> bool:
        """Whether ``flow`` may propose ``size_bytes`` at once; it has paid for them then."""
        start = max(self._time, flow.finish)
        if self.waiting or (self.granted_bytes and start >= self._turn_end) or not self._is_open(self.granted_bytes):
            return False
        if not self.granted_bytes:
            self._time = start
        flow.finish = start + size_bytes
        return True

    async def wait(self, flow: Flow, size_bytes: int) -> None:
        """Return when it is the turn of ``flow``, which is to propose ``size_bytes`` before it awaits anything."""
        if self.enters(flow, size_bytes):
            return
        is_ahead = flow.finish <= self._time and size_bytes <= self._reserve_bytes // 8
        if is_ahead and self._is_open(self.granted_bytes - self._reserve_bytes):
            flow.finish = self._time + size_bytes
            return
        tenant = flow.tenant
        self._tenants[tenant] += 1
        start = max(self._time, flow.finish)
        flow.finish = start + size_bytes * self._tenants[tenant]
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self.waiting, (start, self._number, size_bytes, flow, turn))
        try:
            await turn
        finally:
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]
            if turn.done() and not turn.cancelled():
                self.granted_bytes -= size_bytes
                # To the next one: this one's request may be refused, and its stream may have ended.
                asyncio.get_running_loop().call_soon(self.grant)

    def grant(self) -> None:
        """Let those whose turn it is go on.

        Those that begin to pay ``TURN_BYTES`` later than where one of them has paid stay: a stream waits with one request at a time, and
        the next one, which it brings as it goes on, is due before theirs.  Then ``wait`` grants again.
        """
        waiting = self.waiting
        if not self.granted_bytes:
            self._turn_end = math.inf
        while waiting and waiting[0][0] < self._turn_end and self._is_open(self.granted_bytes):
            start, _number, size_bytes, flow, turn = heapq.heappop(waiting)
            if not turn.done():
                if not self.granted_bytes:
                    self._time = max(self._time, start)
                self.granted_bytes += size_bytes
                self._turn_end = min(self._turn_end, flow.finish + TURN_BYTES)
                turn.set_result(None)
