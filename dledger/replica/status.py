"""A replica's figures for operators.  Owns nothing."""

from __future__ import annotations

from functools import partial

from dledger.core.types import Role
from dledger.replica.replica import Replica
from dledger.settings import RaftStatus, peer_statuses


def status_of(replica: Replica) -> RaftStatus:
    """The replica at this moment."""
    identity, link = replica.identity, partial(replica.admission.link_state, replica.links)
    timeout_ms, addresses = replica.settings.core.election_timeout_ms, replica.members.addresses
    failed, core = replica.failed, replica.core.status()
    return RaftStatus(
        node_id=identity.node_id,
        group=identity.group,
        role=replica.role,
        term=replica.term,
        leader=replica.leader,
        confirmed=replica.is_confirmed_leader,
        first_index=replica.log.first_index,
        last=replica.log.last,
        durable=replica.log.durable,
        commit_index=replica.commit_index,
        applied_index=replica.applier.applied,
        pending_bytes=replica.proposer.proposals.pending_bytes,
        disk_full=replica.driver.disk_full,
        damaged=tuple(replica.repairer.unrepaired),
        copying=replica.catch_up.state,
        refused_messages=replica.driver.refused_messages,
        contradicted=replica.driver.contradicted,
        contradictions=dict(replica.measures.contradictions),
        failed=str(failed.result()) if failed.done() and not failed.cancelled() else "",
        peers=peer_statuses(identity.node_id, replica.membership, addresses, core, link, timeout_ms, replica.admission.build_of),
        uncommitted_bytes=core.uncommitted_bytes,
        oldest_uncommitted_s=replica.proposer.proposals.oldest_s if replica.role is Role.LEADER else 0.0,
        slowest_flush_s=replica.measures.slowest_flush.took_s,
        proposals_waiting=replica.proposer.proposals.waiting,
        lineage=replica.lineage,
        election_timeout_ms=core.election_timeout_ms,
    )
