"""The Pop service: any number of consumers of a group lease messages of the same queues and acknowledge them one by one.

Owns what one request may ask for, and the wait of a request for messages.  Which ones it gets is ``pop_leases.py``'s, what becomes of them
``pop_receipts.py``'s.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from broker.api.fetch import check_reader, owner_of
from broker.context import ServiceContext
from broker.groups.pop_leases import MAX_BYTES, MAX_MESSAGES, TIMEOUT_S, Ask, How, Leased, Leases
from broker.groups.pop_receipts import ReceiptLanes, Receipts
from broker.groups.pop_turns import Turns
from broker.groups.pop_waits import Line, Seen, Waits
from broker.quotas.fetch import FetchQuota
from broker.support.limits import at_most, in_slices
from dledger_wire._pb import pop_pb2
from dledger_wire.errors import (
    DledgerError,
    InvalidArgumentError,
    OutcomeUnknownError,
    StaleLockError,
    StaleReceiptError,
    TopicNotFoundError,
)
from dledger_wire.names import check_group
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.security.principal import Principal
from dledger_wire.tasks import BackgroundTasks
from store.commands.pop import MAX_INVISIBLE_MS
from store.queues.fetch_filter import FetchFilter
from store.queues.slices import Slices
from store.queues.sql_filter import compiled
from store.state.pop import GroupQueue
from store.state.topics import Topic

MIN_INVISIBLE_MS = 1_000
MAX_WAIT_MS = 60_000
MAX_TAGS = 1024
MAX_RECEIPTS = 1024
DEFAULT_BYTES = 4 << 20
INT64 = 1 << 63

T = TypeVar("T")


class PopService:
    """Answers at the master.  Implements ``MasterService``."""

    name = "pop"

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._receipts = ReceiptLanes(context)
        self._leases = Leases(context, self._receipts)
        self._waits = Waits(context.store)
        self._slices = Slices()
        self._in_order: Counter[tuple[str, int]] = Counter()  # requests that wait for messages in order, by topic and queue
        self._turns = Turns()

    def register(self, server: Server) -> None:
        methods.RECEIVE.serve_payload(server, self.receive)
        methods.ACKNOWLEDGE.serve(server, self.acknowledge)
        methods.CHANGE_INVISIBLE.serve(server, self.change_invisible)
        methods.MOVE_TO_DEAD_LETTERS.serve(server, self.move_to_dead_letters)

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        """There is nothing to run."""

    async def stop(self) -> None:
        """Requests that wait look for another master."""
        self._turns.clear()
        self._context.store.wake_all()

    # Receive

    async def receive(self, request: pop_pb2.ReceiveRequest, caller: CallContext) -> bytes:
        context = self._context
        term = context.require_master()
        ask = _ask(request)
        topic = context.store.topics.readable(request.topic, 0)
        how = await self._how(request, caller)
        quota = await FetchQuota.paid(context.quotas, caller, request.group, request.topic)
        if quota is not None:
            ask = Ask(quota.most_messages(ask.max_messages), quota.most_bytes(ask.max_bytes))
        deadline_ms = context.env.clock.monotonic_ms() + min(request.wait_ms, MAX_WAIT_MS)
        line = (request.group, request.topic), (tuple(request.queue_ids), how.fifo)
        while True:
            with self._waits.taking(*line, ask.max_messages):
                leased, until_ms = await self._round(request, caller.principal, how, ask, term)
            left_ms = deadline_ms - context.env.clock.monotonic_ms()
            if leased or left_ms <= 0:
                break
            await self._wait(request, how, line, left_ms)
            context.require_master()
        size = sum(len(each.frame) for each in leased)
        if quota is not None:
            quota.given(size, len(leased))
        context.store.traffic.read(request.topic, len(leased), size)
        header = pop_pb2.ReceiveResponse(incarnation=topic.topic_epoch, invisible_until_ms=until_ms)
        for each in leased:
            header.leases.add(queue_id=each.queue_id, offset=each.offset, lease=each.lease, attempt=each.attempt, size=len(each.frame))
        return envelope.encode(header, [each.frame for each in leased])

    async def _how(self, request: pop_pb2.ReceiveRequest, caller: CallContext) -> How:
        at_most(len(request.tag_hashes), "tags", MAX_TAGS)
        turn = partial(self._slices.turn, owner_of(caller))
        tags = tuple(request.tag_hashes)
        wanted = FetchFilter(np.array(tags, np.int64) if tags else None, await compiled(request.sql, turn) if request.sql else None, turn)
        group = self._context.store.subscription_groups.of(request.group)
        most = request.max_attempts or group.retryMaxTimes + 1
        return How((tags, request.sql), wanted, request.invisible_ms, request.fifo or group.consumeMessageOrderly, most, request.from_end)

    async def _round(self, request: pop_pb2.ReceiveRequest, caller: Principal, how: How, ask: Ask, term: int) -> tuple[list[Leased], int]:
        """Take from one queue after the other what is there now."""
        check_reader(self._context, caller, request.topic, request.group)  # rights may be taken away during a long poll
        priorities = self._context.store.topics.require(request.topic).priorities
        leased: list[Leased] = []
        until_ms, size = 0, 0
        async for queue in in_slices(self._turns.order(self._queues(request), priorities=priorities)):
            if self._leases.next_ms(queue, how) != 0:
                continue
            left = Ask(ask.max_messages - len(leased), ask.max_bytes - size)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    found, found_until_ms = await self._leases.take(queue, how, left, term)
            except (TimeoutError, DledgerError) as error:
                if leased:  # of other queues: they are the caller's
                    break
                if isinstance(error, TimeoutError):
                    raise OutcomeUnknownError(f"leases were not committed within {TIMEOUT_S:g} s; they may still be") from None
                raise
            if found:
                leased += found
                until_ms = min(until_ms or found_until_ms, found_until_ms)
                size += sum(len(each.frame) for each in found)
            if len(leased) >= ask.max_messages or size >= ask.max_bytes:
                break
        return leased, until_ms

    def _queues(self, request: pop_pb2.ReceiveRequest) -> list[GroupQueue]:
        """Those of the queues asked for that no session of the group has locked.  StaleLockError when all are."""
        store = self._context.store
        asked = sorted(set(request.queue_ids)) or range(store.topics.readable(request.topic, 0).read_queues)
        for queue_id in asked[-1:]:
            store.topics.readable(request.topic, queue_id)
        found = [(request.group, request.topic, queue_id) for queue_id in asked]
        free = [queue for queue in found if not store.queue_locks.epoch(*queue)]
        if not free:
            text = f"group {request.group}: consumers in order have locked every queue of {request.topic} that was asked for"
            raise StaleLockError(f"{text}; use a group of its own")
        return free

    async def _wait(self, request: pop_pb2.ReceiveRequest, how: How, line: Line, left_ms: int) -> None:
        """Until messages may be there."""

        def look() -> Seen:
            self._context.require_master()
            queues = self._queues(request)
            due = [self._leases.next_ms(queue, how) for queue in queues]
            ready = sum(self._leases.ready(queue, how) for queue, due_ms in zip(queues, due, strict=True) if due_ms == 0)
            return Seen([queue[1:] for queue in queues], ready, min((due_ms for due_ms in due if due_ms), default=None))

        keys = [queue[1:] for queue in self._queues(request)]
        if how.fifo:
            self._in_order.update(keys)
        try:
            await self._waits.turn(*line, look, left_ms)
        finally:
            if how.fifo:
                self._in_order.subtract(keys)
                for key in keys:
                    if not self._in_order[key]:
                        del self._in_order[key]

    # Receipts

    async def acknowledge(self, request: pop_pb2.ReceiptsRequest, _caller: CallContext) -> pop_pb2.ReceiptsResponse:
        self._checked(request)

        async def acknowledge(queue: GroupQueue, receipts: Receipts) -> list[DledgerError | None]:
            counted = await _within("the acknowledgement", self._receipts.acknowledge(queue, receipts))
            if self._in_order.get(queue[1:]):
                self._context.store.wake([queue[1:]])
            return [None if each else stale() for each in counted]

        return _results(await self._each_queue(request.group, request.topic, request.receipts, acknowledge), 0)

    async def change_invisible(self, request: pop_pb2.ChangeInvisibleRequest, _caller: CallContext) -> pop_pb2.ReceiptsResponse:
        self._checked(request)
        if request.invisible_ms > MAX_INVISIBLE_MS:
            raise InvalidArgumentError(f"invisible for {request.invisible_ms} ms; expected 0 to {MAX_INVISIBLE_MS}")

        async def change(queue: GroupQueue, receipts: Receipts) -> list[DledgerError | None]:
            work = self._receipts.change(queue, receipts, request.invisible_ms, uncounted=request.uncounted)
            counted = await _within("the change", work)
            self._context.store.wake([queue[1:]])
            return [None if each else stale() for each in counted]

        now_ms = self._context.store.time.now_ms()  # the command comes after this
        results = await self._each_queue(request.group, request.topic, request.receipts, change)
        return _results(results, now_ms + request.invisible_ms)

    async def move_to_dead_letters(self, request: pop_pb2.ReceiptsRequest, _caller: CallContext) -> pop_pb2.ReceiptsResponse:
        term = self._checked(request)

        async def move(queue: GroupQueue, receipts: Receipts) -> list[DledgerError | None]:
            order = np.argsort(receipts.offsets, kind="stable")
            rising = Receipts(receipts.offsets[order], receipts.leases[order])

            async def moving() -> dict[int, DledgerError | None]:
                async with self._leases.locks.hold(queue):
                    return await self._receipts.bury(queue, rising, term)

            moved = await _within("moving to the dead letters", moving())
            if self._in_order.get(queue[1:]):
                self._context.store.wake([queue[1:]])
            return [moved.get(offset, stale()) for offset in receipts.offsets.tolist()]

        return _results(await self._each_queue(request.group, request.topic, request.receipts, move), 0)

    def _checked(self, request: pop_pb2.ReceiptsRequest | pop_pb2.ChangeInvisibleRequest) -> int:
        """The term of this master, for a request about messages of a topic that there still is."""
        term = self._context.require_master()
        check_group(request.group)
        if not 0 < len(request.receipts) <= MAX_RECEIPTS:
            raise InvalidArgumentError(f"{len(request.receipts)} receipts; expected 1 to {MAX_RECEIPTS}")
        topic: Topic = self._context.store.topics.require(request.topic)
        if request.incarnation not in ("", topic.topic_epoch):
            text = f"topic {topic.name!r} was deleted and recreated since the messages were received"
            raise TopicNotFoundError(text, topic=topic.name, incarnation=topic.topic_epoch)
        return term

    async def _each_queue(
        self,
        group: str,
        topic: str,
        receipts: Sequence[pop_pb2.Receipt],
        work: Callable[[GroupQueue, Receipts], Awaitable[list[DledgerError | None]]],
    ) -> list[DledgerError | None]:
        """What ``work`` says of each receipt, in their order; queues are worked on at the same time."""
        places: dict[int, list[int]] = {}
        results: list[DledgerError | None] = [stale()] * len(receipts)
        for number, receipt in enumerate(receipts):
            if receipt.offset < INT64 and 0 < receipt.lease < INT64:
                places.setdefault(receipt.queue_id, []).append(number)

        async def one(queue_id: int, numbers: list[int]) -> None:
            rows = [(receipts[number].offset, receipts[number].lease) for number in numbers]
            offsets, leases = np.array(rows, np.int64).T
            for number, result in zip(numbers, await work((group, topic, queue_id), Receipts(offsets, leases)), strict=True):
                results[number] = result

        await asyncio.gather(*(one(queue_id, numbers) for queue_id, numbers in places.items()))
        return results


def stale() -> StaleReceiptError:
    return StaleReceiptError("the message is no longer the caller's: it was delivered again, or the group is done with it")


def _ask(request: pop_pb2.ReceiveRequest) -> Ask:
    check_group(request.group)
    if not 0 < request.max_messages <= MAX_MESSAGES:
        raise InvalidArgumentError(f"{request.max_messages} messages to receive; expected 1 to {MAX_MESSAGES}")
    if not MIN_INVISIBLE_MS <= request.invisible_ms <= MAX_INVISIBLE_MS:
        raise InvalidArgumentError(f"invisible for {request.invisible_ms} ms; expected {MIN_INVISIBLE_MS} to {MAX_INVISIBLE_MS}")
    at_most(len(request.queue_ids), "queues")
    return Ask(request.max_messages, min(request.max_bytes or DEFAULT_BYTES, MAX_BYTES))


def _results(errors: Sequence[DledgerError | None], until_ms: int) -> pop_pb2.ReceiptsResponse:
    response = pop_pb2.ReceiptsResponse()
    for error in errors:
        if error is None:
            response.results.add(invisible_until_ms=until_ms)
        else:
            response.results.add(error=to_detail(error))
    return response


async def _within(what: str, work: Awaitable[T]) -> T:
    """The result of ``work``; OutcomeUnknownError when it takes longer."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await work
    except TimeoutError:
        raise OutcomeUnknownError(f"{what} was not committed within {TIMEOUT_S:g} s; it may still be") from None
