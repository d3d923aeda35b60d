"""CommitOffsets and GroupOffsets: positions of consumer groups, written through the log and read at the master."""

from __future__ import annotations

from collections.abc import Callable

from broker.api.limits import at_most, in_slices
from broker.context import ServiceFace
from broker.requests import decoded
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import OffsetOutOfRangeError, error_from_code
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.consumer_groups import CommitOffsets, OffsetRow, ResetOffsets

TIMEOUT_S = 5.0
TOPICS_AT_ONCE = 20  # of up to 1024 queues each


class GroupService:
    """Consumer groups' positions on the master.  ``was_reset`` is told the group whose running consumers have to follow a reset."""

    def __init__(self, face: ServiceFace, was_reset: Callable[[str], None]) -> None:
        self._face = face
        self._was_reset = was_reset

    def register(self, server: Server) -> None:
        methods.COMMIT_OFFSETS.serve_bytes(server, self.commit)
        methods.GROUP_OFFSETS.serve_bytes(server, self.positions)

    async def commit(self, request: bytes, _context: CallContext) -> bytes:
        wish = decoded(broker_pb2.CommitOffsetsRequest, request)
        at_most(len(wish.offsets), "offsets to commit")
        if not wish.initial:
            await self._check_ends(wish)
        rows = tuple(_row(each) for each in wish.offsets)
        command = (
            ResetOffsets(group=wish.group, offsets=rows)
            if wish.reset
            else CommitOffsets(group=wish.group, offsets=rows, initial=wish.initial)
        )
        result = await self._face.command(command, TIMEOUT_S)
        if wish.reset:
            self._was_reset(wish.group)
        reply = broker_pb2.CommitOffsetsResponse()
        for row in result.refused:
            refused = reply.refused.add(topic=row.topic, queue_id=row.queue_id)
            refused.error.CopyFrom(to_detail(error_from_code(row.code, row.message, {})))
        return reply.SerializeToString()

    async def _check_ends(self, wish: broker_pb2.CommitOffsetsRequest) -> None:
        """Refuse a position nobody has read up to: OffsetOutOfRangeError.  Consumers in a session name a generation or an epoch, and are
        judged by that: what they read may be of a topic that was made anew."""
        rows = [row for row in wish.offsets if not row.HasField("generation") and not row.lock_epoch]
        if not any(self._is_beyond(row) for row in rows):
            return
        self._face.require_master()
        await self._face.raft.read_barrier(TIMEOUT_S)  # a follower may have given what is not applied here yet
        for row in rows:
            if self._is_beyond(row):
                end = self._face.store.queues.max_offset((row.topic, row.queue_id))
                text = f"group {wish.group}: {row.topic}/{row.queue_id}: offset {row.offset} to commit; the queue ends at {end}"
                raise OffsetOutOfRangeError(text, topic=row.topic, queue_id=row.queue_id, min_offset=0, max_offset=end)

    def _is_beyond(self, row: broker_pb2.GroupOffset) -> bool:
        store = self._face.store
        return store.topics.get(row.topic) is not None and row.offset > store.queues.max_offset((row.topic, row.queue_id))

    async def positions(self, request: bytes, _context: CallContext) -> bytes:
        self._face.require_master()
        known = self._face.store.consumer_offsets
        reply = broker_pb2.GroupOffsetsResponse()
        asked = decoded(broker_pb2.GroupOffsetsRequest, request).groups
        at_most(len(asked), "consumer groups")
        positions = known.of_groups(set(asked) or None)
        async for group in in_slices(dict.fromkeys(asked) or sorted(positions)):
            found = reply.groups.add(group=group)
            async for topic in in_slices(sorted(positions.get(group, {})), TOPICS_AT_ONCE):
                for queue_id, offset in sorted(positions[group][topic].items()):
                    generation = known.generation(group, topic, queue_id)
                    found.offsets.add(topic=topic, queue_id=queue_id, offset=offset, generation=generation)
        return reply.SerializeToString()


def _row(each: broker_pb2.GroupOffset) -> OffsetRow:
    generation = each.generation if each.HasField("generation") else None
    return OffsetRow(each.topic, each.queue_id, each.offset, generation, each.lock_epoch)
