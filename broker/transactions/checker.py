"""Asking producers what became of transactions that nobody ended, on the master, in one term.

Owns the schedule of the questions and who can be asked.  An open half message is asked about when it is transactionTimeOut old (or as
old as it says itself), then every transactionCheckInterval, at most transactionCheckMax times; each time another attending member of its
producer group, if there is one.  The count is replicated before a question leaves, so that it holds across masters.  What nobody has
ended an interval after the last question is parked where operators look, and so is what has waited for half of fileReservedTime, before
the log's head is deleted under it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice

from broker.context import ServiceContext
from broker.transactions.half_message_reads import read_halves
from broker.transactions.producer_sessions import ProducerSessions
from broker.transactions.resolver import TransactionResolver
from dledger_wire.errors import CorruptFrameError, DledgerError, InvalidArgumentError, StorageDamagedError
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from dledger_wire.status import Perm
from store.append.half_messages import first_check_ms, given_up, producer_group
from store.commands.topics import CreateTopic
from store.commands.transactions import CountTransactionChecks, EndTransactions
from store.state.offset_runs import runs_of
from store.state.transactions import Outcome

# Nobody may read half messages; nobody but the system may write parked ones.
TOPICS = {HALF_TOPIC: Perm.WRITE, CHECK_MAX_TIME_TOPIC: Perm.READ}
LOOK_AFTER_MS = 1000  # most transactions have ended by then and are never looked at
AT_ONCE = 64
LONGEST_SLEEP_S = 1.0
RETRY_S = 0.2

_logger = logging.getLogger(__name__)

_Due = tuple[int, int, int]  # when to ask, half offset, when it was stored


class TransactionCheck:
    """``run`` is the one task; everything else of the term is the caller's."""

    def __init__(self, context: ServiceContext, ends: TransactionResolver, members: ProducerSessions) -> None:
        self._context = context
        self._store = context.store
        self._ends = ends
        self._members = members
        settings = context.settings.cluster
        self._timeout_ms = settings.broker.transactionTimeOut
        self._interval_ms = settings.broker.transactionCheckInterval
        self._check_max = settings.broker.transactionCheckMax
        self._keep_ms = settings.store.fileReservedTime // 2
        self._look_after_ms = min(LOOK_AFTER_MS, self._timeout_ms)
        self._looked_upto = 0
        self._look_at_ms = 0
        self._due: list[_Due] = []

    async def run(self) -> None:
        while True:
            try:
                await self._see_to_topics()
                await self._round()
            except DledgerError as error:
                _logger.info("transactions wait: %s", error.message)
                await asyncio.sleep(RETRY_S)

    async def _see_to_topics(self) -> None:
        proposals = []
        for name, perm in TOPICS.items():
            if self._store.topics.get(name) is None:
                command = CreateTopic(name=name, read_queues=1, write_queues=1, perm=int(perm), if_not_exists=True)
                proposals.append(self._context.raft.propose(self._store.command(command)))
        await asyncio.gather(*proposals)

    async def _round(self) -> None:
        """Everything that is due now, then wait."""
        self._members.expire()
        await self._forget_deleted()
        await self._look()
        while taken := self._take_due():
            try:
                await self._park(taken)
                await self._ask(taken)
            finally:
                self._schedule(taken)
        next_ms = min([self._look_at_ms, *(due_ms for due_ms, _, _ in self._due[:1])])
        await asyncio.sleep(min(LONGEST_SLEEP_S, max(0.001, (next_ms - self._now_ms()) / 1000)))

    def _now_ms(self) -> int:
        return self._store.time.now_ms()

    def _bounds(self) -> tuple[int, int]:
        return self._store.reader.bounds(HALF_TOPIC, 0, for_service=True)

    async def _forget_deleted(self) -> None:
        """Half messages that went with the head of the log are nobody's any more."""
        low, _ = self._bounds()
        if gone := list(self._store.transactions.open_from(0, low)):
            _logger.warning("transactions: %d half messages were deleted with the head of the log before they ended", len(gone))
            await self._context.raft.propose(self._store.command(EndTransactions(ended=runs_of(gone))))

    # What is open

    async def _look(self) -> None:
        """Put half messages that have been open for a while on the schedule."""
        _, high = self._bounds()
        while offsets := list(islice(self._store.transactions.open_from(self._looked_upto, high), AT_ONCE)):
            for offset, half in zip(offsets, await self._read(offsets), strict=True):
                if half is not None:
                    ripe_ms = half.store_timestamp + self._look_after_ms
                    if ripe_ms > self._now_ms():
                        self._looked_upto, self._look_at_ms = offset, ripe_ms
                        return
                    self._add(offset, half)
                self._looked_upto = offset + 1
        self._look_at_ms = self._now_ms() + self._look_after_ms

    def _add(self, offset: int, half: Frame) -> None:
        times, checked_ms = self._store.transactions.checks(offset)
        due_ms = checked_ms + self._interval_ms if times else first_check_ms(half, self._timeout_ms)
        heappush(self._due, (min(due_ms, half.store_timestamp + self._keep_ms), offset, half.store_timestamp))

    async def _read(self, offsets: Sequence[int]) -> list[Frame | None]:
        """The half messages; None for one that is damaged beyond repair, which waits for an operator."""
        try:
            return list(await read_halves(self._context, offsets))
        except (StorageDamagedError, CorruptFrameError) as error:
            if len(offsets) == 1:
                _logger.error("half message %d cannot be read: %s", offsets[0], error.message)
                return [None]
            return [half for offset in offsets for half in await self._read([offset])]

    # What is due

    def _take_due(self) -> list[_Due]:
        now_ms, taken = self._now_ms(), list[_Due]()
        while self._due and self._due[0][0] <= now_ms and len(taken) < AT_ONCE:
            due = heappop(self._due)
            if self._store.transactions.outcome(due[1]) is Outcome.OPEN:
                taken.append(due)
        return taken

    def _schedule(self, taken: Sequence[_Due]) -> None:
        """Those that are open still come again: an interval after they were asked about, or soon when that failed."""
        for due_ms, offset, stored_ms in taken:
            if self._store.transactions.outcome(offset) is Outcome.OPEN:
                again_ms = max(self._store.transactions.checks(offset)[1] + self._interval_ms, due_ms + int(RETRY_S * 1000))
                heappush(self._due, (again_ms, offset, stored_ms))

    def _is_hopeless(self, due: _Due) -> bool:
        return self._store.transactions.checks(due[1])[0] >= self._check_max or self._now_ms() >= due[2] + self._keep_ms

    async def _park(self, taken: Sequence[_Due]) -> None:
        offsets = sorted(due[1] for due in taken if self._is_hopeless(due))
        if offsets:
            halves = [(offset, half) for offset, half in self._with_frames(offsets, await self._read(offsets))]
            copies = [_given_up(half, self._store.transactions.checks(offset)[0]) for offset, half in halves]
            _logger.warning("transactions: %d that no producer knows of go to %s", len(halves), CHECK_MAX_TIME_TOPIC)
            await self._ends.park([offset for offset, _ in halves], copies)

    async def _ask(self, taken: Sequence[_Due]) -> None:
        offsets = sorted(due[1] for due in taken if not self._is_hopeless(due))
        halves = list(self._with_frames(offsets, await self._read(offsets))) if offsets else []
        if not halves:
            return
        await self._context.raft.propose(self._store.command(CountTransactionChecks(runs=runs_of(offset for offset, _ in halves))))
        for offset, half in halves:
            if self._store.transactions.outcome(offset) is Outcome.OPEN:
                times, _ = self._store.transactions.checks(offset)
                self._members.check(producer_group(half), offset, times, encode_frame(half))

    def _with_frames(self, offsets: Sequence[int], halves: Sequence[Frame | None]) -> Iterator[tuple[int, Frame]]:
        return ((offset, half) for offset, half in zip(offsets, halves, strict=True) if half is not None)


def _given_up(half: Frame, check_times: int) -> Frame:
    copy = given_up(half, check_times)
    try:
        encode_frame(copy)
    except InvalidArgumentError:  # no room for one more property
        copy.properties = dict(half.properties)
    return copy
