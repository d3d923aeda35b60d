"""The Query service: single messages by key, id or position, and which groups consumed one.  Any replica answers from what it applied.

Owns the translation between requests and ``store.key_index.message_query``.  Operators and tools use it, so the permissions of topics
(perm) are not checked; the rights of users are.
"""

from __future__ import annotations

from functools import partial

from broker.context import ServiceContext
from broker.support.limits import MAX_NAME_CHARS, at_most, in_slices
from dledger_wire._pb import query_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.security import Action
from store.key_index.index_file import NO_LIMIT, Window
from store.key_index.message_query import Answer


class QueryService:
    """Answers at every replica."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def register(self, server: Server) -> None:
        methods.QUERY_MESSAGES.serve_payload(server, self.query_messages)
        methods.CONSUMED.serve(server, self.consumed)

    async def query_messages(self, request: query_pb2.QueryMessagesRequest, caller: CallContext) -> bytes:
        store = self._context.store
        if request.topic:
            self._context.access.require_topic(caller.principal, Action.READ, request.topic)
        answer = await self._answer(request)
        reply = query_pb2.QueryMessagesResponse(
            complete=answer.complete,
            before_pos=answer.before_pos,
            applied_index=store.applied_index,
            node_id=self._context.settings.node.id,
            replica=self._context.answering_replica(),
        )
        reads = partial(self._context.access.may_topic, caller.principal, Action.READ)
        shown = [found for found in answer.messages if reads(found.frame.topic)]
        for found in shown:
            frame = found.frame
            reply.messages.add(
                pos=found.pos, topic=frame.topic, queue_id=frame.queue_id, queue_offset=frame.queue_offset, size=len(found.data)
            )
        return envelope.encode(reply, [] if request.places_only else [found.data for found in shown])

    async def _answer(self, request: query_pb2.QueryMessagesRequest) -> Answer:
        at_most(max(len(request.key), len(request.unique_id)), "characters to look for", MAX_NAME_CHARS)
        store, query = self._context.store, self._context.store.query
        asked = [bool(request.key), bool(request.unique_id), request.HasField("pos")]
        if sum(asked) != 1 or (request.key and not request.topic):
            raise InvalidArgumentError("expected a topic and a key, or a unique id, or a position")
        if request.HasField("pos"):
            found = await query.at(request.pos)
            return Answer([found] if found is not None else [])
        window = Window(request.begin_ms, request.end_ms or NO_LIMIT, request.before_pos or NO_LIMIT)
        if request.topic:
            store.topics.require(request.topic)
        if request.key:
            return await query.by_key(request.topic, request.key, window, max_results=request.max_messages, max_bytes=request.max_bytes)
        topics = [request.topic] if request.topic else sorted(topic.name for topic in store.topics)
        return await query.by_unique_id(topics, request.unique_id, window, max_results=request.max_messages, max_bytes=request.max_bytes)

    async def consumed(self, request: query_pb2.ConsumedRequest, caller: CallContext) -> query_pb2.ConsumedResponse:
        store = self._context.store
        store.topics.require(request.topic)
        reply = query_pb2.ConsumedResponse(applied_index=store.applied_index)
        seen = self._context.access.seen_groups(caller.principal, store.consumer_offsets.groups())
        async for group in in_slices(seen):
            committed = store.consumer_offsets.known_position(group, request.topic, request.queue_id)
            if committed is None:
                continue
            place = (group, request.topic, request.queue_id)
            passed = committed > request.offset
            after_ms, by_ms = store.offset_history.passed(*place, request.offset) if passed else (0, 0)
            sent_back = not passed and request.offset in store.send_backs.sent(place)
            reply.groups.add(group=group, committed=committed, sent_back=sent_back, after_ms=after_ms, by_ms=by_ms)
        return reply
