"""When a node that does not lead stands for election, or asks for votes once more.

Owns the deadline, and every draw of a timeout.  Three kinds of waiting:

*While the leader sends*: an election timeout, redrawn at each of its messages, biased by priority.  A deprioritized node waits an
election timeout longer than every other node, always.
*After its stream broke*: until the time slot of this node, by rank, so that collisions are rare.
*Quick rounds*: for ``QUICK_TIMEOUTS`` election timeouts after a leader was lost, or fell silent, a pre-vote is repeated after a short time.
Other voters may notice the failure a little later, or be started again just then, and a pre-vote costs one message and disturbs no node.
The first ``QUICK_ELECTIONS`` elections wait for votes as short; then a whole timeout is drawn, which every network that works is faster
than.

*Slow disks* (``sync_times.py``): a vote is a write of the candidate's, then one of the voter's, which may have another one before it.
A node whose own vote is not on its disk yet waits for that, whatever the time; then a candidate, a voter and a node that lets another one
pass wait for ``WRITES`` on the slowest disk known, a candidate for ``LONGEST_WAIT`` times as long once elections failed.  Where all
disks are fast these waits are nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.core.state import CoreState
from dledger.core.types import NodeId

QUICK_TIMEOUTS = 5
QUICK_ELECTIONS = 2
WRITES = 2  # that an answer to a candidate may wait for
LONGEST_WAIT = 2
LONGEST_DRAW = 3  # election timeouts at most between two pre-votes of a node


class ElectionTimer:
    """The timer of one core; it is not used while the core leads."""

    def __init__(self, core: CoreState) -> None:
        self._core = core
        self._quick_until_ms = 0
        self._elections = 0  # since a leader was known
        self._stood_ms = 0
        self._yielded: set[NodeId] = set()  # candidates, since a leader was known
        self.deprioritized = False
        self.deadline_ms = core.now_ms + self._draw_ms()

    @property
    def is_due(self) -> bool:
        return self._core.now_ms >= self.deadline_ms

    def reset(self) -> None:
        """A whole timeout from now on."""
        self.deadline_ms = self._core.now_ms + self._draw_ms()

    def deprioritize(self, *, on: bool) -> None:
        if on != self.deprioritized:
            self.deprioritized = on
            self.reset()

    def _draw_ms(self) -> int:
        base, priority = self._core.silence.timeout_ms, self._core.config.priority
        low = base if priority >= 0 else base + base // 2
        high = 2 * base if priority <= 0 else base + base // 2
        if self.deprioritized:
            low, high = 2 * base, LONGEST_DRAW * base
        return self._core.random.randrange(low, high)

    # Leaders

    def leader_known(self) -> None:
        """There is a leader: what was tried without one counts no more."""
        self._quick_until_ms = self._elections = 0
        self._yielded.clear()

    def begin_quick_rounds(self) -> None:
        """The leader is gone, or silent."""
        if not self._quick_until_ms:
            self._quick_until_ms = self._core.now_ms + QUICK_TIMEOUTS * self._core.config.election_timeout_ms

    def wait_for_slot(self, others: Sequence[NodeId]) -> None:
        """The leader's stream broke; ``others`` are the voters that may take over, in the same order for all."""
        core = self._core
        slot_ms = max(core.config.heartbeat_interval_ms // 5, 2)
        if core.config.priority > 0:
            slot = 0
        else:
            slot = 1 + (others.index(core.node_id) if core.node_id in others else len(others))
            slot += len(others) if core.config.priority < 0 else 0
        delay_ms = slot * slot_ms + core.random.randrange(0, slot_ms // 2 + 1)
        self.deadline_ms = min(self.deadline_ms, core.now_ms + delay_ms)

    # Rounds

    @property
    def _is_quick(self) -> bool:
        return self._core.now_ms < self._quick_until_ms and not self.deprioritized

    def next_round(self) -> None:
        """A pre-vote began, or a round was lost: wait before the next pre-vote."""
        core = self._core
        beat_ms = core.config.heartbeat_interval_ms
        wait_ms = beat_ms // 2 + core.random.randrange(0, beat_ms) if self._is_quick else self._draw_ms()
        self.deadline_ms = core.now_ms + wait_ms

    def stand(self) -> None:
        """This node stands for election."""
        self._elections += 1
        self._stood_ms = self._core.now_ms
        self.reset()

    @property
    def _disks_ms(self) -> int:
        """What answers may wait for disks."""
        return WRITES * self._core.syncs.slow_ms

    def wait_for_disk(self) -> None:
        """This node's own vote is not on its disk yet."""
        self.deadline_ms = self._core.now_ms + self._core.config.heartbeat_interval_ms

    def voted(self) -> None:
        """This node voted for another one: it is given time to be elected."""
        self.reset()
        self.deadline_ms += self._disks_ms

    def own_vote_stored(self) -> None:
        """The vote that this node gave itself is on disk."""
        core = self._core
        failed = self._elections > QUICK_ELECTIONS
        disks_ms = self._disks_ms * (LONGEST_WAIT if failed else 1)
        if self._is_quick and not failed:
            beat_ms, stored_ms = core.config.heartbeat_interval_ms, core.now_ms - self._stood_ms
            wait_ms = max(2 * stored_ms, disks_ms) + 3 * beat_ms // 2 + core.random.randrange(0, 3 * beat_ms // 2)
            self.deadline_ms = core.now_ms + wait_ms
        elif disks_ms:
            self.reset()
            self.deadline_ms += disks_ms

    def may_yield(self, source: NodeId) -> bool:
        """Whether to let ``source``, which asks for votes, go first: once each, since one that hears no answers would ask for ever."""
        first = source not in self._yielded
        self._yielded.add(source)
        return first

    def let_pass(self) -> None:
        """Another node stands for election: wait a little at least."""
        core = self._core
        beat_ms = core.config.heartbeat_interval_ms
        wait_ms = self._disks_ms + beat_ms + core.random.randrange(0, beat_ms)
        self.deadline_ms = max(self.deadline_ms, core.now_ms + wait_ms)
