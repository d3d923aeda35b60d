"""What name servers tell each other, as a model: messages that are lost, come late, twice or in any order, and not at all over a cut link.

Owns the way of every message.  The real quorum (a replicated log) promises more; what name servers do with these messages must not need
it, so the model keeps none of those promises.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from broker.nameserver.quorum import QuorumState
from tests.sim.loop import Process, SimLoop
from tests.sim.network import SimNetwork


@dataclass(slots=True)
class QuorumFaults:
    """Chances of each message, and times in seconds."""

    lost: float = 0.05
    doubled: float = 0.05
    late: float = 0.1
    late_s: float = 3.0
    delay_s: float = 0.005


class SimQuorum:
    """The end of one process (``broker.nameserver.quorum.Quorum``)."""

    def __init__(self, board: QuorumBoard, name_id: str, process: Process) -> None:
        self.name_id, self.process = name_id, process
        self._board = board
        self._deliver: Callable[[bytes], None] | None = None
        self.applied = 0

    async def start(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver
        self._board.ends[self.name_id] = self

    async def stop(self) -> None:
        self._deliver = None
        if self._board.ends.get(self.name_id) is self:
            del self._board.ends[self.name_id]

    def spread(self, data: bytes) -> None:
        self._board.send(self, data)

    def arrive(self, data: bytes) -> None:
        if self._deliver is not None:
            self.applied += 1
            self._deliver(data)

    def state(self) -> QuorumState:
        return self._board.state(self)


class QuorumBoard:
    """All ends.  ``places``: name server -> host of its machine."""

    def __init__(self, loop: SimLoop, net: SimNetwork, draw: random.Random, places: dict[str, str]) -> None:
        self._loop, self._net, self._draw, self._places = loop, net, draw, places
        self.faults = QuorumFaults()
        self.ends: dict[str, SimQuorum] = {}

    def send(self, source: SimQuorum, data: bytes) -> None:
        for target in self._places:
            if target != source.name_id:
                self._send(source.name_id, target, data)

    def _send(self, source: str, target: str, data: bytes) -> None:
        faults, drawn = self.faults, self._draw.random()
        if drawn < faults.lost:
            return
        for _ in range(2 if drawn < faults.lost + faults.doubled else 1):
            wait_s = faults.delay_s * self._draw.random()
            if self._draw.random() < faults.late:
                wait_s += faults.late_s * self._draw.random()
            self._loop.call_for(self._loop.world, self._loop.now_s + wait_s, self._carry, source, target, data)

    def _carry(self, source: str, target: str, data: bytes) -> None:
        """Over the cable as it is by now; over a cut one it may still come later."""
        end = self.ends.get(target)
        if not self._connected(source, target):
            if self._draw.random() < 0.5:
                again_s = self._loop.now_s + self.faults.late_s * self._draw.random()
                self._loop.call_for(self._loop.world, again_s, self._carry, source, target, data)
        elif end is not None and end.process.alive:
            self._net.trace.carry(self._places[source], self._places[target], data)
            self._loop.call_for(end.process, self._loop.now_s, end.arrive, data)

    def _connected(self, one: str, other: str) -> bool:
        return not self._net.link(self._places[one], self._places[other]).cut

    def state(self, asking: SimQuorum) -> QuorumState:
        reachable = frozenset(
            name
            for name, end in self.ends.items()
            if name != asking.name_id
            and end.process.alive
            and self._connected(asking.name_id, name)
            and self._connected(name, asking.name_id)
        )
        has_majority = 2 * (len(reachable) + 1) > len(self._places)
        role = "" if not has_majority else "leader" if asking.name_id < min(reachable, default="~") else "follower"
        return QuorumState(role, has_majority, asking.applied, reachable)
