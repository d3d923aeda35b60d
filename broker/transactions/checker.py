"""Transaction checks: the master asks producers about transactions that were not ended.  One instance a term.

Owns the schedule of the checks.  An open half message is checked when it is transactionTimeOut old (or as old as its own property says),
then every transactionCheckInterval, at most transactionCheckMax times; each check goes to another member of its producer group, if there
is one.  The count is replicated before a check is sent, so it holds across masters.  A transaction that is still open an interval after
its last check is moved to TRANS_CHECK_MAX_TIME_TOPIC for operators, and so is one that waited for half of fileReservedTime, before the
log's head is deleted with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import islice

from broker.context import ServiceContext
from broker.delivery.delivery_entry import log_changed
from broker.transactions.half_message_reads import read_halves, verify_halves
from broker.transactions.producer_sessions import ProducerSessions
from broker.transactions.resolver import TransactionResolver
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from dledger_wire.status import Perm
from store.append.half_messages import first_check_ms, given_up, producer_group
from store.append.redelivery import fitting, is_changed
from store.commands.topics import CreateTopic
from store.commands.transactions import CountTransactionChecks, EndTransactions
from store.state.offset_runs import runs_of
from store.state.transactions import Outcome

# Half messages cannot be read by consumers; only the system writes the transactions it gave up on.
TOPICS = {HALF_TOPIC: Perm.WRITE, CHECK_MAX_TIME_TOPIC: Perm.READ}
SCAN_AFTER_MS = 1000  # most transactions have ended by then and are never read
AT_ONCE = 64
MAX_SLEEP_S = 1.0
RETRY_S = 0.2

_logger = logging.getLogger(__name__)

_Due = tuple[int, int, int]  # when to check, half offset, store time


class TransactionChecker:
    """``run`` is its one task."""

    def __init__(self, context: ServiceContext, resolver: TransactionResolver, members: ProducerSessions) -> None:
        self._context = context
        self._store = context.store
        self._resolver = resolver
        self._members = members
        settings = context.settings.cluster
        self._timeout_ms = settings.broker.transactionTimeOut
        self._interval_ms = settings.broker.transactionCheckInterval
        self._check_max = settings.broker.transactionCheckMax
        self._keep_ms = settings.store.fileReservedTime // 2
        self._scan_after_ms = min(SCAN_AFTER_MS, self._timeout_ms)
        self._scanned_end = 0
        self._scan_at_ms = 0
        self._due: list[_Due] = []
        self._unreadable: set[int] = set()  # half messages that damage kept from being read last time

    async def run(self) -> None:
        while True:
            try:
                await self._ensure_topics()
                await self._round()
            except DledgerError as error:
                _logger.info("transaction checks failed, retrying in %.1f s: %s", RETRY_S, error.message)
                await asyncio.sleep(RETRY_S)

    async def _ensure_topics(self) -> None:
        proposals = []
        for name, perm in TOPICS.items():
            if self._store.topics.get(name) is None:
                command = CreateTopic(name=name, read_queues=1, write_queues=1, perm=int(perm), if_not_exists=True)
                proposals.append(self._context.raft.propose(self._store.command(command)))
        await asyncio.gather(*proposals)

    async def _round(self) -> None:
        """Check everything that is due now, then wait."""
        self._members.expire()
        await self._end_deleted()
        await self._scan()
        while taken := self._take_due():
            try:
                await self._park(taken)
                await self._check(taken)
            finally:
                self._schedule(taken)
        next_ms = min([self._scan_at_ms, *(due_ms for due_ms, _, _ in self._due[:1])])
        await asyncio.sleep(min(MAX_SLEEP_S, max(0.001, (next_ms - self._now_ms()) / 1000)))

    def _now_ms(self) -> int:
        return self._store.time.now_ms()

    def _bounds(self) -> tuple[int, int]:
        return self._store.reader.bounds(HALF_TOPIC, 0, for_service=True)

    async def _end_deleted(self) -> None:
        """Mark half messages that were deleted with the head of the log as ended."""
        low, _ = self._bounds()
        if deleted := list(self._store.transactions.open_from(0, low)):
            _logger.warning(
                "transactions: %d half messages were deleted with the head of the log before they ended",
                len(deleted),
                extra={"event": "half_messages_lost"},
            )
            await self._context.raft.propose(self._store.command(EndTransactions(ended=runs_of(deleted))))

    # What is open

    async def _scan(self) -> None:
        """Schedule half messages that have been open for a while."""
        _, high = self._bounds()
        while offsets := list(islice(self._store.transactions.open_from(self._scanned_end, high), AT_ONCE)):
            halves = await self._with_sound_times(offsets, await self._read(offsets))
            for offset, half in zip(offsets, halves, strict=True):
                if half is not None:
                    scan_ms = half.store_timestamp + self._scan_after_ms
                    if scan_ms > self._now_ms():
                        self._scanned_end, self._scan_at_ms = offset, scan_ms
                        return
                    self._add(offset, half)
                else:
                    heappush(self._due, (self._now_ms() + self._interval_ms, offset, self._now_ms()))
                self._scanned_end = offset + 1
        self._scan_at_ms = self._now_ms() + self._scan_after_ms

    def _add(self, offset: int, half: Frame) -> None:
        self._store.transactions.owned(offset, producer_group(half))
        times, checked_ms = self._store.transactions.checks(offset)
        due_ms = checked_ms + self._interval_ms if times else first_check_ms(half, self._timeout_ms)
        heappush(self._due, (min(due_ms, half.store_timestamp + self._keep_ms), offset, half.store_timestamp))

    async def _read(self, offsets: Sequence[int]) -> list[Frame | None]:
        """The half messages; None for one that cannot be repaired now and is tried again an interval later."""
        halves: list[Frame | None] = []
        for offset, half in zip(offsets, await read_halves(self._context, offsets), strict=True):
            if isinstance(half, Frame):
                self._unreadable.discard(offset)
                halves.append(half)
            else:
                self._note_unreadable(offset, half)
                halves.append(None)
        return halves

    def _note_unreadable(self, offset: int, error: DledgerError) -> None:
        if offset not in self._unreadable:
            self._unreadable.add(offset)
            _logger.error("half message %d cannot be read: %s", offset, error.message, extra={"event": "half_message_unreadable"})

    async def _with_sound_times(self, offsets: Sequence[int], halves: list[Frame | None]) -> list[Frame | None]:
        """The half messages, repaired where the store time, which has no checksum of its own, is to come or very old."""
        now_ms = self._now_ms()
        doubtful = [
            offset for offset, half in self._with_frames(offsets, halves) if not now_ms - self._keep_ms < half.store_timestamp <= now_ms
        ]
        while (damaged := await verify_halves(self._context, doubtful)) is None:
            halves = await self._read(offsets)
        for offset, error in damaged.items():
            self._note_unreadable(offset, error)
        return [None if offset in damaged else half for offset, half in zip(offsets, halves, strict=True)]

    # What is due

    def _take_due(self) -> list[_Due]:
        now_ms, taken = self._now_ms(), list[_Due]()
        while self._due and self._due[0][0] <= now_ms and len(taken) < AT_ONCE:
            due = heappop(self._due)
            if self._store.transactions.outcome(due[1]) is Outcome.OPEN:
                taken.append(due)
        return taken

    def _schedule(self, taken: Sequence[_Due]) -> None:
        """Reschedule those that are still open: an interval after their last check, or soon when the check failed.

        From now on: what takes longer than that must not be due again at once, and keep the others from being looked at.
        """
        now_ms = self._now_ms()
        for _, offset, stored_ms in taken:
            if self._store.transactions.outcome(offset) is Outcome.OPEN:
                retry_ms = self._interval_ms if offset in self._unreadable else int(RETRY_S * 1000)
                again_ms = max(self._store.transactions.checks(offset)[1] + self._interval_ms, now_ms + retry_ms)
                heappush(self._due, (again_ms, offset, stored_ms))

    def _is_exhausted(self, due: _Due) -> bool:
        return self._store.transactions.checks(due[1])[0] >= self._check_max or self._now_ms() >= due[2] + self._keep_ms

    async def _park(self, taken: Sequence[_Due]) -> None:
        offsets = sorted(due[1] for due in taken if self._is_exhausted(due))
        if offsets:
            halves = [(offset, half) for offset, half in self._with_frames(offsets, await self._read(offsets))]
            if not halves:
                return
            copies = [_given_up(half, self._store.transactions.checks(offset)[0]) for offset, half in halves]
            _logger.warning(
                "transactions: no producer resolved %d half messages, moving them to %s",
                len(halves),
                CHECK_MAX_TIME_TOPIC,
                extra={"event": "half_messages_parked"},
            )
            await self._resolver.park([offset for offset, _ in halves], copies)
            for changed in (offset for offset, half in halves if is_changed(half)):
                log_changed(_logger, "transactions", (HALF_TOPIC, 0), changed)
            self._context.measures.transaction_checks["given up"] += len(halves)

    async def _check(self, taken: Sequence[_Due]) -> None:
        offsets = sorted(due[1] for due in taken if not self._is_exhausted(due))
        halves = list(self._with_frames(offsets, await self._read(offsets))) if offsets else []
        if not halves:
            return
        await self._context.raft.propose(self._store.command(CountTransactionChecks(runs=runs_of(offset for offset, _ in halves))))
        for offset, half in halves:
            self._store.transactions.owned(offset, producer_group(half))  # the scan may have been unable to read it
            if self._store.transactions.outcome(offset) is Outcome.OPEN:
                times, _ = self._store.transactions.checks(offset)
                asked = self._members.check(
                    producer_group(half), offset, times, encode_frame(replace(half, properties=fitting(half.properties)))
                )
                self._context.measures.transaction_checks["asked" if asked else "no producer"] += 1

    def _with_frames(self, offsets: Sequence[int], halves: Sequence[Frame | None]) -> Iterator[tuple[int, Frame]]:
        return ((offset, half) for offset, half in zip(offsets, halves, strict=True) if half is not None)


def _given_up(half: Frame, check_times: int) -> Frame:
    copy = given_up(half, check_times)
    try:
        encode_frame(copy)
    except InvalidArgumentError:  # no room for one more property
        copy.properties = fitting(half.properties)
    return copy
