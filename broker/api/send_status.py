"""Why a write waits on the master, as one of RocketMQ's send statuses (docs/reference/semantics.md)."""

from __future__ import annotations

from broker.context import ServiceContext
from dledger_wire.status import SendStatus


def waiting_for(context: ServiceContext) -> SendStatus:
    """Why the oldest uncommitted entry waits: the master's own disk, too few connected replicas, or replicas that do not confirm."""
    status = context.raft.status()
    sync = context.settings.cluster.store.flushDiskType == "SYNC_FLUSH"
    if sync and status.durable.index <= status.commit_index < status.last.index:
        return SendStatus.FLUSH_DISK_TIMEOUT
    voters = [peer for peer in status.peers if peer.voter]
    timeout_ms = context.settings.cluster.raft.election_timeout_ms
    connected = [peer for peer in voters if peer.node_id == status.node_id or peer.answers(timeout_ms)]
    return SendStatus.FLUSH_SLAVE_TIMEOUT if len(connected) > len(voters) // 2 else SendStatus.SLAVE_NOT_AVAILABLE
