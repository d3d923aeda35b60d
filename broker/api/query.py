"""The Query service: single messages by key, id or position, and which groups consumed one.  Any replica answers, of what it has applied.

Owns the translation between requests and ``store.key_index.message_query``.  A single message is asked for by people and
tools, so permissions to consume do not count here.
"""

from __future__ import annotations

from broker.api.limits import MAX_NAME_CHARS, at_most, in_slices
from broker.context import ServiceFace
from broker.requests import decoded
from dledger_wire._pb import query_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import CallContext, Server
from store.key_index.index_file import NO_LIMIT, Window
from store.key_index.message_query import Answer


class QueryService:
    """Answers at every replica."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face

    def register(self, server: Server) -> None:
        methods.QUERY_MESSAGES.serve_bytes(server, self.query_messages)
        methods.CONSUMED.serve_bytes(server, self.consumed)

    async def query_messages(self, request: bytes, _context: CallContext) -> bytes:
        wish = decoded(query_pb2.QueryMessagesRequest, request)
        store = self._face.store
        answer = await self._answer(wish)
        reply = query_pb2.QueryMessagesResponse(
            complete=answer.complete,
            before_pos=answer.before_pos,
            applied_index=store.applied_index,
            node_id=self._face.settings.node.id,
        )
        for found in answer.messages:
            frame = found.frame
            reply.messages.add(
                pos=found.pos, topic=frame.topic, queue_id=frame.queue_id, queue_offset=frame.queue_offset, size=len(found.data)
            )
        return envelope.encode(reply, [] if wish.places_only else [found.data for found in answer.messages])

    async def _answer(self, wish: query_pb2.QueryMessagesRequest) -> Answer:
        at_most(max(len(wish.key), len(wish.unique_id)), "characters to look for", MAX_NAME_CHARS)
        store, query = self._face.store, self._face.store.query
        asked = [bool(wish.key), bool(wish.unique_id), wish.HasField("pos")]
        if sum(asked) != 1 or (wish.key and not wish.topic):
            raise InvalidArgumentError("expected a topic and a key, or a unique id, or a position")
        if wish.HasField("pos"):
            found = await query.at(wish.pos)
            return Answer([found] if found is not None else [])
        window = Window(wish.begin_ms, wish.end_ms or NO_LIMIT, wish.before_pos or NO_LIMIT)
        if wish.topic:
            store.topics.require(wish.topic)
        if wish.key:
            return await query.by_key(wish.topic, wish.key, window, most=wish.max_messages, max_bytes=wish.max_bytes)
        topics = [wish.topic] if wish.topic else sorted(topic.name for topic in store.topics)
        return await query.by_unique_id(topics, wish.unique_id, window, most=wish.max_messages, max_bytes=wish.max_bytes)

    async def consumed(self, request: bytes, _context: CallContext) -> bytes:
        wish = decoded(query_pb2.ConsumedRequest, request)
        store = self._face.store
        store.topics.require(wish.topic)
        reply = query_pb2.ConsumedResponse(applied_index=store.applied_index)
        async for group in in_slices(store.consumer_offsets.groups()):
            committed = store.consumer_offsets.known_position(group, wish.topic, wish.queue_id)
            if committed is None:
                continue
            place = (group, wish.topic, wish.queue_id)
            passed = committed > wish.offset
            after_ms, by_ms = store.commit_times.passed(*place, wish.offset) if passed else (0, 0)
            sent_back = not passed and wish.offset in store.send_backs.sent(place)
            reply.groups.add(group=group, committed=committed, sent_back=sent_back, after_ms=after_ms, by_ms=by_ms)
        return reply.SerializeToString()
