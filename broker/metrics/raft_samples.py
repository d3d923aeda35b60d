"""Samples of a replica and its log, from its status and from what it counted.  Owns nothing."""

from __future__ import annotations

from broker.metrics.samples import Samples
from broker.node import BrokerNode
from dledger.core.effects import ContradictionKind
from dledger.core.progress import ProgressState
from dledger.core.types import Role
from dledger.settings import RaftStatus

RESULTS = ("committed", "refused", "unknown")
TRANSFERS = ("done", "failed")


def add_unopened(samples: Samples) -> None:
    """Of a node that recovers its log: it takes part in nothing, and says so, since what has no series raises no alert."""
    for name in ("raft_is_leader", "raft_has_leader", "raft_is_master", "raft_is_voter"):
        samples.add(name, 0)


def add_raft(samples: Samples, node: BrokerNode, status: RaftStatus) -> None:
    """Role, indexes and counters."""
    measures, voters = node.raft.measures, [peer for peer in status.peers if peer.voter]
    leads = status.role is Role.LEADER
    samples.add("raft_term", status.term)
    samples.add("raft_is_leader", leads)
    samples.add("raft_has_leader", status.leader is not None)
    samples.add("raft_is_master", bool(node.roles.master_term))
    samples.add("raft_is_voter", any(peer.node_id == status.node_id for peer in voters))
    samples.add("raft_voters", len(voters))
    samples.add("raft_first_index", status.first_index)
    samples.add("raft_last_index", status.last.index)
    samples.add("raft_commit_index", status.commit_index)
    samples.add("raft_applied_index", status.applied_index)
    samples.add("raft_proposals_pending", status.proposals_waiting)
    samples.add_each("raft_proposals_total", {result: measures.proposals[result] for result in RESULTS})
    samples.add_each("raft_transfers_total", {result: measures.transfers[result] for result in TRANSFERS})
    contradictions = {kind.value: measures.contradictions[kind] for kind in ContradictionKind} | {"refused": status.refused_messages}
    samples.add_each("raft_contradictions_total", contradictions)
    samples.add_each("raft_elections_total", dict(measures.elections))
    samples.add("raft_election_timeout_seconds", status.election_timeout_ms / 1000)
    samples.add("raft_prevotes_total", measures.prevotes)
    samples.add("raft_leader_changes_total", measures.leader_changes)
    samples.add("raft_commit_seconds", measures.commit_s)
    for peer, took in measures.replication_s.items():
        samples.add("raft_replication_seconds", took, peer)
    samples.add("raft_append_batch_bytes", measures.batch_bytes)
    samples.add("raft_append_batch_entries", measures.batch_entries)
    if leads:
        samples.add("raft_uncommitted_bytes", status.uncommitted_bytes)
        samples.add("raft_voters_acknowledging", sum(peer.acknowledges for peer in voters))
    _add_peers(samples, status, leads=leads)


def _add_peers(samples: Samples, status: RaftStatus, *, leads: bool) -> None:
    for peer in status.peers:
        if peer.node_id == status.node_id:
            continue
        samples.add("raft_peer_connected", peer.connected, peer.node_id)
        if not leads:
            continue
        samples.add("raft_peer_lag_entries", max(0, status.last.index - max(0, peer.match_index)), peer.node_id)
        if peer.silent_ms >= 0:
            samples.add("raft_peer_last_contact_seconds", peer.silent_ms / 1000, peer.node_id)
        for state in ProgressState:
            samples.add("raft_peer_state", peer.state == state.value, peer.node_id, state.value)


def add_log(samples: Samples, node: BrokerNode, status: RaftStatus) -> None:
    """Files, and what happened to them."""
    log = node.raft.log
    measures = log.measures
    samples.add("log_fsync_seconds", measures.fsync_s)
    samples.add("log_write_seconds", measures.write_s)
    samples.add("log_segments", len(log.segments))
    samples.add("log_bytes", log.end_pos - log.first_pos)
    samples.add("log_truncations_total", measures.truncations)
    samples.add("log_repairs_total", measures.repairs)
    samples.add("log_corruptions_total", measures.corruptions)
    # What a comparison of replicas found is handed to the repairer, so these are the same entries, but for those just found.
    samples.add("log_corrupt_entries", max(len(status.damaged), len(node.damage.texts)))
    behind = log.end_pos - log.durable_end() if log.durable.index < log.last.index else 0
    samples.add("store_flush_behind_bytes", max(0, behind))
