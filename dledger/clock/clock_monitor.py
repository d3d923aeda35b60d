"""Clock skew within a group: which clocks are off, and which node should lead because of that.

Owns that decision for one node; ``group_time.py`` has the arithmetic.  The core only learns whether this node is to be deprioritized.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger.clock.group_time import Clocks, GroupTime
from dledger.core.config import CoreConfig
from dledger.core.messages import Heartbeat, HeartbeatResponse, Message
from dledger.core.types import Membership, NodeId, Role
from dledger.settings import PeerStatus

CLOCK_IS_OFF = "its clock is off from the group's majority"

_logger = logging.getLogger(__name__)


class NodeView(Protocol):
    """What is asked of the node."""

    role: Role
    term: int
    leader: NodeId | None
    membership: Membership


@dataclass(slots=True)
class ClockMonitor:
    """``deprioritize`` is called when that changes."""

    own: NodeId
    time: GroupTime
    config: CoreConfig
    node: NodeView
    deprioritize: Callable[[bool], object]
    deprioritized: bool = False
    skew_ms: int = 0  # how far this node's clock was off from the majority's at the last update

    @property
    def _voters(self) -> Sequence[NodeId]:
        return self.node.membership.voters

    def clocks_for(self, message: Message) -> Clocks | None:
        """The clocks that go with a message."""
        if isinstance(message, Heartbeat):
            return self.time.for_followers(self.own, self._voters)
        return self.time.for_leader() if isinstance(message, HeartbeatResponse) else None

    def received(self, source: NodeId, message: Message, clocks: Clocks) -> None:
        """A peer sent its clocks with a message that the core has handled."""
        if isinstance(message, Heartbeat):
            if self.node.leader == source:
                self.time.led(source, clocks)
        elif self.node.role is Role.LEADER and message.term == self.node.term:
            self.time.answered(source, clocks)
        self.update()

    def update(self) -> int:
        """How far this node's clock is off from the majority's; while that is too far, the node lets others lead."""
        if self.node.role is Role.LEADER:
            self.time.lead(self.own, self._voters)
        self.skew_ms = skew_ms = self.time.skew_ms(self.own, self._voters)
        deprioritized = abs(skew_ms) > self.time.max_skew_ms
        if deprioritized != self.deprioritized:
            self.deprioritized = deprioritized
            level, text = (logging.ERROR, "off from") if deprioritized else (logging.WARNING, "near")
            _logger.log(
                level,
                "%s: the clock is %s that of the group's majority: %+.1f s",
                self.own,
                text,
                skew_ms / 1000,
                extra={"event": "clock_compared"},
            )
            self.deprioritize(deprioritized)
        return skew_ms

    def off(self) -> dict[str, int]:
        """The voters whose clocks are off from the majority's too far to lead, and by how much, as this leader knows."""
        skews = {str(peer): self.time.peer_skew_ms(self.own, peer, self._voters) for peer in self._voters if peer != self.own}
        skews[self.own] = self.time.skew_ms(self.own, self._voters)
        return {peer: skew_ms for peer, skew_ms in skews.items() if abs(skew_ms) > self.time.max_skew_ms}

    def best_successor(self, peers: Sequence[PeerStatus]) -> NodeId | None:
        """The most advanced voter with a correct clock, one that is able to lead first; None leaves it to the core."""
        off = self.off()
        right = [peer for peer in peers if peer.voter and peer.connected and peer.node_id != self.own and peer.node_id not in off]
        best = max(right, key=lambda peer: (peer.is_able_to_lead, peer.match_index), default=None)
        return best.node_id if off and best is not None else None

    async def wait_for_time(self, not_before_ms: int) -> None:
        """Return when this leader knows the group's time; after an election timeout without a majority that agrees, by a guess."""
        until_ms = self.time.monotonic_ms() + self.config.election_timeout_ms
        while self.node.role is Role.LEADER:
            self.time.lead(self.own, self._voters)
            if self.time.is_known:
                return
            if self.time.monotonic_ms() >= until_ms:
                self.time.guess(self.own, self._voters, not_before_ms)
                _logger.warning(
                    "%s: no majority of clocks agrees; using the earliest clock that is not behind the log",
                    self.own,
                    extra={"event": "clocks_disagree"},
                )
                return
            await asyncio.sleep(self.config.heartbeat_interval_ms / 1000)
