"""The status of a node, as operators and the command line see it: replica, process, role and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker.api.connections import counts_of
from broker.api.log_segments import FoundDamage, committed_end
from broker.api.node_state import Condition, cannot_lead, conditions_of, states_of, warnings_of
from broker.context import ServiceContext
from broker.leadership.transfer import unfit_voters
from broker.security.certificate_watch import CertificateWatch
from broker.support.messages import message_of
from broker.support.process_stats import ProcessStats
from dledger.core.types import Role
from dledger.runtime.env import space_of
from dledger.settings import RaftStatus
from dledger_wire._pb import admin_pb2
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.tcp.server import Accepted

MAX_ROLE_STEPS = 20


class NodeStatusService:
    """Of one node; it answers whether or not the node leads."""

    def __init__(
        self,
        context: ServiceContext,
        process: Callable[[], ProcessStats],
        store_id: str,
        certificate: CertificateWatch,
        damage: FoundDamage,
        connections: Callable[[], Sequence[Accepted]],
    ) -> None:
        self._context, self._connections = context, connections
        self._certificate = certificate
        self._process = process
        self._store_id = store_id
        self._damage = damage
        self._started_at_ms = context.env.clock.wall_ms()

    def register(self, server: Server) -> None:
        methods.NODE_STATUS.serve(server, self.node_status)

    async def node_status(self, _request: admin_pb2.Empty, _caller: CallContext) -> admin_pb2.NodeStatusReply:
        context, raft = self._context, self._context.raft.status()
        process, traffic = self._process(), context.store.traffic.total
        seen = await self._damage.still_damaged(context.raft.log)
        context.raft.clocks.update()
        refuses, memory = context.store.is_low_on_space, context.memory_alarm.text
        conditions = conditions_of(raft, refuses_messages=refuses, clocks=context.raft.clocks, damage_seen=seen, memory=memory)
        held_up = await counts_of(context, self._connections())
        reply = message_of(
            admin_pb2.NodeStatusReply,
            process,
            cluster=context.settings.cluster.cluster,
            group=raft.group,
            id=raft.node_id,
            address=context.settings.node.address,
            role=raft.role.value,
            term=raft.term,
            leader=raft.leader or "",
            first_index=raft.first_index,
            last_index=raft.last.index,
            committed_index=raft.commit_index,
            durable_index=raft.durable.index,
            applied_index=raft.applied_index,
            store_id=self._store_id,
            lineage=raft.lineage,
            disk_used_percent=(await space_of(context.env.disk)).used_percent,
            committed_pos=await committed_end(context.raft.log, raft.commit_index),
            # Not only elected: its log is applied, and it accepts writes.
            leader_confirmed=bool(context.roles.master_term),
            started_at_ms=self._started_at_ms,
            voters=[peer.node_id for peer in raft.peers if peer.voter],
            learners=[peer.node_id for peer in raft.peers if not peer.voter],
            role_state=context.roles.state.value,
            services_term=context.roles.services_term,
            role_log=list(context.roles.steps)[-MAX_ROLE_STEPS:],
            certificate_expires_at_ms=self._certificate.expires_at_ms,
            refusals=context.access.refusals,
            messages_in_total=traffic.messages_in,
            bytes_in_total=traffic.bytes_in,
            messages_out_total=traffic.messages_out,
            bytes_out_total=traffic.bytes_out,
            feature_level=context.store.feature_level.level,
            lowest_level=context.store.feature_level.build.lowest,
            highest_level=context.store.feature_level.build.highest,
            connection_states=held_up.states,
            bottleneck=held_up.bottleneck,
        )
        self._add_condition(reply, conditions, raft)
        _add_peers(reply, raft, unfit_voters(context) if raft.role is Role.LEADER else {})
        return reply

    def _add_condition(self, reply: admin_pb2.NodeStatusReply, conditions: Sequence[Condition], raft: RaftStatus) -> None:
        """What is wrong with this node, and how slow its disk is."""
        states = states_of(conditions)
        reply.state = states[0]
        reply.warnings.extend([*warnings_of(states), *self._certificate.warnings()])
        reply.cannot_lead = cannot_lead(conditions, self._certificate.expiry_passed())
        reply.uncommitted_ms, reply.sync_ms = round(raft.oldest_uncommitted_s * 1000), round(raft.slowest_flush_s * 1000)


def _add_peers(reply: admin_pb2.NodeStatusReply, raft: RaftStatus, unfit: Mapping[str, str]) -> None:
    """The other members, as this node sees them; ``unfit``: those that must not lead, and why."""
    for peer in raft.peers:
        if peer.node_id != raft.node_id:
            state = peer.state if peer.connected or not peer.state else f"{peer.state}, lost"
            shown = message_of(admin_pb2.PeerStatus, peer, id=peer.node_id, state=state, match_index=max(0, peer.match_index))
            shown.last_contact_ms, shown.unheard = peer.silent_ms, peer.silent_ms >= 0 and not peer.has_answered
            shown.cannot_lead = unfit.get(peer.node_id, "")
            reply.peers.append(shown)
