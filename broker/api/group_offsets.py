"""CommitOffsets and GroupOffsets: committed offsets of consumer groups, written through the log and read at any replica."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.api.limits import at_most, in_slices
from broker.context import ServiceContext
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import NotReadyError, OffsetOutOfRangeError, TopicNotFoundError, error_from_code
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.consumer_groups import CommitOffsets, OffsetRow, ResetOffsets
from store.commands.security import Action

TIMEOUT_S = 5.0
TOPICS_AT_ONCE = 20  # of up to 1024 queues each


class GroupOffsetsService:
    """Committed offsets, as this replica has applied them.  ``offsets_reset`` is called with a group whose offsets were reset."""

    def __init__(self, context: ServiceContext, offsets_reset: Callable[[str], None]) -> None:
        self._context = context
        self._offsets_reset = offsets_reset

    def register(self, server: Server) -> None:
        methods.COMMIT_OFFSETS.serve(server, self.commit)
        methods.GROUP_OFFSETS.serve(server, self.offsets)

    async def commit(self, request: broker_pb2.CommitOffsetsRequest, _caller: CallContext) -> broker_pb2.CommitOffsetsResponse:
        at_most(len(request.offsets), "offsets to commit")
        if not request.initial:
            await self._check_ends(request)
        names_topics = request.initial or (request.reset and any(row.HasField("generation") for row in request.offsets))
        if names_topics:
            self._check_topics(request)
        rows = tuple(_row(each) for each in request.offsets)
        command = (
            ResetOffsets(group=request.group, offsets=rows)
            if request.reset
            else CommitOffsets(group=request.group, offsets=rows, initial=request.initial)
        )
        try:
            result = await self._context.command(command, TIMEOUT_S)
        except TopicNotFoundError:
            if names_topics:
                self._check_topics(request)
                raise NotReadyError(f"group {request.group}: a deletion of the topic was refused; nothing was stored") from None
            raise
        if request.reset:
            self._offsets_reset(request.group)
        reply = broker_pb2.CommitOffsetsResponse()
        for row in result.refused:
            refused = reply.refused.add(topic=row.topic, queue_id=row.queue_id)
            refused.error.CopyFrom(to_detail(error_from_code(row.code, row.message, {})))
        return reply

    def _check_topics(self, request: broker_pb2.CommitOffsetsRequest) -> None:
        """TopicNotFoundError when a group would begin in a topic made anew, or be moved, to where it was meant to in the one before.

        The topics checked here are still those when the command comes through, or it is refused (``PreparedCommand``).  It is refused
        also behind a deletion that is then refused itself, after which they are there as before.
        """
        self._context.require_master()
        for row in request.offsets:
            topic = self._context.store.topics.require(row.topic)
            if row.HasField("generation") and row.generation != topic.created_pos:
                raise TopicNotFoundError(f"topic {row.topic!r} was deleted and recreated", topic=row.topic)

    async def _check_ends(self, request: broker_pb2.CommitOffsetsRequest) -> None:
        """Refuse an offset beyond the end of its queue: OffsetOutOfRangeError.

        Consumers in a session name a generation or an epoch, which is checked instead: the topic may have been recreated since they read.
        """
        rows = [row for row in request.offsets if request.reset or (not row.HasField("generation") and not row.lock_epoch)]
        if not any(self._is_beyond(row) for row in rows):
            return
        self._context.require_master()
        await self._context.raft.read_barrier(TIMEOUT_S)  # the consumer may have read from a follower that has applied more
        for row in rows:
            if self._is_beyond(row):
                end = self._context.store.queues.max_offset((row.topic, row.queue_id))
                text = f"group {request.group}: {row.topic}/{row.queue_id}: offset {row.offset} to commit; the queue ends at {end}"
                raise OffsetOutOfRangeError(text, topic=row.topic, queue_id=row.queue_id, min_offset=0, max_offset=end)

    def _is_beyond(self, row: broker_pb2.GroupOffset) -> bool:
        store = self._context.store
        return store.topics.get(row.topic) is not None and row.offset > store.queues.max_offset((row.topic, row.queue_id))

    async def offsets(self, request: broker_pb2.GroupOffsetsRequest, caller: CallContext) -> broker_pb2.GroupOffsetsResponse:
        self._context.require_reader(any_replica=request.any_replica)
        known = self._context.store.consumer_offsets
        reply = broker_pb2.GroupOffsetsResponse(replica=self._context.answering_replica())
        asked = request.groups
        at_most(len(asked), "consumer groups")
        positions = known.of_groups(set(asked) or None)
        access = self._context.access
        sees = partial(access.may_topic, caller.principal, Action.DESCRIBE)
        shown = dict.fromkeys(asked) or access.seen_groups(caller.principal, sorted(positions))
        async for group in in_slices(shown):
            found = reply.groups.add(group=group)
            async for topic in in_slices(sorted(filter(sees, positions.get(group, {}))), TOPICS_AT_ONCE):
                now = self._context.store.topics.get(topic)
                epoch = now.topic_epoch if now is not None else ""
                for queue_id in sorted(positions[group][topic]):
                    offset = known.known_position(group, topic, queue_id)
                    if offset is None:
                        continue  # it was of a topic that was deleted since the slice before
                    generation = known.generation(group, topic, queue_id)
                    found.offsets.add(topic=topic, queue_id=queue_id, offset=offset, generation=generation, incarnation=epoch)
        return reply


def _row(each: broker_pb2.GroupOffset) -> OffsetRow:
    generation = each.generation if each.HasField("generation") else None
    return OffsetRow(each.topic, each.queue_id, each.offset, generation, each.lock_epoch)
