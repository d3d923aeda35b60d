"""Dead letters: what there is of them, and sending them to where they came from.

Owns the two calls.  How far a group's dead letters were redriven is replicated state, moved on in the same log entry as the copies, so a
redrive that is repeated goes on where it was and sends nothing twice.
"""

from __future__ import annotations

import asyncio

from broker.api.limits import at_most, in_slices
from broker.context import ServiceFace
from broker.groups.group_topics import ensure_retry_topic
from broker.keyed_lock import Turns
from broker.requests import decoded
from broker.verified_reads import StoredMessages
from dledger_wire._pb import retry_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotReadyError, OutcomeUnknownError, TopicNotFoundError
from dledger_wire.frames.frame import Frame
from dledger_wire.names import DLQ_PREFIX, dlq_topic, retry_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.append.redelivery import Together, batches_of
from store.append.retry_copies import origin_of, redriven
from store.commands.redelivery import MarkRedriven

TIMEOUT_S = 5.0
READ_BYTES = 1 << 20
MAX_MESSAGES = 500


class DeadLetterService:
    """Answers at the master."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face
        self._turns = Turns()

    def register(self, server: Server) -> None:
        methods.DEAD_LETTERS.serve_bytes(server, self.dead_letters)
        methods.REDRIVE.serve_bytes(server, self.redrive)

    async def dead_letters(self, request: bytes, _context: CallContext) -> bytes:
        self._face.require_master()
        store = self._face.store
        asked = list(decoded(retry_pb2.DeadLettersRequest, request).groups)
        at_most(len(asked), "consumer groups")
        known = sorted(topic.name.removeprefix(DLQ_PREFIX) for topic in store.topics if topic.name.startswith(DLQ_PREFIX))
        reply = retry_pb2.DeadLettersResponse()
        async for group in in_slices(dict.fromkeys(asked) or known):
            topic = store.topics.get(dlq_topic(group))
            if topic is not None:
                low, high = store.reader.bounds(topic.name, 0, for_service=True)
                upto = max(low, store.send_backs.redriven(group))
                reply.queues.add(group=group, topic=topic.name, perm=topic.perm, min_offset=low, max_offset=high, redriven_upto=upto)
        return reply.SerializeToString()

    async def redrive(self, request: bytes, _context: CallContext) -> bytes:
        wish = decoded(retry_pb2.RedriveRequest, request)
        term = self._face.require_master()
        self._face.store.topics.require(dlq_topic(wish.group))
        try:
            async with asyncio.timeout(TIMEOUT_S), self._turns.take(wish.group):
                reply = await self._redrive(wish, term)
        except TimeoutError:
            raise OutcomeUnknownError(f"the redrive was not committed within {TIMEOUT_S:g} s; it may still be") from None
        return reply.SerializeToString()

    async def _redrive(self, wish: retry_pb2.RedriveRequest, term: int) -> retry_pb2.RedriveResponse:
        """Send the next of a group's dead letters, as many as fit one entry; alone in the group's turn."""
        store, dead = self._face.store, dlq_topic(wish.group)
        low, high = store.reader.bounds(dead, 0, for_service=True)
        first, upto = max(low, store.send_backs.redriven(wish.group)), min(wish.upto_offset, high)
        if first >= upto:
            return retry_pb2.RedriveResponse(next_offset=first)
        most = min(upto - first, wish.max_messages or MAX_MESSAGES, MAX_MESSAGES)
        stored = StoredMessages(self._face, dead, 0, for_service=True)
        frames = await stored.run(first, max_messages=most, max_bytes=READ_BYTES)
        if wish.to_retry_topic:
            await ensure_retry_topic(self._face, wish.group)
        copies: list[Frame] = []
        for frame in frames:
            try:
                copies.append(self._copy(frame, wish))
            except DledgerError:
                if not copies:
                    raise
                break  # those in front of it go; the next call tells of it
        if self._face.require_master() != term:
            raise NotReadyError("this node was master, was not, and is again; nothing was redriven")
        batches = store.prepare(batches_of(copies), for_service=True)
        for outcome in batches.outcomes:
            if outcome.error is not None:
                raise outcome.error
        next_offset = first + len(copies)
        command = store.command(MarkRedriven(group=wish.group, offset=next_offset))
        await self._turns.decide(wish.group, self._face.raft.propose(Together(batches, command)))
        return retry_pb2.RedriveResponse(redriven=len(copies), next_offset=next_offset)

    def _copy(self, frame: Frame, wish: retry_pb2.RedriveRequest) -> Frame:
        topics = self._face.store.topics
        name = retry_topic(wish.group) if wish.to_retry_topic else origin_of(frame)
        if not name:
            raise InvalidArgumentError(f"dead letter {frame.queue_offset} of {wish.group} does not say where it came from")
        topic = topics.get(name)
        if topic is None:
            text = f"dead letter {frame.queue_offset} of {wish.group} came from topic {name!r}, which does not exist"
            raise TopicNotFoundError(f"{text}; create it, or redrive to the group's retry topic", topic=name)
        topics.writable(name, 0)
        return redriven(frame, wish.group, topic.write_queues, to_retry_topic=wish.to_retry_topic)
