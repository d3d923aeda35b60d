"""What consumers do with messages that they leased: acknowledge, give back or keep longer, and move to the dead letters.

Owns the way of receipts into the log.  All that arrive for a queue while a command is on its way are one command.  A receipt that does not
count now never will again, so it costs no command.  Dead letters are copies in one log entry with the mark: nothing else may come between
the look at a receipt and that entry, so the queue's receipts wait, and its leases too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from broker.context import ServiceContext
from broker.delivery.delivery_entry import batch_bytes, prepared_copies
from broker.delivery.verified_reads import StoredMessages
from broker.groups.group_topics import ensure_dead_letters
from broker.support.joint_work import JointWork
from broker.support.keyed_lock import KeyedLock
from dledger_wire.errors import (
    CorruptFrameError,
    DledgerError,
    InvalidArgumentError,
    NotReadyError,
    OffsetOutOfRangeError,
    StorageDamagedError,
)
from dledger_wire.frames.frame import Frame, encode_frame
from store.append.redelivery import AtomicPayload
from store.append.retry_copies import DEAD_AT_ONCE, RetryRule, sent_back
from store.commands.command import Command
from store.commands.pop import AcknowledgeMessages, ChangeInvisible, MarkDeadLetters
from store.commands.pop import Receipts as ReceiptRuns
from store.state.offset_runs import runs_of
from store.state.pop import GroupQueue

MAX_TOGETHER = 4096  # receipts in one command
READ_MESSAGES = 100  # dead letters in one entry

Offsets = npt.NDArray[np.int64]
Make = Callable[[tuple[ReceiptRuns, ...]], Command[tuple[bool, ...]]]


@dataclass(frozen=True, slots=True)
class Receipts:
    """Of messages of one queue: offsets and leases, side by side."""

    offsets: Offsets
    leases: Offsets

    def __len__(self) -> int:
        return len(self.offsets)

    def runs(self) -> tuple[ReceiptRuns, ...]:
        """Rising offsets as runs of one lease each."""
        if not len(self):
            return ()
        breaks = np.flatnonzero((np.diff(self.offsets) != 1) | (np.diff(self.leases) != 0)) + 1
        firsts, lasts = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(self)])) - 1
        rows = zip(self.offsets[firsts].tolist(), (self.offsets[lasts] + 1).tolist(), self.leases[firsts].tolist(), strict=True)
        return tuple(rows)


class ReceiptLanes:
    """Of one master."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._locks = KeyedLock()
        self._joint: JointWork[Receipts, list[bool]] = JointWork(self._locks)

    async def acknowledge(self, queue: GroupQueue, receipts: Receipts) -> list[bool]:
        """End leases; which of the receipts counted."""
        group, topic, queue_id = queue

        def make(runs: tuple[ReceiptRuns, ...]) -> AcknowledgeMessages:
            return AcknowledgeMessages(group=group, topic=topic, queue_id=queue_id, receipts=runs)

        return await self._joint.do(queue, "acknowledge", receipts, self._through(queue, make))

    async def change(self, queue: GroupQueue, receipts: Receipts, invisible_ms: int, *, uncounted: bool) -> list[bool]:
        """Let messages be free ``invisible_ms`` from now; which of the receipts counted."""
        group, topic, queue_id = queue

        def make(runs: tuple[ReceiptRuns, ...]) -> ChangeInvisible:
            given = {"receipts": runs, "invisible_ms": invisible_ms, "uncounted": uncounted}
            return ChangeInvisible(group=group, topic=topic, queue_id=queue_id, **given)  # type: ignore[arg-type]

        return await self._joint.do(queue, (invisible_ms, uncounted), receipts, self._through(queue, make))

    def _through(self, queue: GroupQueue, make: Make) -> Callable[[Sequence[Receipts]], Awaitable[list[list[bool]]]]:
        """What proposes one command for several requests."""

        async def serve(asks: Sequence[Receipts]) -> list[list[bool]]:
            ends = np.cumsum([len(ask) for ask in asks])
            asks = asks[: max(1, int(np.searchsorted(ends, MAX_TOGETHER, side="right")))]
            offsets, leases = (np.concatenate(column) for column in zip(*((ask.offsets, ask.leases) for ask in asks), strict=True))
            counted = self._context.store.pop.current(queue, offsets, leases)
            places = np.flatnonzero(counted)
            places = places[np.argsort(offsets[places], kind="stable")]
            if len(places):
                command = make(Receipts(offsets[places], leases[places]).runs())
                prepared = self._context.store.command(command)
                await self._locks.commit(queue, self._context.raft.propose(prepared))
                counted[places] = prepared.result()
            found: list[bool] = counted.tolist()
            starts = [0, *ends.tolist()]
            return [found[start:end] for start, end in zip(starts, ends[: len(asks)].tolist(), strict=False)]

        return serve

    # Dead letters

    async def bury(self, queue: GroupQueue, receipts: Receipts, term: int) -> dict[int, DledgerError | None]:
        """Move messages, whose offsets rise, to the group's dead letters: by offset, None or why it is not one.

        Those whose receipts do not count are left out.  The caller holds the queue's leases, and looked at them in ``term``."""
        async with self._locks.hold(queue):
            counted = self._context.store.pop.current(queue, receipts.offsets, receipts.leases)
            leases = dict(zip(receipts.offsets[counted].tolist(), receipts.leases[counted].tolist(), strict=True))
            moved: dict[int, DledgerError | None] = {}
            if leases:
                await ensure_dead_letters(self._context, queue[0])
            for first, end in runs_of(leases):
                while first < end:
                    first = await self._bury_run(queue, leases, (first, end), term, moved)
            return moved

    async def _bury_run(
        self, queue: GroupQueue, leases: dict[int, int], run: tuple[int, int], term: int, moved: dict[int, DledgerError | None]
    ) -> int:
        """Move as many as one read returns; the next offset."""
        group, topic, queue_id = queue
        first, end = run
        limits = {"max_messages": min(end - first, READ_MESSAGES), "max_bytes": batch_bytes(self._context)}
        try:
            frames = await StoredMessages(self._context, topic, queue_id, for_service=True).run(first, **limits)
        except (StorageDamagedError, CorruptFrameError, OffsetOutOfRangeError) as error:
            moved[first] = error
            return first + 1
        copies: list[tuple[int, Frame]] = []
        for frame in frames:
            offset, attempts = frame.queue_offset, self._context.store.pop.attempts(queue, frame.queue_offset)
            copy = sent_back(frame, RetryRule(group, DEAD_AT_ONCE, 0, 1))
            try:
                encode_frame(copy)
            except InvalidArgumentError as error:  # no room for the properties it needs
                moved[offset] = error
                continue
            copies.append((offset, replace(copy, reconsume_times=frame.reconsume_times + attempts)))
        if copies:
            moved |= await self._store(queue, copies, leases, term)
        return first + len(frames) if frames else end

    async def _store(
        self, queue: GroupQueue, copies: Sequence[tuple[int, Frame]], leases: dict[int, int], term: int
    ) -> dict[int, DledgerError | None]:
        """Store copies and their mark in one entry.  If one copy is refused, each is stored alone, so that only that one fails."""
        group, topic, queue_id = queue
        store = self._context.store
        if self._context.require_master() != term:
            raise NotReadyError("leadership changed during the request; nothing was stored")
        receipts = Receipts(np.array([offset for offset, _ in copies]), np.array([leases[offset] for offset, _ in copies]))
        if not store.pop.current(queue, receipts.offsets, receipts.leases).all():
            raise NotReadyError("the leases of the group were dropped during the request; nothing was stored")
        batches, problem = prepared_copies(store, [copy for _, copy in copies])
        if problem is not None:
            if len(copies) == 1:
                return {copies[0][0]: problem}
            moved: dict[int, DledgerError | None] = {}
            for each in copies:
                moved |= await self._store(queue, [each], leases, term)
            return moved
        mark = store.command(MarkDeadLetters(group=group, topic=topic, queue_id=queue_id, receipts=receipts.runs()))
        await self._locks.commit(queue, self._context.raft.propose(AtomicPayload(batches, mark)))
        mark.result()
        self._context.measures.redelivered.count(group, dead=len(copies))
        return {offset: None for offset, _ in copies}
