"""Why a write waits on the master, as one of RocketMQ's send statuses (docs/reference/semantics.md), and which nodes it waits for."""

from __future__ import annotations

from broker.context import ServiceContext
from dledger.settings import PeerStatus, RaftStatus
from dledger_wire.status import SendStatus


def waiting_for(context: ServiceContext) -> tuple[SendStatus, str]:
    """Why the oldest uncommitted entry waits: the master's own disk, too few connected replicas, or replicas that do not confirm; and the
    nodes that are waited for, each with what is known of its disk."""
    status = context.raft.status()
    sync = context.settings.cluster.store.flushDiskType == "SYNC_FLUSH"
    if sync and status.durable.index <= status.commit_index < status.last.index:
        return SendStatus.FLUSH_DISK_TIMEOUT, f"{status.node_id}: {_own_disk(status)}"
    voters = [peer for peer in status.peers if peer.voter]
    timeout_ms = context.settings.cluster.raft.election_timeout_ms
    connected = [peer for peer in voters if peer.node_id == status.node_id or peer.answers(timeout_ms)]
    kind = SendStatus.FLUSH_SLAVE_TIMEOUT if len(connected) > len(voters) // 2 else SendStatus.SLAVE_NOT_AVAILABLE
    late = [peer for peer in voters if peer.node_id != status.node_id and peer.match_index <= status.commit_index]
    return kind, ", ".join(f"{peer.node_id}: {_peer(peer, timeout_ms)}" for peer in late)


def _own_disk(status: RaftStatus) -> str:
    return "its disk is full" if status.disk_full else f"a write takes {status.slowest_flush_s:.1f} s to be on its disk"


def _peer(peer: PeerStatus, timeout_ms: int) -> str:
    if peer.low_on_space:
        return "its disk is full or nearly so"
    return "connected, does not confirm" if peer.answers(timeout_ms) else "does not answer"
