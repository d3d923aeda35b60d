"""Dead letters: counting them, and redriving them to the topics they came from.

Owns the two calls.  The offset up to which a group's dead letters were redriven is replicated state.  It is advanced in the log entry of
the copies, so a repeated redrive continues where the last one ended and sends nothing twice.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from broker.context import ServiceContext
from broker.delivery.delivery_entry import batch_bytes
from broker.delivery.verified_reads import StoredMessages
from broker.groups.group_topics import ensure_retry_topic
from broker.support.keyed_lock import KeyedLock
from broker.support.limits import at_most, in_slices
from dledger_wire._pb import retry_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotReadyError, OutcomeUnknownError, TopicNotFoundError
from dledger_wire.frames.frame import Frame
from dledger_wire.frames.priority import priority_of
from dledger_wire.names import DLQ_PREFIX, dlq_topic, is_system_topic, retry_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.security.principal import Principal
from store.append.redelivery import AtomicPayload, batches_of
from store.append.retry_copies import origin_of, redriven
from store.commands.redelivery import MarkRedriven
from store.commands.security import Action

TIMEOUT_S = 5.0
MAX_MESSAGES = 500


class DeadLetterService:
    """Redrives at the master; counts there, or at any replica."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._locks = KeyedLock()

    def register(self, server: Server) -> None:
        methods.DEAD_LETTERS.serve(server, self.dead_letters)
        methods.REDRIVE.serve(server, self.redrive)

    async def dead_letters(self, request: retry_pb2.DeadLettersRequest, caller: CallContext) -> retry_pb2.DeadLettersResponse:
        self._context.require_reader(any_replica=request.any_replica)
        store = self._context.store
        asked = list(request.groups)
        at_most(len(asked), "consumer groups")
        known = sorted(topic.name.removeprefix(DLQ_PREFIX) for topic in store.topics if topic.name.startswith(DLQ_PREFIX))
        reply = retry_pb2.DeadLettersResponse(replica=self._context.answering_replica())
        async for group in in_slices(dict.fromkeys(asked) or self._context.access.seen_groups(caller.principal, known)):
            topic = store.topics.get(dlq_topic(group))
            if topic is not None:
                low, high = store.reader.bounds(topic.name, 0, for_service=True)
                redriven = max(low, store.send_backs.redriven(group))
                reply.queues.add(group=group, topic=topic.name, perm=topic.perm, min_offset=low, max_offset=high, redriven_upto=redriven)
        return reply

    async def redrive(self, request: retry_pb2.RedriveRequest, caller: CallContext) -> retry_pb2.RedriveResponse:
        term = self._context.require_master()
        self._context.store.topics.require(dlq_topic(request.group))
        try:
            async with asyncio.timeout(TIMEOUT_S), self._locks.hold(request.group):
                reply = await self._redrive(request, term, caller.principal)
        except TimeoutError:
            raise OutcomeUnknownError(f"the redrive was not committed within {TIMEOUT_S:g} s; it may still be") from None
        return reply

    async def _redrive(self, request: retry_pb2.RedriveRequest, term: int, caller: Principal) -> retry_pb2.RedriveResponse:
        """Send the next of a group's dead letters, as many as fit one entry.  The caller holds the group's lock."""
        store, dead = self._context.store, dlq_topic(request.group)
        low, high = store.reader.bounds(dead, 0, for_service=True)
        first, end = max(low, store.send_backs.redriven(request.group)), min(request.upto_offset, high)
        if first >= end:
            return retry_pb2.RedriveResponse(next_offset=first)
        limit = min(end - first, request.max_messages or MAX_MESSAGES, MAX_MESSAGES)
        stored = StoredMessages(self._context, dead, 0, for_service=True)
        frames = await stored.run(first, max_messages=limit, max_bytes=batch_bytes(self._context))
        if request.to_retry_topic:
            await ensure_retry_topic(self._context, request.group)
        copies: list[Frame] = []
        for frame in frames:
            try:
                copies.append(self._copy(frame, request, caller))
            except DledgerError:
                if not copies:
                    raise
                break  # redrive those before it; the next call raises its error
        if self._context.require_master() != term:
            raise NotReadyError("leadership changed during the request; nothing was redriven")
        batches = store.prepare(batches_of(copies), for_service=True)
        for outcome in batches.outcomes:
            if outcome.error is not None:
                raise outcome.error
        next_offset = first + len(copies)
        command = store.command(MarkRedriven(group=request.group, offset=next_offset))
        await self._locks.commit(request.group, self._context.raft.propose(AtomicPayload(batches, command)))
        command.result()
        return retry_pb2.RedriveResponse(redriven=len(copies), next_offset=next_offset)

    def _copy(self, frame: Frame, request: retry_pb2.RedriveRequest, caller: Principal) -> Frame:
        topics = self._context.store.topics
        name = retry_topic(request.group) if request.to_retry_topic else origin_of(frame)
        if not name:
            raise InvalidArgumentError(f"dead letter {frame.queue_offset} of {request.group} does not say where it came from")
        if not request.to_retry_topic:
            # Where it came from stands in the message, and any writer to the group's topics may have written that.
            if is_system_topic(name):
                raise InvalidArgumentError(f"dead letter {frame.queue_offset} of {request.group} says it came from topic {name}")
            self._context.access.require_topic(caller, Action.WRITE, name)
        topic = topics.get(name)
        if topic is None:
            text = f"dead letter {frame.queue_offset} of {request.group} came from topic {name!r}, which does not exist"
            raise TopicNotFoundError(f"{text}; create it, or redrive to the group's retry topic", topic=name)
        # A group that its topic leaves, as one that is drained, takes what was accepted before; it is read to its end.
        topics.writable(name, 0, for_service=topic.takes_what_waited)
        copy = redriven(frame, request.group, topic.write_queues, to_retry_topic=request.to_retry_topic)
        return replace(copy, queue_id=topic.queue_of(priority_of(frame.properties))) if topic.priorities else copy
