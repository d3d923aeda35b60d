"""Which replica a consumer should read from: a consumer that lags far behind is sent to a follower, one that caught up back to the master.

Owns the rule, which is RocketMQ's (``accessMessageInMemoryMaxRatio``, ``slaveReadEnable``): messages older than that share of the machine's
memory are read from disk, and the master's disk is for writing.
"""

from __future__ import annotations

from broker.context import ServiceContext
from dledger.core.types import Role
from store.queues.read import Chunk

RETURN_RATIO = 0.5  # of the limit, below which a reader is sent back to the master


class ReadAdvice:
    """``memory_bytes``: of the machine; 0, not known, gives no advice."""

    def __init__(self, context: ServiceContext, memory_bytes: int) -> None:
        broker = context.settings.cluster.broker
        self._context = context
        self._limit_bytes = memory_bytes * broker.accessMessageInMemoryMaxRatio // 100 if broker.slaveReadEnable else 0

    def for_chunk(self, queue_id: int, chunk: Chunk) -> str:
        """The node to read on from; empty: from wherever this was read."""
        if not self._limit_bytes or not chunk.count:
            return ""
        raft = self._context.raft
        lag_bytes = raft.log.end_pos - chunk.first_pos
        if raft.role is not Role.LEADER:
            return raft.leader or "" if lag_bytes < self._limit_bytes * RETURN_RATIO else ""
        if lag_bytes <= self._limit_bytes:
            return ""
        status = raft.status()
        able = [
            peer.node_id
            for peer in status.peers
            if peer.node_id != status.node_id and peer.connected and peer.match_index >= status.first_index and peer.state == "replicate"
        ]
        return able[queue_id % len(able)] if able else ""
