"""Metadata: the replica groups of the cluster, the leader of this one, and the queues of topics.

Any replica answers from its own state, and for other groups from the cluster file and what name servers returned.  ``reachable`` is the
answering node's own view of its peers.
"""

from __future__ import annotations

from functools import partial

from broker.context import ServiceContext
from broker.routes.known_groups import KnownGroups
from broker.support.limits import at_most, in_slices
from broker.support.messages import message_of
from dledger.core.types import Role
from dledger_wire._pb import broker_pb2
from dledger_wire.names import is_system_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.security import Action
from store.state.topics import Topic


class MetadataService:
    """Answers what clients need to route requests."""

    def __init__(self, context: ServiceContext, groups: KnownGroups) -> None:
        self._context = context
        self._groups = groups

    def register(self, server: Server) -> None:
        methods.METADATA.serve(server, self.metadata)

    async def metadata(self, request: broker_pb2.MetadataRequest, caller: CallContext) -> broker_pb2.MetadataResponse:
        at_most(len(request.topics), "topics")
        context = self._context
        sees = partial(context.access.may_topic, caller.principal, Action.DESCRIBE)
        reply = broker_pb2.MetadataResponse(cluster=context.settings.cluster.cluster, version=context.store.topics.version)
        reply.max_message_bytes = context.store.settings.maxMessageSize
        reply.default_topic_queues = context.settings.cluster.broker.defaultTopicQueueNums
        reply.replica.CopyFrom(context.answering_replica())
        reply.disk_full = context.raft.disk_full_ms > 0
        reply.queues, reply.state = context.store.topics.own_queues, context.store.replica_group.state
        for name in self._groups:
            if name == context.settings.group.name:
                reply.groups.append(self._own_group())
            else:
                reply.groups.add(name=name, nodes=[message_of(broker_pb2.NodeInfo, node) for node in self._groups.nodes_of(name)])
        if request.all_topics:
            shown = [topic for topic in context.store.topics if not is_system_topic(topic.name) and sees(topic.name)]
            async for topic in in_slices(shown):
                reply.topics.append(self._topic(topic))
        async for name in in_slices(request.topics):
            if not sees(name):
                reply.topics.append(broker_pb2.TopicInfo(name=name, found=False, unseen_by=str(caller.principal)))
                continue
            found = context.store.topics.get(name)
            reply.topics.append(self._topic(found) if found is not None else broker_pb2.TopicInfo(name=name, found=False))
        return reply

    def _own_group(self) -> broker_pb2.GroupInfo:
        context, raft = self._context, self._context.raft
        own = context.settings.node.id
        # A leader that is not yet master would refuse writes, so clients do not get it.
        leads = raft.leader if raft.leader != own or context.roles.master_term else None
        group = broker_pb2.GroupInfo(name=context.settings.group.name, term=raft.term, leader_id=leads or "")
        voters = raft.membership.voters
        for node in (*voters, *raft.membership.learners):
            role = raft.role.value if node == own else _role_of(node, raft.leader, voter=node in voters)
            address = raft.address_of(node) or context.settings.peers.get(node, "")
            group.nodes.add(id=node, address=address, role=role, reachable=raft.is_connected(node), voter=node in voters)
            if node == leads:
                group.leader_address = address
        return group

    def _topic(self, topic: Topic) -> broker_pb2.TopicInfo:
        group, perm = self._context.settings.group.name, self._context.store.topics.client_perm(topic)
        return message_of(broker_pb2.TopicInfo, topic, group=group, perm=perm, found=True, incarnation=topic.topic_epoch)


def _role_of(node: str, leader: str | None, *, voter: bool) -> str:
    role = Role.LEADER if node == leader else Role.FOLLOWER if voter else Role.LEARNER
    return role.value
