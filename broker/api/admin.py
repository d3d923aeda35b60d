"""The Admin service: topics, node status, leadership, membership, segment checksums.

Owns the operators' calls.  Every node answers for its own replica group.  Changes go through the master's log; a replica that is not the
master answers NOT_LEADER with the master's address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from broker.api.checksums import FoundDamage, check_segment, committed_end, segment_sums
from broker.api.membership_steps import check_new_member, membership_steps
from broker.api.new_member_check import refuse_other_log
from broker.api.node_state import Condition, cannot_lead, conditions_of, states_of, warnings_of
from broker.context import ServiceContext
from broker.delivery.waiting_for_topic import waiting_for
from broker.leadership.eligibility import unfit_voters
from broker.routes.registrar import Registrar
from broker.security.certificate_watch import CertificateWatch
from broker.support.keyed_lock import KeyedLock
from broker.support.limits import in_slices
from broker.support.process_stats import ProcessStats
from dledger.core.types import NodeId, Role
from dledger.runtime.env import space_of
from dledger.settings import RaftStatus
from dledger_wire._pb import admin_pb2
from dledger_wire.addresses import is_address
from dledger_wire.errors import InvalidArgumentError, StorageDamagedError, TopicNotFoundError, UnsafeShrinkError
from dledger_wire.names import check_new_topic, is_system_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.status import Perm
from store.commands.command import Command
from store.commands.security import Action
from store.commands.topics import DRAINED, CreateTopic, DeleteTopic, DeleteTopicIf, TopicResult, UpdateTopic

COMMAND_TIMEOUT_S = 5.0
TRANSFER_TIMEOUT_S = 5.0
FORCE_HINT = "or dledger leader transfer --force (force=True)"
CHANGE_TIMEOUT_S = 10.0
MAX_ROLE_STEPS = 20


class AdminService:
    """Operators' calls."""

    def __init__(
        self,
        context: ServiceContext,
        process: Callable[[], ProcessStats],
        store_id: str,
        registrar: Registrar,
        certificate: CertificateWatch,
        damage: FoundDamage,
    ) -> None:
        self._context = context
        self._certificate = certificate
        self._registrar = registrar
        self._process = process
        self._store_id = store_id
        self._damage = damage
        self._deletions = KeyedLock()
        self._started_at_ms = context.env.clock.wall_ms()

    def register(self, server: Server) -> None:
        methods.CREATE_TOPIC.serve(server, self.create_topic)
        methods.UPDATE_TOPIC.serve(server, self.update_topic)
        methods.DELETE_TOPIC.serve(server, self.delete_topic)
        methods.LIST_TOPICS.serve(server, self.list_topics)
        methods.NODE_STATUS.serve(server, self.node_status)
        methods.TRANSFER_LEADER.serve(server, self.transfer_leader)
        methods.CHANGE_MEMBER.serve(server, self.change_member)
        methods.SEGMENT_CHECKSUMS.serve(server, self.segment_checksums)

    # Topics

    async def create_topic(self, request: admin_pb2.TopicSpec, _caller: CallContext) -> admin_pb2.TopicReply:
        spec = request
        self._check_topic(spec)
        check_new_topic(spec.name)
        default = self._context.settings.cluster.broker.defaultTopicQueueNums
        command = CreateTopic(
            name=spec.name,
            read_queues=spec.read_queues or spec.write_queues or default,
            write_queues=spec.write_queues or spec.read_queues or default,
            perm=spec.perm,
            if_not_exists=spec.if_not_exists,
            groups=tuple(spec.groups),
        )
        return await self._change_topic(command)

    async def update_topic(self, request: admin_pb2.TopicSpec, _caller: CallContext) -> admin_pb2.TopicReply:
        spec = request
        self._check_topic(spec)
        command = UpdateTopic(
            name=spec.name,
            read_queues=spec.read_queues,
            write_queues=spec.write_queues,
            perm=spec.perm,
            force=spec.force,
            groups=tuple(spec.groups),
        )
        return await self._change_topic(command)

    async def delete_topic(self, request: admin_pb2.TopicSpec, _caller: CallContext) -> admin_pb2.TopicReply:
        spec = request
        self._check_topic(spec)
        async with self._deletions.hold(spec.name):
            if spec.only_if:
                with self._context.store.nothing_new_waits_for(spec.name):
                    return await self._delete_if(spec)
            if spec.incarnation:
                await self._check_incarnation(spec.name, spec.incarnation)
            return await self._change_topic(DeleteTopic(name=spec.name))

    async def _delete_if(self, spec: admin_pb2.TopicSpec) -> admin_pb2.TopicReply:
        await self._check_nothing_waits(spec)
        if spec.incarnation:
            await self._check_incarnation(spec.name, spec.incarnation)
        return await self._change_topic(DeleteTopicIf(name=spec.name, only_if=spec.only_if))

    async def _check_incarnation(self, name: str, wanted: str) -> None:
        """TopicNotFoundError unless the topic is the one that is meant.

        It still is when the command of the caller, who holds the lock of deletions, comes through: only this node adds to the log, and
        another topic of that name could be made only behind another deletion.
        """
        self._context.require_master()
        await self._context.raft.apply_all(COMMAND_TIMEOUT_S)
        self._require_incarnation(name, wanted)

    def _require_incarnation(self, name: str, wanted: str) -> None:
        now = self._context.store.topics.require(name).topic_epoch
        if now != wanted:
            text = f"topic {name!r} was deleted and created again meanwhile; nothing was deleted"
            raise TopicNotFoundError(text, topic=name, incarnation=now)

    async def _check_nothing_waits(self, spec: admin_pb2.TopicSpec) -> None:
        """UnsafeShrinkError when messages that were acknowledged for the topic are still to be stored in it."""
        context = self._context
        context.require_master()
        await context.raft.apply_all(COMMAND_TIMEOUT_S)
        if spec.incarnation:
            self._require_incarnation(spec.name, spec.incarnation)  # else what waits for another topic would be named
        topic = context.store.topics.get(spec.name)
        if topic is None or (spec.only_if == DRAINED and topic.perm & Perm.WRITE):
            return  # the command is refused for that
        if waiting := await waiting_for(context, topic):
            raise UnsafeShrinkError(f"topic {topic.name}: {waiting}", topic=topic.name)

    def _check_topic(self, spec: admin_pb2.TopicSpec) -> None:
        group = self._context.settings.group.name
        if spec.group not in ("", group):
            raise InvalidArgumentError(f"this node serves replica group {group}, not {spec.group}")
        if is_system_topic(spec.name):
            raise InvalidArgumentError(f"topic {spec.name} belongs to the system; expected a name of your own", topic=spec.name)

    async def _change_topic(self, command: Command[TopicResult]) -> admin_pb2.TopicReply:
        topic = await self._context.command(command, COMMAND_TIMEOUT_S)
        await self._registrar.topics_registered()  # who reads routes after this reply finds the change
        return admin_pb2.TopicReply(
            name=topic.name,
            group=self._context.settings.group.name,
            read_queues=topic.read_queues,
            write_queues=topic.write_queues,
            perm=topic.perm,
            created=topic.created,
        )

    async def list_topics(self, _request: admin_pb2.Empty, caller: CallContext) -> admin_pb2.TopicList:
        group = self._context.settings.group.name
        reply = admin_pb2.TopicList()
        sees = partial(self._context.access.may_topic, caller.principal, Action.DESCRIBE)
        shown = [topic for topic in self._context.store.topics if not is_system_topic(topic.name) and sees(topic.name)]
        async for topic in in_slices(shown):
            reply.topics.add(name=topic.name, read_queues=topic.read_queues, write_queues=topic.write_queues, perm=topic.perm, group=group)
        return reply

    # Status

    async def node_status(self, _request: admin_pb2.Empty, _caller: CallContext) -> admin_pb2.NodeStatusReply:
        context, raft = self._context, self._context.raft.status()
        process, traffic = self._process(), context.store.traffic.total
        seen = await self._damage.still_damaged(context.raft.log)
        context.raft.clocks.update()
        refuses = context.store.is_low_on_space
        conditions = conditions_of(raft, refuses_messages=refuses, clocks=context.raft.clocks, damage_seen=seen)
        reply = admin_pb2.NodeStatusReply(
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
            pid=process.pid,
            store_id=self._store_id,
            lineage=raft.lineage,
            disk_used_percent=(await space_of(context.env.disk)).used_percent,
            rss_bytes=process.rss_bytes,
            anonymous_bytes=process.anonymous_bytes,
            version=process.version,
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
            loop_lag_ms=process.loop_lag_ms,
            feature_level=context.store.feature_level.level,
            lowest_level=context.store.feature_level.build.lowest,
            highest_level=context.store.feature_level.build.highest,
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

    # Leadership and membership

    async def transfer_leader(self, request: admin_pb2.TransferRequest, _caller: CallContext) -> admin_pb2.TransferReply:
        target = request.target
        context, raft = self._context, self._context.raft
        context.require_leader()
        start_ms = context.env.clock.monotonic_ms()
        own = context.settings.node.id
        if target == own:
            return admin_pb2.TransferReply(old_leader=own, new_leader=own, term=raft.term)
        if not request.force:
            self._check_fit(target)
        taker = await raft.transfer(target or None, TRANSFER_TIMEOUT_S)
        took_ms = context.env.clock.monotonic_ms() - start_ms
        return admin_pb2.TransferReply(old_leader=own, new_leader=taker, term=raft.term, took_ms=took_ms)

    def _check_fit(self, target: str) -> None:
        """InvalidArgumentError when the voter, or every voter, must not lead: leadership would come back, and writes stop twice."""
        unfit = unfit_voters(self._context)
        if not target and unfit and all(unfit.values()):
            reasons = "; ".join(f"{node}: {why}" for node, why in unfit.items())
            raise InvalidArgumentError(f"no other voter may lead now ({reasons}); {FORCE_HINT}")
        if unfit.get(target):
            raise InvalidArgumentError(f"{target} must not lead now: {unfit[target]}; expected another voter, {FORCE_HINT}")

    async def change_member(self, request: admin_pb2.MemberRequest, _caller: CallContext) -> admin_pb2.MemberReply:
        raft = self._context.raft
        self._context.require_leader()
        if request.action in ("add", "replace"):
            await self._refuse_waiting_spare(request.id)
            await self._refuse_other_log(request.id, request.address or raft.address_of(NodeId(request.id)))
        membership = raft.membership  # nothing may change it between here and the first step
        known = raft.address_of(NodeId(request.id))
        steps = membership_steps(membership, request.action, request.id, request.replaces, known)
        if request.action in ("add", "replace"):
            check_new_member(request.id, request.address or known, self._other_addresses(request.replaces))
        for step in steps:
            addresses = {request.id: request.address} if request.address else {}
            membership = await raft.change_members(step.voters, step.learners, addresses, CHANGE_TIMEOUT_S)
        return admin_pb2.MemberReply(voters=membership.voters, learners=membership.learners)

    async def _refuse_waiting_spare(self, node_id: str) -> None:
        """A spare node belongs to no group before a leader takes it in, and would never catch up as a member: InvalidArgumentError.

        One that was taken in before waits again with a new folder: name servers list it then.
        """
        waiting = {spare.id for spare in self._context.settings.cluster.spares}.difference(self._context.store.replica_group.taken)
        directory = await self._registrar.directory()
        if directory is not None:
            waiting.update(spare.id for spare in directory.spares if not spare.expired)
        if node_id in waiting.difference(self._context.raft.membership.members):
            text = f"{node_id} is a spare node that no leader took in: it takes the place of a member that is away for replaceAfter"
            raise InvalidArgumentError(f"{text} (dledger cluster apply sets that); expected a node that is not among spares")

    async def _refuse_other_log(self, node_id: str, address: str) -> None:
        raft = self._context.raft
        if node_id not in raft.membership and is_address(address):
            members = raft.membership.members
            await refuse_other_log(self._context.env.network, node_id, address, lineage=raft.status().lineage, members=members)

    def _other_addresses(self, replaced: str) -> dict[str, str]:
        """The addresses of the members, without the one that is to be replaced, and of the nodes of other groups."""
        cluster = self._context.settings.cluster
        known = {node.id: node.address for group, node in cluster.all_nodes() if group is not self._context.settings.group}
        known |= {peer.node_id: peer.address for peer in self._context.raft.status().peers}
        known.pop(replaced, None)
        return known

    # Checksums

    async def segment_checksums(self, request: admin_pb2.ChecksumRequest, _caller: CallContext) -> admin_pb2.ChecksumReply:
        log, raft = self._context.raft.log, self._context.raft
        committed_pos = await committed_end(log, raft.commit_index)
        asked = request
        wanted = asked.upto_pos or committed_pos
        if wanted > committed_pos:
            raise InvalidArgumentError(f"position {wanted} is not committed here yet (committed: {committed_pos})")
        if asked.HasField("checked_segment"):
            try:
                await check_segment(log, asked.checked_segment, wanted)
            except StorageDamagedError as damage:
                log.measures.corruptions += self._damage.add(damage)
                raise
        reply = admin_pb2.ChecksumReply(committed_pos=committed_pos, first_pos=log.first_pos)
        for found in await segment_sums(log, wanted):
            reply.segments.add(start_pos=found.start_pos, size_bytes=found.size_bytes, crc=found.crc)
        return reply


def _add_peers(reply: admin_pb2.NodeStatusReply, raft: RaftStatus, unfit: Mapping[str, str]) -> None:
    """The other members, as this node sees them; ``unfit``: those that must not lead, and why."""
    for peer in raft.peers:
        if peer.node_id != raft.node_id:
            state = peer.state if peer.connected or not peer.state else f"{peer.state}, lost"
            reply.peers.add(
                id=peer.node_id,
                match_index=max(0, peer.match_index),
                state=state,
                last_contact_ms=peer.silent_ms,
                unheard=peer.silent_ms >= 0 and not peer.heard,
                voter=peer.voter,
                connected=peer.connected,
                refused=peer.refused,
                acknowledges=peer.acknowledges,
                address=peer.address,
                cannot_lead=unfit.get(peer.node_id, ""),
            )
