"""Ends transactions on the master: each is published exactly once or never, however often it is ended and whenever a master fails.

Owns the claims of one term.  An end is proposed only for a half message that is open in the applied state and not claimed by another
request.  The claim is held until the log has decided, even if the caller is cancelled.  The published message and the mark that the
transaction has ended are one payload: a later master finds both in its log or neither.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from broker.context import ServiceContext
from broker.delivery.delivery_entry import log_changed
from broker.transactions.half_message_reads import read_halves, verify_halves
from dledger_wire.errors import DledgerError, InvalidArgumentError, MessageTooLargeError, NotReadyError, TopicNotFoundError
from dledger_wire.frames.frame import Frame
from dledger_wire.names import HALF_TOPIC
from dledger_wire.tasks import BackgroundTasks
from store.append.half_messages import REAL_TOPIC, producer_group, published, transaction_id
from store.append.redelivery import AtomicPayload, batches_of, storable_frame
from store.commands.transactions import EndTransactions
from store.state.offset_runs import runs_of
from store.state.transactions import Outcome

BATCH_MESSAGES = 500
BATCH_BYTES = 1 << 20

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndRequest:
    """A producer's decision about a transaction; ``wanted`` OPEN means unknown, and changes nothing."""

    group: str
    offset: int
    transaction_id: str
    wanted: Outcome


@dataclass(frozen=True, slots=True)
class EndResult:
    """The state of the transaction, whether this request ended it, or why nothing was done."""

    outcome: Outcome = Outcome.OPEN
    now: bool = False
    error: DledgerError | None = None


@dataclass(frozen=True, slots=True)
class _Ready:
    """An end with its copy of the message: for the message's topic, or for the operators' topic; None for a rollback."""

    offset: int
    outcome: Outcome
    copy: Frame | None
    changed: bool = False  # its properties cannot be stored as they are


class TransactionResolver:
    """Ends of one term of this master.  ``tasks`` are stopped with the term."""

    def __init__(self, context: ServiceContext, term: int, tasks: BackgroundTasks) -> None:
        self._context = context
        self._term = term
        self._tasks = tasks
        self._claims: dict[int, asyncio.Future[None]] = {}

    async def end(self, ends: Sequence[EndRequest]) -> list[EndResult]:
        """End transactions and wait until that is committed.  The work continues when the caller is cancelled."""
        answers: list[EndResult] = []
        work = self._tasks.spawn(self._end(ends, answers), "end")
        await asyncio.wait([work])
        if len(answers) < len(ends):
            raise NotReadyError("the master's term ended during the request; retry")
        return answers

    async def _end(self, ends: Sequence[EndRequest], answers: list[EndResult]) -> None:
        first_of: dict[int, EndRequest] = {}
        for end in ends:
            first_of.setdefault(end.offset, end)
        known: dict[int, EndResult] = {}
        while left := [offset for offset in first_of if offset not in known]:
            mine = [offset for offset in left if offset not in self._claims]
            if mine:
                with self._claimed(mine):
                    known |= await self._decide([first_of[offset] for offset in sorted(mine)])
            else:
                await asyncio.wait({self._claims[offset]: None for offset in left}, return_when=asyncio.FIRST_COMPLETED)
        answers += [known[end.offset] for end in ends]

    @contextmanager
    def _claimed(self, offsets: Sequence[int]) -> Iterator[None]:
        """Half messages that are being ended; released when the log has decided or the term is over."""
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._claims.update(dict.fromkeys(offsets, released))
        try:
            yield
        finally:
            for offset in offsets:
                del self._claims[offset]
            released.set_result(None)

    async def _decide(self, ends: Sequence[EndRequest]) -> dict[int, EndResult]:
        """Ends with rising offsets, claimed by the caller."""
        transactions = self._context.store.transactions
        low, high = self._context.store.reader.bounds(HALF_TOPIC, 0, for_service=True)
        answers: dict[int, EndResult] = {}
        waiting: list[EndRequest] = []
        for end in ends:
            if end.offset >= high:
                answers[end.offset] = EndResult(error=InvalidArgumentError(f"no half message at {end.offset}; the newest is {high - 1}"))
            elif (outcome := transactions.outcome(end.offset)) is not Outcome.OPEN:
                answers[end.offset] = EndResult(outcome)
            elif end.offset < low:
                answers[end.offset] = EndResult(Outcome.ENDED)  # deleted with the head of the log
            elif end.wanted is Outcome.OPEN:
                answers[end.offset] = EndResult()
            else:
                waiting.append(end)
        if waiting:
            answers |= await self._carry_out(waiting)
        return answers

    async def _carry_out(self, ends: Sequence[EndRequest]) -> dict[int, EndResult]:
        try:
            ready, answers = await self._judged(ends)
        except DledgerError as error:
            return {end.offset: EndResult(error=error) for end in ends}
        for part in _parts(ready):
            answers |= await self._store(part)
        return answers

    async def _judged(self, ends: Sequence[EndRequest]) -> tuple[list[_Ready], dict[int, EndResult]]:
        """What can be carried out, and why the rest cannot: never for what damage makes of a half message."""
        while True:
            ready: list[_Ready] = []
            answers: dict[int, EndResult] = {}
            refused: list[int] = []
            for end, half in zip(ends, await read_halves(self._context, [end.offset for end in ends]), strict=True):
                if not isinstance(half, Frame):
                    answers[end.offset] = EndResult(error=half)
                    continue
                try:
                    ready.append(self._ready(end, half))
                except DledgerError as error:
                    answers[end.offset] = EndResult(error=error)
                    refused.append(end.offset)
            damaged = await verify_halves(self._context, refused)
            if damaged is not None:
                return ready, answers | {offset: EndResult(error=error) for offset, error in damaged.items()}

    def _ready(self, end: EndRequest, half: Frame) -> _Ready:
        waiting, half = half, storable_frame(half)
        if (producer_group(half), transaction_id(half)) != (end.group, end.transaction_id):
            # The owner is not reported: the caller has rights on the group it named only.
            raise InvalidArgumentError(
                f"half message {end.offset} is not transaction {end.transaction_id!r} of producer group {end.group!r}"
            )
        if end.wanted is not Outcome.COMMITTED:
            return _Ready(end.offset, end.wanted, None)
        topic = self._context.store.topics.require(half.properties.get(REAL_TOPIC, ""))
        if half.physical_offset < topic.created_pos:
            raise TopicNotFoundError(
                f"topic {topic.name!r} was deleted and recreated since; the message belonged to it before", topic=topic.name
            )
        message = published(half, max(1, topic.write_queues))
        if message is None:
            raise InvalidArgumentError(f"half message {end.offset} does not say where it belongs")
        return _Ready(end.offset, Outcome.COMMITTED, message, changed=half is not waiting)

    # Storing

    async def park(self, offsets: Sequence[int], copies: Sequence[Frame]) -> None:
        """End open transactions that no producer resolved: their copies go to the operators' topic.  Claimed ones are skipped."""
        free = [_Ready(offset, Outcome.PARKED, copy) for offset, copy in zip(offsets, copies, strict=True) if offset not in self._claims]
        with self._claimed([each.offset for each in free]):
            still = [each for each in free if self._context.store.transactions.outcome(each.offset) is Outcome.OPEN]
            for part in _parts(still):
                for ended in (await self._store(part)).values():
                    if ended.error is not None:
                        raise ended.error

    async def _store(self, part: Sequence[_Ready]) -> dict[int, EndResult]:
        """Store copies and marks as one payload.  If it is refused, halves are stored alone, so that only the refused ones fail."""
        store = self._context.store
        try:
            if self._context.roles.services_term != self._term:
                raise NotReadyError("the master's term ended during the request; retry")
            copies = [each.copy for each in part if each.copy is not None]
            batches = store.prepare(batches_of(copies), for_service=True) if copies else None
            outcomes = batches.outcomes if batches is not None else []
            problem = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
            if problem is None:
                ended = store.command(_command(part))
                await self._context.raft.propose(AtomicPayload(batches, ended))
                ended.result()
        except (MessageTooLargeError, TopicNotFoundError) as error:  # no entry of this log holds it; a topic was deleted meanwhile
            problem = error
        except DledgerError as error:
            return {each.offset: EndResult(error=error) for each in part}
        if problem is None:
            for changed in (each for each in part if each.changed):
                log_changed(_logger, "transactions", (HALF_TOPIC, 0), changed.offset)
            return {each.offset: EndResult(each.outcome, now=True) for each in part}
        if len(part) == 1:
            return {part[0].offset: EndResult(error=problem)}
        half = len(part) // 2
        return await self._store(part[:half]) | await self._store(part[half:])


def _command(part: Sequence[_Ready]) -> EndTransactions:
    offsets: dict[Outcome, list[int]] = {}
    for each in part:
        offsets.setdefault(each.outcome, []).append(each.offset)
    return EndTransactions(
        committed=runs_of(offsets.get(Outcome.COMMITTED, ())),
        rolled_back=runs_of(offsets.get(Outcome.ROLLED_BACK, ())),
        parked=runs_of(offsets.get(Outcome.PARKED, ())),
        ended=runs_of(offsets.get(Outcome.ENDED, ())),
    )


def _parts(ready: Sequence[_Ready]) -> Iterator[list[_Ready]]:
    """What goes into one entry each."""
    part: list[_Ready] = []
    size = 0
    for each in ready:
        more = len(each.copy.body) if each.copy is not None else 0
        if part and (len(part) >= BATCH_MESSAGES or size + more > BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(each)
        size += more
    if part:
        yield part
