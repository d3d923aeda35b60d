"""CommitOffsets and GroupOffsets: positions of consumer groups, written through the log and read at the master."""

from __future__ import annotations

from broker.services.decode import decoded
from broker.services.face import ServiceFace
from dledger_wire._pb import broker_pb2
from dledger_wire.rpc import CallContext, Server
from store.consumer_offsets import COMMIT, RESET

PREFIX = "/dledger.v1.Broker/"
TIMEOUT_S = 5.0


class GroupService:
    """Consumer groups' positions on the master."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face

    def register(self, server: Server) -> None:
        server.add_unary(PREFIX + "CommitOffsets", self.commit)
        server.add_unary(PREFIX + "GroupOffsets", self.positions)

    async def commit(self, request: bytes, _context: CallContext) -> bytes:
        wish = decoded(broker_pb2.CommitOffsetsRequest, request)
        offsets = [[each.topic, each.queue_id, each.offset] for each in wish.offsets]
        await self._face.command(RESET if wish.reset else COMMIT, {"group": wish.group, "offsets": offsets}, TIMEOUT_S)
        return broker_pb2.CommitOffsetsResponse().SerializeToString()

    async def positions(self, request: bytes, _context: CallContext) -> bytes:
        self._face.require_master()
        known = self._face.store.consumer_offsets
        reply = broker_pb2.GroupOffsetsResponse()
        for group in decoded(broker_pb2.GroupOffsetsRequest, request).groups or known.groups():
            found = reply.groups.add(group=group)
            for topic, queues in sorted(known.of(group).items()):
                for queue_id, offset in sorted(queues.items()):
                    found.offsets.add(topic=topic, queue_id=queue_id, offset=offset)
        return reply.SerializeToString()
