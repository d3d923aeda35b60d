"""Proposals not yet answered: payloads that wait to be joined into an entry, and entries that wait to be committed and applied.

Owns the joining rule, the byte limit (then BUSY), and the result each future gets.  Sans-IO.

A payload ends in exactly one of four ways: applied with its EntryId; NotLeaderError or ReadOnlyError when it was certainly not stored;
OutcomeUnknownError when it is in the log but this node does not know whether it will be committed.  A caller that does not need it applied
is notified ``at_commit``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger.core.types import EntryId
from dledger.measures import RaftMeasures
from dledger.replica.room import Window
from dledger.runtime.env import Buffer
from dledger_wire.check import require
from dledger_wire.errors import BusyError, DledgerError, MessageTooLargeError, NotLeaderError, OutcomeUnknownError


class Payload(Protocol):
    """Something to be replicated; only its bytes count here."""

    @property
    def size_bytes(self) -> int: ...
    def seal(self, pos: int, index: int, term: int) -> Sequence[Buffer]:
        """The bytes, once their place in the log is known.  Called at most once, in log order."""
        ...


class Outcome(Protocol):
    """Waits for the outcome of a payload, and is notified once.  A future is one; others are notified in the callback that decides."""

    def cancelled(self) -> bool: ...
    def done(self) -> bool: ...
    def set_result(self, entry: EntryId, /) -> None: ...
    def set_exception(self, error: DledgerError, /) -> None: ...


@dataclass(slots=True)
class Waiting:
    """One payload and its caller.  ``number``: how many were accepted before it."""

    payload: Payload
    outcome: Outcome
    at_commit: bool
    number: int


@dataclass(slots=True)
class _Round:
    """The payloads of one entry that is in the log: callers of which are notified once it is applied, and which when it is committed."""

    entry: EntryId
    outcomes: list[Outcome]
    at_commit: list[Outcome]
    since_s: float
    size_bytes: int = 0

    @property
    def waiting(self) -> list[Outcome]:
        return self.at_commit + self.outcomes


class Proposals:
    """The waiting payloads and entries of one node."""

    def __init__(
        self,
        *,
        join_bytes: int,
        entry_bytes: int,
        payload_bytes: int,
        limit_bytes: int,
        max_rounds: int,
        window: Window,
        measures: RaftMeasures,
    ) -> None:
        self._measures = measures
        self._window = window
        self._join_bytes = join_bytes  # this much is worth an entry of its own although others are in flight
        self._entry_bytes = entry_bytes  # payloads are joined up to this size
        self._payload_bytes = payload_bytes  # the most one payload may take
        self._limit_bytes = limit_bytes
        self._max_rounds = max_rounds
        self.pending: deque[Waiting] = deque()  # not in the log yet
        self.pending_bytes = 0
        self.accepted = 0  # payloads queued so far
        self._rounds: deque[_Round] = deque()
        self._rounds_bytes = 0
        self._cut: list[_Round] = []  # were cut from this node's log; another replica may still hold them

    @property
    def left(self) -> int:
        """How many of those ``accepted`` first wait no more: they are in the log, or never will be."""
        return self.pending[0].number if self.pending else self.accepted

    @property
    def waiting(self) -> int:
        """Callers not notified yet."""
        return len(self.pending) + sum(len(a_round.waiting) for a_round in (*self._rounds, *self._cut))

    @property
    def bytes_under_way(self) -> int:
        """Of payloads that wait, and of entries in the log that are not committed and applied."""
        return self.pending_bytes + self._rounds_bytes

    def add(self, payload: Payload, outcome: Outcome, *, at_commit: bool = False) -> None:
        """Queue a payload.  Raises when it can never fit an entry, or when too much is waiting already."""
        size = payload.size_bytes
        if size > self._payload_bytes:
            raise MessageTooLargeError(f"{size} bytes do not fit one log entry", limit_bytes=self._payload_bytes)
        if self.pending_bytes + size > self._limit_bytes and self.pending:
            raise BusyError(f"{self.pending_bytes} bytes are already queued; nothing was stored")
        self.pending.append(Waiting(payload, outcome, at_commit, self.accepted))
        self.accepted += 1
        self.pending_bytes += size

    def due(self, *, in_flight: bool) -> bool:
        """Whether an entry should be made now: at once when nothing is under way, else when it is worth one and the window has room."""
        if not in_flight:
            return bool(self.pending)
        return self.pending_bytes >= self._join_bytes and len(self._rounds) < self._max_rounds

    def peek(self) -> tuple[int, int]:
        """How many waiting payloads the next entry takes, and their bytes.  Drops cancelled ones among them.

        A caller that gave up no longer holds anything that its payload relies on, such as a lock.
        """
        count = total = 0
        for item in self.pending:
            if item.outcome.cancelled():
                self._drop_cancelled()
                return self.peek()
            size = item.payload.size_bytes
            if count and total + size > self._entry_bytes:
                break
            total += size
            count += 1
        return count, total

    def _drop_cancelled(self) -> None:
        self.pending = deque(item for item in self.pending if not item.outcome.cancelled())
        self.pending_bytes = sum(item.payload.size_bytes for item in self.pending)

    def take(self, count: int, entry: EntryId) -> list[Waiting]:
        """The first ``count`` payloads, now part of ``entry``."""
        pending = self.pending
        taken = [pending.popleft() for _ in range(count)]
        size = sum([item.payload.size_bytes for item in taken])
        self.pending_bytes -= size
        self._rounds_bytes += size
        require(not self._rounds or self._rounds[-1].entry.index < entry.index, "entry %s proposed after %s", entry, self._rounds)
        a_round = _Round(entry, [], [], self._measures.stopwatch(), size)
        for item in taken:
            (a_round.at_commit if item.at_commit else a_round.outcomes).append(item.outcome)
        self._rounds.append(a_round)
        self._window.waits_since_s = self._rounds[0].since_s
        return taken

    def add_round(self, entry: EntryId, future: asyncio.Future[EntryId]) -> None:
        """Wait for an entry that is no joined payloads (a configuration)."""
        require(not self._rounds or self._rounds[-1].entry.index < entry.index, "entry %s proposed after %s", entry, self._rounds)
        self._rounds.append(_Round(entry, [future], [], self._measures.stopwatch()))

    def cut(self, from_index: int) -> None:
        """The log lost everything from ``from_index``: those rounds wait for what is committed in their place."""
        rounds = self._rounds
        while rounds and rounds[-1].entry.index >= from_index:
            self._rounds_bytes -= rounds[-1].size_bytes
            self._cut.append(rounds.pop())

    def committed(self, index: int, term_at: Callable[[int], int]) -> None:
        """Everything up to ``index`` is committed, and applied before the callback that runs now ends; ``term_at`` as below."""
        for a_round in self._rounds:
            if a_round.entry.index > index:
                return
            outcomes, a_round.at_commit = a_round.at_commit, []
            self._notify(a_round.entry, outcomes, term_at)

    def applied(self, index: int, term_at: Callable[[int], int]) -> None:
        """Everything up to ``index`` is committed and applied; ``term_at`` gives the term of the entry that was committed there."""
        rounds = self._rounds
        while rounds and rounds[0].entry.index <= index:
            self._rounds_bytes -= rounds[0].size_bytes
            self._settle(rounds.popleft(), term_at)
        self._window.waits_since_s = rounds[0].since_s if rounds else 0.0
        if self._cut:
            settled = [a_round for a_round in self._cut if a_round.entry.index <= index]
            self._cut = [a_round for a_round in self._cut if a_round.entry.index > index]
            for a_round in settled:
                self._settle(a_round, term_at)

    @property
    def oldest_s(self) -> float:
        """How long the oldest entry that waits to be committed has waited; 0 when none does."""
        return self._measures.stopwatch() - self._rounds[0].since_s if self._rounds else 0.0

    def fail_pending(self, make: Callable[[], DledgerError]) -> None:
        """Answer what is not in the log."""
        pending, self.pending, self.pending_bytes = self.pending, deque(), 0
        self._measures.proposals["refused"] += len(pending)
        _fail([item.outcome for item in pending], make)

    def fail_rounds(self, reason: str, max_term: int | None = None) -> None:
        """Answer what was in the log but is not known to be committed: only entries of terms up to ``max_term`` when given."""
        late = [a_round for a_round in (*self._rounds, *self._cut) if max_term is None or a_round.entry.term <= max_term]
        self._rounds = deque(a_round for a_round in self._rounds if max_term is not None and a_round.entry.term > max_term)
        self._rounds_bytes = sum(a_round.size_bytes for a_round in self._rounds)
        self._window.waits_since_s = self._rounds[0].since_s if self._rounds else 0.0
        self._cut = [a_round for a_round in self._cut if max_term is not None and a_round.entry.term > max_term]
        for a_round in late:
            self._measures.proposals["unknown"] += len(a_round.waiting)
            _fail(a_round.waiting, lambda: OutcomeUnknownError(reason))

    def _settle(self, done: _Round, term_at: Callable[[int], int]) -> None:
        if term_at(done.entry.index) == done.entry.term:
            now_s = self._measures.stopwatch()
            self._measures.commit_s.observe(now_s - done.since_s)
            if done.size_bytes:
                self._window.committed(now_s, now_s - done.since_s, done.size_bytes)
        self._notify(done.entry, done.waiting, term_at)

    def _notify(self, entry: EntryId, outcomes: Sequence[Outcome], term_at: Callable[[int], int]) -> None:
        """Notify callers of payloads in ``entry`` of what was committed at its index."""
        counts = self._measures.proposals
        if term_at(entry.index) != entry.term:
            counts["refused"] += len(outcomes)
            _fail(outcomes, lambda: NotLeaderError("not stored: another leader's entry took its place"))
            return
        counts["committed"] += len(outcomes)
        for outcome in outcomes:
            if not outcome.done():
                outcome.set_result(entry)


def _fail(outcomes: Sequence[Outcome], make: Callable[[], DledgerError]) -> None:
    for outcome in outcomes:
        if not outcome.done():
            outcome.set_exception(make())
