"""SendBack: messages that a consumer group could not process are stored again, for that group alone and after a delay.

Owns the steps of one request: offsets that were sent back before are recognised (``store/state/send_backs.py``); the others are read,
copied to the schedule topic or to the dead letters, and marked as sent back, with copies and mark in one log entry.  Requests for the same
group and queue are serialized, since the mark takes effect only when it is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from broker.context import ServiceContext
from broker.delivery.delivery_entry import batch_bytes, prepared_copies
from broker.delivery.verified_reads import StoredMessages
from broker.groups.group_topics import ensure_dead_letters, ensure_retry_topic
from broker.support.keyed_lock import KeyedLock
from dledger_wire._pb import retry_pb2
from dledger_wire.errors import (
    BusyError,
    CorruptFrameError,
    DledgerError,
    InvalidArgumentError,
    NotReadyError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    StorageDamagedError,
    TopicNotFoundError,
)
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.names import SCHEDULE_TOPIC, check_group, retry_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.transport import CallContext, Server
from store.append.redelivery import AtomicPayload
from store.append.retry_copies import RetryRule, sent_back
from store.commands.redelivery import MarkSentBack
from store.state.offset_runs import runs_of
from store.state.send_backs import MAX_RUNS, GroupQueue

TIMEOUT_S = 5.0
MAX_OFFSETS = 4096
READ_MESSAGES = 500


@dataclass(slots=True)
class _Work:
    """One request in progress; ``results`` has one for each offset decided so far."""

    queue: GroupQueue
    term: int  # in a later term, what was read about the queue may be outdated
    rule: RetryRule
    results: dict[int, retry_pb2.SendBackResult]
    created_pos: int  # of the topic, whose messages these are

    def decide(self, offset: int, outcome: retry_pb2.SendBackOutcome.ValueType, times: int = 0, error: DledgerError | None = None) -> None:
        detail = to_detail(error) if error is not None else None
        self.results[offset] = retry_pb2.SendBackResult(offset=offset, outcome=outcome, reconsume_times=times, error=detail)


class SendBackService:
    """Takes messages back on the master."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._locks = KeyedLock()

    def register(self, server: Server) -> None:
        methods.SEND_BACK.serve(server, self.send_back)

    async def send_back(self, request: retry_pb2.SendBackRequest, _caller: CallContext) -> retry_pb2.SendBackResponse:
        term = self._context.require_master()
        if not 0 < len(request.offsets) <= MAX_OFFSETS:
            raise InvalidArgumentError(f"{len(request.offsets)} offsets to send back; expected 1 to {MAX_OFFSETS}")
        rule = self._rule(request)
        topic = self._context.store.topics.require(request.topic)
        if request.incarnation not in ("", topic.topic_epoch):
            text = f"topic {topic.name!r} was deleted and recreated since the messages were read"
            raise TopicNotFoundError(text, topic=topic.name, incarnation=topic.topic_epoch)
        work = _Work((request.group, request.topic, request.queue_id), term, rule, {}, topic.created_pos)
        try:
            async with asyncio.timeout(TIMEOUT_S), self._locks.hold(work.queue):
                await self._take_back(work, sorted(set(request.offsets)))
        except TimeoutError:
            raise OutcomeUnknownError(f"sending back was not committed within {TIMEOUT_S:g} s; it may still be") from None
        return retry_pb2.SendBackResponse(results=[work.results[offset] for offset in request.offsets])

    def _rule(self, request: retry_pb2.SendBackRequest) -> RetryRule:
        group = self._context.store.subscription_groups.of(check_group(request.group))
        known = self._context.store.topics.get(retry_topic(request.group))
        queues = known.write_queues if known is not None else group.retryQueueNums
        return RetryRule(request.group, request.delay_level, request.max_reconsume_times or group.retryMaxTimes, queues)

    async def _take_back(self, work: _Work, offsets: Sequence[int]) -> None:
        """Decide every offset."""
        store = self._context.store
        sent, committed = store.send_backs.sent(work.queue), store.consumer_offsets.position(*work.queue)
        ahead = sent.count_beyond(committed)  # runs behind it stay until the next mark, which is what would be refused here
        low, high = store.reader.bounds(work.queue[1], work.queue[2])
        if offsets[-1] >= high:
            text = f"{work.queue[1]}/{work.queue[2]}: no offset {offsets[-1]}, the newest is {high - 1}"
            raise OffsetOutOfRangeError(text, min_offset=low, max_offset=high)
        for offset in offsets:
            if offset in sent:
                work.decide(offset, retry_pb2.SEND_BACK_DUPLICATE)
            elif offset < committed:
                work.decide(offset, retry_pb2.SEND_BACK_BEHIND)
            elif offset < low:
                work.decide(offset, retry_pb2.SEND_BACK_GONE)
        left = [offset for offset in offsets if offset not in work.results]
        if left and ahead >= MAX_RUNS:
            group, topic, queue_id = work.queue
            text = f"group {group} has sent back {ahead} runs of {topic}/{queue_id} beyond its committed offset {committed}"
            raise BusyError(f"{text}; expected a commit first")
        for first, end in runs_of(left):
            while first < end:
                first = await self._store_run(work, first, end)

    async def _store_run(self, work: _Work, first: int, end: int) -> int:
        """Send back the messages from ``first`` on, as many as one read returns; returns the next offset."""
        _, topic, queue_id = work.queue
        limit = min(end - first, READ_MESSAGES)
        try:
            frames = await StoredMessages(self._context, topic, queue_id).run(
                first, max_messages=limit, max_bytes=batch_bytes(self._context)
            )
        except (StorageDamagedError, CorruptFrameError) as error:  # no peer can repair it now; later messages do not wait for it
            work.decide(first, retry_pb2.SEND_BACK_REFUSED, error=error)
            return first + 1
        copies: list[Frame] = []
        stored: list[int] = []
        for frame in frames:
            copy = sent_back(frame, work.rule)
            offset = frame.queue_offset
            try:
                encode_frame(copy)
            except InvalidArgumentError as error:  # no room for the properties it needs
                work.decide(offset, retry_pb2.SEND_BACK_REFUSED, error=error)
                continue
            dead = work.rule.is_dead(frame)
            work.decide(offset, retry_pb2.SEND_BACK_DEAD if dead else retry_pb2.SEND_BACK_RETRY, copy.reconsume_times)
            copies.append(copy)
            stored.append(offset)
        if copies:
            await self._ensure_topics(copies, work.rule.group)
            await self._store(work, copies, stored)
        return first + len(frames)

    async def _ensure_topics(self, copies: Sequence[Frame], group: str) -> None:
        delayed = [copy for copy in copies if copy.topic == SCHEDULE_TOPIC]
        if len(delayed) < len(copies):
            await ensure_dead_letters(self._context, group)
        if delayed:
            await ensure_retry_topic(self._context, group)
            if self._context.store.topics.get(SCHEDULE_TOPIC) is None:
                raise NotReadyError("the schedule topic does not exist yet; nothing was stored")

    async def _store(self, work: _Work, copies: Sequence[Frame], offsets: Sequence[int]) -> None:
        """Store copies and their mark in one entry.  If one copy is refused, each is stored alone, so that only that one fails."""
        store = self._context.store
        if self._context.require_master() != work.term:
            raise NotReadyError("leadership changed during the request; nothing was stored")
        if store.topics.require(work.queue[1]).created_pos != work.created_pos:
            raise TopicNotFoundError(f"topic {work.queue[1]!r} was deleted and recreated", topic=work.queue[1])
        batches, problem = prepared_copies(store, copies)
        if problem is not None and len(copies) == 1:
            work.decide(offsets[0], retry_pb2.SEND_BACK_REFUSED, error=problem)
            return
        if problem is not None:
            for copy, offset in zip(copies, offsets, strict=True):
                await self._store(work, [copy], [offset])
            return
        group, topic, queue_id = work.queue
        mark = store.command(MarkSentBack(group=group, topic=topic, queue_id=queue_id, runs=runs_of(offsets)))
        await self._locks.commit(work.queue, self._context.raft.propose(AtomicPayload(batches, mark)))
        mark.result()
