"""Metadata: the groups of the cluster, who leads this one, and where topics live.

Any replica answers from what it knows; ``reachable`` is the answering node's own view of its peers.
"""

from __future__ import annotations

from broker.api.limits import at_most, in_slices
from broker.context import ServiceFace
from broker.requests import decoded
from dledger.core.types import Role
from dledger_wire._pb import broker_pb2
from dledger_wire.names import is_system_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.state.topics import Topic


class MetadataService:
    """Answers what clients need to find their way."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face

    def register(self, server: Server) -> None:
        methods.METADATA.serve_bytes(server, self.metadata)

    async def metadata(self, request: bytes, _context: CallContext) -> bytes:
        wish = decoded(broker_pb2.MetadataRequest, request)
        at_most(len(wish.topics), "topics")
        face = self._face
        reply = broker_pb2.MetadataResponse(cluster=face.settings.cluster.cluster, version=face.store.topics.version)
        for group in face.settings.cluster.groups:
            if group is face.settings.group:
                reply.groups.append(self._own_group())
            else:
                nodes = [broker_pb2.NodeInfo(id=node.id, address=node.address, voter=True) for node in group.nodes]
                reply.groups.add(name=group.name, nodes=nodes)
        if wish.all_topics:
            async for topic in in_slices([topic for topic in face.store.topics if not is_system_topic(topic.name)]):
                reply.topics.append(self._topic(topic))
        async for name in in_slices(wish.topics):
            found = face.store.topics.get(name)
            reply.topics.append(self._topic(found) if found is not None else broker_pb2.TopicInfo(name=name, found=False))
        return reply.SerializeToString()

    def _own_group(self) -> broker_pb2.GroupInfo:
        face, raft = self._face, self._face.raft
        own = face.settings.node.id
        # A leader whose master services are not on yet would only refuse writes: it is no leader for clients.
        leads = raft.leader if raft.leader != own or face.roles.master_term else None
        group = broker_pb2.GroupInfo(name=face.settings.group.name, term=raft.term, leader_id=leads or "")
        for peer in raft.status().peers:
            role = raft.role.value if peer.node_id == own else _role_of(peer.node_id, raft.leader, voter=peer.voter)
            address = peer.address or face.settings.peers.get(peer.node_id, "")
            group.nodes.add(id=peer.node_id, address=address, role=role, reachable=peer.connected, voter=peer.voter)
            if peer.node_id == leads:
                group.leader_address = address
        return group

    def _topic(self, topic: Topic) -> broker_pb2.TopicInfo:
        return broker_pb2.TopicInfo(
            name=topic.name,
            group=self._face.settings.group.name,
            read_queues=topic.read_queues,
            write_queues=topic.write_queues,
            perm=topic.perm,
            found=True,
            incarnation=topic.topic_epoch,
        )


def _role_of(node: str, leader: str | None, *, voter: bool) -> str:
    if node == leader:
        return Role.LEADER.value
    return (Role.FOLLOWER if voter else Role.LEARNER).value
