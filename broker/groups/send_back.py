"""SendBack: messages a consumer group could not process are stored once more, for that group alone and after a delay.

Owns the steps of one request: what was sent back before is recognised by its place (``store/state/send_backs.py``), the rest is read,
copied into the schedule topic or among the dead letters, and marked as sent back, copies and mark in one log entry.  Requests for the same
group and queue take turns, since the mark counts only once it is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from broker.context import ServiceContext
from broker.groups.group_topics import ensure_dead_letters, ensure_retry_topic
from broker.keyed_lock import KeyedLock
from broker.verified_reads import StoredMessages
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
from store.append.redelivery import AtomicPayload, batches_of
from store.append.retry_copies import RetryRule, sent_back
from store.commands.redelivery import MarkSentBack
from store.state.offset_runs import runs_of
from store.state.send_backs import MAX_RUNS, GroupQueue

TIMEOUT_S = 5.0
MAX_OFFSETS = 4096
READ_BYTES = 1 << 20
READ_MESSAGES = 500


@dataclass(slots=True)
class _Work:
    """One request on its way: an answer for each offset that has one."""

    place: GroupQueue
    term: int  # in another one, what was found out about the place may not hold any more
    rule: RetryRule
    answers: dict[int, retry_pb2.SendBackResult]

    def answer(self, offset: int, outcome: retry_pb2.SendBackOutcome.ValueType, times: int = 0, error: DledgerError | None = None) -> None:
        detail = to_detail(error) if error is not None else None
        self.answers[offset] = retry_pb2.SendBackResult(offset=offset, outcome=outcome, reconsume_times=times, error=detail)


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
        work = _Work((request.group, request.topic, request.queue_id), term, rule, {})
        try:
            async with asyncio.timeout(TIMEOUT_S), self._locks.hold(work.place):
                await self._take_back(work, sorted(set(request.offsets)))
        except TimeoutError:
            raise OutcomeUnknownError(f"sending back was not committed within {TIMEOUT_S:g} s; it may still be") from None
        reply = retry_pb2.SendBackResponse(results=[work.answers[offset] for offset in request.offsets])
        return reply

    def _rule(self, request: retry_pb2.SendBackRequest) -> RetryRule:
        group = self._context.store.subscription_groups.of(check_group(request.group))
        known = self._context.store.topics.get(retry_topic(request.group))
        queues = known.write_queues if known is not None else group.retryQueueNums
        return RetryRule(request.group, request.delay_level, request.max_reconsume_times or group.retryMaxTimes, queues)

    async def _take_back(self, work: _Work, offsets: Sequence[int]) -> None:
        """Answer for every offset."""
        store = self._context.store
        sent, committed = store.send_backs.sent(work.place), store.consumer_offsets.position(*work.place)
        if len(sent) >= MAX_RUNS:
            group, topic, queue_id = work.place
            text = f"group {group} has sent back {len(sent)} runs of {topic}/{queue_id} in front of its committed offset {committed}"
            raise BusyError(f"{text}; expected it to commit")
        low, high = store.reader.bounds(work.place[1], work.place[2])
        if offsets[-1] >= high:
            text = f"{work.place[1]}/{work.place[2]}: offset {offsets[-1]} is not there, the newest is {high - 1}"
            raise OffsetOutOfRangeError(text, min_offset=low, max_offset=high)
        for offset in offsets:
            if offset in sent:
                work.answer(offset, retry_pb2.SEND_BACK_DUPLICATE)
            elif offset < committed:
                work.answer(offset, retry_pb2.SEND_BACK_BEHIND)
            elif offset < low:
                work.answer(offset, retry_pb2.SEND_BACK_GONE)
        for first, upto in runs_of(offset for offset in offsets if offset not in work.answers):
            while first < upto:
                first = await self._store_run(work, first, upto)

    async def _store_run(self, work: _Work, first: int, upto: int) -> int:
        """Send back the messages from ``first`` on, as many as are read at once; returns where to go on."""
        _, topic, queue_id = work.place
        most = min(upto - first, READ_MESSAGES)
        try:
            frames = await StoredMessages(self._context, topic, queue_id).run(first, max_messages=most, max_bytes=READ_BYTES)
        except (StorageDamagedError, CorruptFrameError) as error:  # nobody can mend it now; those behind it need not wait
            work.answer(first, retry_pb2.SEND_BACK_REFUSED, error=error)
            return first + 1
        copies: list[Frame] = []
        stored: list[int] = []
        for frame in frames:
            copy = sent_back(frame, work.rule)
            offset = frame.queue_offset
            try:
                encode_frame(copy)
            except InvalidArgumentError as error:  # no room for the properties it needs
                work.answer(offset, retry_pb2.SEND_BACK_REFUSED, error=error)
                continue
            dead = work.rule.is_dead(frame)
            work.answer(offset, retry_pb2.SEND_BACK_DEAD if dead else retry_pb2.SEND_BACK_RETRY, copy.reconsume_times)
            copies.append(copy)
            stored.append(offset)
        if copies:
            await self._ensure_topics(copies, work.rule.group)
            await self._store(work, copies, stored)
        return first + len(frames)

    async def _ensure_topics(self, copies: Sequence[Frame], group: str) -> None:
        parked = [copy for copy in copies if copy.topic == SCHEDULE_TOPIC]
        if len(parked) < len(copies):
            await ensure_dead_letters(self._context, group)
        if parked:
            await ensure_retry_topic(self._context, group)
            if self._context.store.topics.get(SCHEDULE_TOPIC) is None:
                raise NotReadyError("the schedule topic is not there yet; nothing was stored")

    async def _store(self, work: _Work, copies: Sequence[Frame], offsets: Sequence[int]) -> None:
        """Copies and their mark in one entry.  Whoever cannot be stored is told apart from the others."""
        store = self._context.store
        if self._context.require_master() != work.term:
            raise NotReadyError("this node was master, was not, and is again; nothing was stored")
        batches = store.prepare(batches_of(copies), for_service=True)
        problem = next((outcome.error for outcome in batches.outcomes if outcome.error is not None), None)
        if isinstance(problem, TopicNotFoundError):
            raise NotReadyError(f"{problem.message}; nothing was stored")
        if problem is not None and len(copies) == 1:
            work.answer(offsets[0], retry_pb2.SEND_BACK_REFUSED, error=problem)
            return
        if problem is not None:
            for copy, offset in zip(copies, offsets, strict=True):
                await self._store(work, [copy], [offset])
            return
        group, topic, queue_id = work.place
        mark = store.command(MarkSentBack(group=group, topic=topic, queue_id=queue_id, runs=runs_of(offsets)))
        await self._locks.commit(work.place, self._context.raft.propose(AtomicPayload(batches, mark)))
