"""CommitOffsets and GroupOffsets: committed offsets of consumer groups, written through the log and read at any replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from broker.context import ServiceContext
from broker.support.limits import at_most, in_slices
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, NotReadyError, OffsetOutOfRangeError, OffsetsResetError, TopicNotFoundError, error_from_code
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.consumer_groups import CommitOffsets, OffsetRow, OffsetsResult, ResetOffsets
from store.commands.security import Action
from store.state.pop import Delivered, GroupQueue
from store.state.sequences import QueueKey

TIMEOUT_S = 5.0
ROWS_AT_ONCE = 500  # of a commit: looked at without a pause, and applied by one command
BLOCKS_AT_ONCE = 32  # of 1024 leased messages each


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
        if request.initial or request.reset:
            refused = await self._move(request)
        else:
            refused = await self._commit(request)
        reply = broker_pb2.CommitOffsetsResponse()
        for (topic, queue_id), error in refused.items():
            reply.refused.add(topic=topic, queue_id=queue_id).error.CopyFrom(to_detail(error))
        return reply

    async def _move(self, request: broker_pb2.CommitOffsetsRequest) -> dict[QueueKey, DledgerError]:
        """Let the group begin, or move it; what was refused."""
        names_topics = request.initial or any(row.HasField("generation") or row.incarnation for row in request.offsets)
        if names_topics:
            self._check_topics(request)
        rows = self._rows(request.group, request.offsets)
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
        return _refused(result)

    async def _commit(self, request: broker_pb2.CommitOffsetsRequest) -> dict[QueueKey, DledgerError]:
        """What was refused.  Rows whose topic is gone hold up no others; TopicNotFoundError when there are no others."""
        refused: dict[QueueKey, DledgerError] = {}
        gone: list[TopicNotFoundError] = []
        parts = [request.offsets[first : first + ROWS_AT_ONCE] for first in range(0, len(request.offsets), ROWS_AT_ONCE)] or [[]]
        for part in parts:
            try:
                refused |= await self._commit_part(request.group, part)
            except TopicNotFoundError as error:
                gone.append(error)
                refused |= {_queue(row): self._gone(row) for row in part}
        if len(gone) == len(parts):
            raise gone[0]
        return refused

    async def _commit_part(self, group: str, offsets: Sequence[broker_pb2.GroupOffset]) -> dict[QueueKey, DledgerError]:
        """As many as are applied in one step.  TopicNotFoundError when nothing of it could be committed."""
        rows = [row for row in offsets if not self._is_of_former(row)]
        refused: dict[QueueKey, DledgerError] = {}
        while rows or not offsets:
            try:
                result = await self._context.command(CommitOffsets(group=group, offsets=self._rows(group, rows)), TIMEOUT_S)
            except TopicNotFoundError:
                there = [row for row in rows if self._is_there(row)]
                if len(there) == len(rows):
                    raise
                rows = there
                continue
            refused = _refused(result)
            if not any(self._is_to_be_repeated(row, refused.get(_queue(row))) for row in rows):
                break
        else:
            raise self._gone(offsets[0])
        kept = {_queue(row) for row in rows}
        for row in offsets:
            if _queue(row) not in kept or (_queue(row) in refused and self._is_of_former(row)):
                refused[_queue(row)] = self._gone(row)
        return refused

    def _is_to_be_repeated(self, row: broker_pb2.GroupOffset, error: DledgerError | None) -> bool:
        """Whether it is refused for a generation that it did not name: the group was reset on the way."""
        return isinstance(error, OffsetsResetError) and not row.HasField("generation") and not self._is_of_former(row)

    def _is_there(self, row: broker_pb2.GroupOffset) -> bool:
        return self._context.store.topics.get(row.topic) is not None and not self._is_of_former(row)

    def _is_of_former(self, row: broker_pb2.GroupOffset) -> bool:
        """Whether the row names another topic than there is now under its name."""
        topic = self._context.store.topics.get(row.topic)
        return bool(row.incarnation) and (topic is None or topic.topic_epoch != row.incarnation)

    def _gone(self, row: broker_pb2.GroupOffset) -> DledgerError:
        text = "does not exist" if self._context.store.topics.get(row.topic) is None else "was deleted and recreated"
        return TopicNotFoundError(f"topic {row.topic!r} {text}", topic=row.topic)

    def _rows(self, group: str, rows: Iterable[broker_pb2.GroupOffset]) -> tuple[OffsetRow, ...]:
        """As they go into the log.  One that names its topic has the generation of now: it is refused when the topic is recreated first."""
        known = self._context.store.consumer_offsets
        found = []
        for row in rows:
            generation = row.generation if row.HasField("generation") else None
            if generation is None and row.incarnation:
                generation = known.generation(group, row.topic, row.queue_id)
            found.append(OffsetRow(row.topic, row.queue_id, row.offset, generation, row.lock_epoch))
        return tuple(found)

    def _check_topics(self, request: broker_pb2.CommitOffsetsRequest) -> None:
        """TopicNotFoundError when a group would begin in a recreated topic, or be moved, to where it was meant to in the one before.

        The topics checked here are still those when the command comes through, or it is refused (``PreparedCommand``).  It is refused
        also behind a deletion that is then refused itself, after which they are there as before.
        """
        self._context.require_master()
        for row in request.offsets:
            topic = self._context.store.topics.require(row.topic)
            if self._is_of_former(row) or (row.HasField("generation") and row.generation != topic.created_pos):
                raise self._gone(row)

    async def _check_ends(self, request: broker_pb2.CommitOffsetsRequest) -> None:
        """Refuse an offset beyond the end of its queue: OffsetOutOfRangeError.  Which topics there are is certain afterwards.

        Consumers in a session name a generation or an epoch, which is checked instead: the topic may have been recreated since they read.
        """
        rows = [row for row in request.offsets if request.reset or (not row.HasField("generation") and not row.lock_epoch)]
        async for row in in_slices(rows, ROWS_AT_ONCE):
            if self._is_of_former(row) or self._is_beyond(row):
                break
        else:
            return
        self._context.require_master()
        await self._context.raft.read_barrier(TIMEOUT_S)  # the consumer may have read from a follower that has applied more
        async for row in in_slices(rows, ROWS_AT_ONCE):
            if self._is_beyond(row):
                end = self._context.store.queues.max_offset(_queue(row))
                text = f"group {request.group}: {row.topic}/{row.queue_id}: offset {row.offset} to commit; the queue ends at {end}"
                raise OffsetOutOfRangeError(text, topic=row.topic, queue_id=row.queue_id, min_offset=0, max_offset=end)

    def _is_beyond(self, row: broker_pb2.GroupOffset) -> bool:
        return self._is_there(row) and row.offset > self._context.store.queues.max_offset(_queue(row))

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
            queues = (
                (topic, queue_id)
                for topic in sorted(filter(sees, positions.get(group, {})))
                for queue_id in sorted(positions[group][topic])
            )
            async for topic, queue_id in in_slices(queues):
                offset = known.known_position(group, topic, queue_id)
                if offset is None:
                    continue  # it was of a topic that was deleted since the slice before
                now, generation = self._context.store.topics.get(topic), known.generation(group, topic, queue_id)
                epoch = now.topic_epoch if now is not None else ""
                row = found.offsets.add(topic=topic, queue_id=queue_id, offset=offset, generation=generation, incarnation=epoch)
                row.moved_at_ms = self._context.store.offset_history.moved_at_ms(group, topic, queue_id)
                if request.leases and self._context.store.pop.is_begun((group, topic, queue_id)):
                    row.leases.CopyFrom(await leases_of(self._context, (group, topic, queue_id)))
        return reply


async def leases_of(context: ServiceContext, queue: GroupQueue) -> broker_pb2.Leases:
    """What consumers of a group have of a queue; others work in between."""
    found, now_ms = Delivered(), context.store.time.now_ms()
    async for each in in_slices(context.store.pop.delivered(queue, now_ms), BLOCKS_AT_ONCE):
        found.add(each)
    await asyncio.sleep(0)
    oldest_ms = max(0, now_ms - found.first_ms) if found.first_ms else 0
    return broker_pb2.Leases(in_flight=found.in_flight, again=found.again, oldest_ms=oldest_ms, attempts=found.attempts)


def _refused(result: OffsetsResult) -> dict[QueueKey, DledgerError]:
    return {(row.topic, row.queue_id): error_from_code(row.code, row.message, {}) for row in result.refused}


def _queue(row: broker_pb2.GroupOffset) -> QueueKey:
    return (row.topic, row.queue_id)
