"""Leases of the messages of one queue: which ones a group's consumers get next.

Owns the choice.  Messages that are free again come before new ones; those that were delivered too often become dead letters instead.  In
order, only the first message of each message group that is not done is given out, and those behind it wait.  The requests of consumers
that wait for one queue are served together: one look, one read, one command in the log.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from broker.context import ServiceContext
from broker.groups.pop_reads import LeaseReader, Message, Read, message_groups
from broker.groups.pop_receipts import ReceiptLanes, Receipts
from broker.support.joint_work import JointWork
from broker.support.keyed_lock import KeyedLock
from dledger_wire.errors import NotReadyError
from store.commands.consumer_groups import CommitOffsets, OffsetRow
from store.commands.pop import Granted, LeaseMessages
from store.queues.fetch_filter import FetchFilter
from store.state.offset_runs import runs_of
from store.state.pop import MAX_IN_FLIGHT, Free, GroupQueue

MAX_MESSAGES = 1024  # in one command
MAX_BYTES = 8 << 20
MAX_WAITING = 8192  # messages of a queue in order that are not done, before it is looked at no further
IN_ORDER_MESSAGES = 256  # looked at for the next ones of message groups
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class How:
    """What consumers ask for; those who ask for the same are served together.  ``key`` stands for all of it."""

    key: Hashable
    wanted: FetchFilter = field(compare=False)
    invisible_ms: int
    fifo: bool
    max_attempts: int
    from_end: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """How much one consumer takes."""

    max_messages: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Leased:
    """A message that a consumer gets."""

    queue_id: int
    offset: int
    lease: int
    attempt: int
    frame: bytes | memoryview


@dataclass(slots=True)
class _Choice:
    """What a lease is to be for; ``begin`` and ``end`` as in its command."""

    begin: int
    end: int
    low: int
    found: Read = field(default_factory=Read)
    waiting: list[int] = field(default_factory=list)
    groups: dict[int, int] = field(default_factory=dict)  # by offset

    def leave(self, count: int) -> None:
        """Lease the first ``count`` messages only: the others that are new are free for the next one."""
        self.waiting += [offset for offset, _ in self.found.messages[count:] if offset >= self.begin]
        del self.found.messages[count:]

    def command(self, queue: GroupQueue, invisible_ms: int) -> LeaseMessages | None:
        """None when there is nothing to say."""
        offsets = sorted(offset for offset, _ in self.found.messages)
        new = [offset for offset in offsets if offset >= self.begin]
        if not offsets and not self.found.skipped and not self.found.damaged and not self.low and self.begin == self.end:
            return None
        group, topic, queue_id = queue
        return LeaseMessages(
            group=group,
            topic=topic,
            queue_id=queue_id,
            invisible_ms=invisible_ms,
            begin=self.begin,
            end=self.end,
            new=runs_of(new),
            again=runs_of(offset for offset in offsets if offset < self.begin),
            waiting=runs_of(sorted(self.waiting)),
            skipped=runs_of(sorted(self.found.skipped)),
            damaged=runs_of(sorted(self.found.damaged)),
            low=self.low,
            message_groups=tuple(self.groups[offset] for offset in sorted((*new, *self.waiting))) if self.groups else (),
        )


class Leases:
    """Of one master."""

    def __init__(self, context: ServiceContext, receipts: ReceiptLanes) -> None:
        self._context, self._receipts = context, receipts
        self.locks = KeyedLock()
        self._joint: JointWork[Ask, tuple[list[Leased], int]] = JointWork(self.locks)

    async def take(self, queue: GroupQueue, how: How, ask: Ask, term: int) -> tuple[list[Leased], int]:
        """Messages of the queue for a consumer, and until when they are invisible; none when there are none now."""

        async def serve(asks: Sequence[Ask]) -> list[tuple[list[Leased], int]]:
            return await self._serve(queue, how, asks, term)

        return await self._joint.do(queue, how, ask, serve)

    def next_ms(self, queue: GroupQueue, how: How) -> int | None:
        """When messages of the queue may be leased by what is known now: 0 for at once, None for not before something changes."""
        pop, now_ms = self._context.store.pop, self._context.store.time.now_ms()
        low, high = self._context.store.reader.bounds(*queue[1:])
        span = pop.span(queue)
        if span is None:
            return 0
        floor, end = span
        if how.fifo:
            heads = pop.heads(queue, now_ms)
            if len(heads.free.offsets) or (max(end, low) < high and pop.left(queue) < MAX_WAITING):
                return 0
            return heads.next_ms
        if max(end, low) < high and end - floor < MAX_IN_FLIGHT:
            return 0
        earliest = pop.earliest_ms(queue)
        return 0 if earliest is not None and earliest <= now_ms else earliest

    def ready(self, queue: GroupQueue, how: How) -> int:
        """How many messages may be leased at most where ``next_ms`` is 0."""
        span = self._context.store.pop.span(queue)
        if span is None:
            return MAX_MESSAGES
        low, high = self._context.store.reader.bounds(*queue[1:])
        return len(self._free(queue, how, MAX_MESSAGES).offsets) + max(0, high - max(span[1], low))

    async def _serve(self, queue: GroupQueue, how: How, asks: Sequence[Ask], term: int) -> list[tuple[list[Leased], int]]:
        """Lease what these consumers take in all, as far as there is so much, and share it out."""
        store = self._context.store
        span = store.pop.span(queue)
        if span is None:
            await self._begin(queue, how)
            span = store.pop.span(queue)
        if span is None or store.queue_locks.epoch(*queue):
            return [([], 0) for _ in asks]
        most, max_bytes = min(sum(ask.max_messages for ask in asks), MAX_MESSAGES), min(sum(ask.max_bytes for ask in asks), MAX_BYTES)
        low, _ = store.reader.bounds(*queue[1:])
        choice = _Choice(span[1], span[1], low if low > span[0] else 0)
        free = await self._living(queue, how, most, term, choice)
        reader = LeaseReader(self._context, queue[1], queue[2], how.wanted)
        there = free.offsets >= low
        await reader.earlier(free.offsets[there], free.attempts[there], choice.found, max_bytes)
        if how.fifo:
            await self._new_in_order(queue, reader, choice, most, max_bytes)
        elif span[1] - span[0] < MAX_IN_FLIGHT and len(choice.found.messages) < most and choice.found.size_bytes < max_bytes:
            choice.end = max(choice.end, await reader.new(max(span[1], low), choice.found, most=most, max_bytes=max_bytes))
        parts = _shared(choice.found.messages, asks)
        choice.leave(sum(map(len, parts)))
        granted = await self._propose(queue, choice.command(queue, how.invisible_ms), term)
        if granted is None:
            return [([], 0) for _ in asks]
        self._context.measures.redelivered.count(queue[0], again=int(np.count_nonzero(granted.attempts > 1)))
        attempts = dict(zip(granted.offsets.tolist(), granted.attempts.tolist(), strict=True))
        return [
            ([Leased(queue[2], at, granted.lease, attempts[at], frame) for at, frame in part if at in attempts], granted.until_ms)
            for part in parts
        ]

    async def _propose(self, queue: GroupQueue, command: LeaseMessages | None, term: int) -> Granted | None:
        if command is None:
            return None
        if self._context.require_master() != term:
            raise NotReadyError("leadership changed during the request; nothing was leased")
        prepared = self._context.store.command(command)
        await self.locks.commit(queue, self._context.raft.propose(prepared))
        return prepared.result()

    async def _begin(self, queue: GroupQueue, how: How) -> None:
        """Let the group begin in all queues of the topic, which counts if it has no position there yet."""
        group, topic, _ = queue
        store = self._context.store
        lows, highs = store.reader.bounds_of_topic(topic)
        rows = tuple(
            OffsetRow(topic, queue_id, offset, store.consumer_offsets.generation(group, topic, queue_id))
            for queue_id, offset in enumerate(highs if how.from_end else lows)
        )
        await self._context.command(CommitOffsets(group=group, offsets=rows, initial=True), TIMEOUT_S)

    async def _living(self, queue: GroupQueue, how: How, most: int, term: int, choice: _Choice) -> Free:
        """The first messages that are free and were not delivered too often; the others become dead letters."""
        free = self._free(queue, how, most)
        dead = free.attempts >= how.max_attempts
        if not dead.any():
            return free
        moved = await self._receipts.bury(queue, Receipts(free.offsets[dead], free.leases[dead]), term)
        choice.found.damaged += [offset for offset, error in moved.items() if error is not None]
        free = self._free(queue, how, most)
        living = free.attempts < how.max_attempts
        return Free(free.offsets[living], free.attempts[living], free.leases[living])

    def _free(self, queue: GroupQueue, how: How, most: int) -> Free:
        pop, now_ms = self._context.store.pop, self._context.store.time.now_ms()
        if not how.fifo:
            return pop.free(queue, now_ms, most)
        free = pop.heads(queue, now_ms).free
        return Free(free.offsets[:most], free.attempts[:most], free.leases[:most])

    async def _new_in_order(self, queue: GroupQueue, reader: LeaseReader, choice: _Choice, most: int, max_bytes: int) -> None:
        """Look at the next messages: the first ones of message groups that have no other are leased, the others wait."""
        pop, found = self._context.store.pop, choice.found
        low, high = self._context.store.reader.bounds(*queue[1:])
        begun = pop.heads(queue, 0).groups
        left = MAX_WAITING - pop.left(queue)
        at = max(choice.end, low)
        while len(found.messages) < most and found.size_bytes < max_bytes and left > 0 and at < high:
            read = Read()
            at = await reader.new(at, read, most=min(left, IN_ORDER_MESSAGES), max_bytes=MAX_BYTES)
            for message, group in zip(read.messages, message_groups(read), strict=True):
                if len(found.messages) >= most:
                    at = message[0]
                    break
                left -= 1
                choice.groups[message[0]] = group
                if group in begun:
                    choice.waiting.append(message[0])
                else:
                    begun.add(group)
                    found.messages.append(message)
            found.damaged += [offset for offset in read.damaged if offset < at]
        choice.end = max(choice.end, at)


def _shared(messages: Sequence[Message], asks: Sequence[Ask]) -> list[Sequence[Message]]:
    """The messages for each consumer, in its turn as much as it takes; the rest is for none."""
    parts: list[Sequence[Message]] = []
    at = 0
    for ask in asks:
        first, size = at, 0
        while at < len(messages) and at - first < ask.max_messages and (at == first or size + len(messages[at][1]) <= ask.max_bytes):
            size += len(messages[at][1])
            at += 1
        parts.append(messages[first:at])
    return parts
