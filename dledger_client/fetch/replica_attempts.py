"""What one read knows of the replicas it asks: in which order, how long each is waited for, and what they said together.

Owns no I/O.  A read asks one replica after the other, in rounds.  That a follower lags (knows neither topic nor offset yet), has expired
more than the others, is damaged or silent is no reason to fail: the next one is asked, and only the leader's word counts in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger_wire.clock import Clock
from dledger_wire.errors import (
    CorruptFrameError,
    DledgerError,
    NotYetError,
    OffsetOutOfRangeError,
    StorageDamagedError,
    TopicNotFoundError,
    UnreachableError,
)

SILENCE_MS = 3_000  # a replica that says nothing for so long is left for another one; twice as long when its turn comes again
SILENT_PART = 4  # of the whole time at most one part goes to a replica that is silent for the first time


@dataclass(frozen=True, slots=True)
class Source:
    """A replica that may be asked.  ``pinned``: nobody stands in for it."""

    node_id: str
    address: str
    is_leader: bool
    pinned: bool = False


class Attempts:
    """One read.  It ends when it came nowhere for ``timeout_ms``; an answer may take ``wait_ms`` because it was asked to."""

    def __init__(self, clock: Clock, timeout_ms: int, wait_ms: int = 0) -> None:
        self._clock, self._timeout_ms, self._wait_ms = clock, timeout_ms, wait_ms
        self._patience_ms: dict[str, int] = {}  # with replicas that were silent
        self._reasons: dict[str, DledgerError] = {}  # what replicas failed with last
        self._until_ms = 0  # when the replica that is asked now is silent
        self._gone: OffsetOutOfRangeError | None = None  # with the widest range any replica told in this round
        self._is_final = False
        self.progress()

    def progress(self) -> None:
        """Something was read, and the caller is done with it: the time begins anew."""
        self.failures = 0
        self._reasons.clear()
        self.deadline_ms = self._clock.monotonic_ms() + self._timeout_ms

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic_ms() >= self.deadline_ms

    def in_order(self, sources: Sequence[Source]) -> list[Source]:
        """Begin a round: those that were silent are the last resort."""
        self._gone, self._is_final = None, False
        return sorted(sources, key=lambda source: source.node_id in self._patience_ms)

    def left_s(self, source: Source) -> float:
        """How long to wait for what ``source`` says next."""
        now_ms = self._clock.monotonic_ms()
        left_ms = min(self._patience(source), self.deadline_ms - now_ms) + self._wait_ms
        self._until_ms = now_ms + left_ms
        return left_ms / 1000

    def _patience(self, source: Source) -> int:
        return self._patience_ms.get(source.node_id, min(SILENCE_MS, self._timeout_ms // SILENT_PART))

    def failed(self, error: DledgerError, source: Source, offset: int, *, is_last: bool) -> DledgerError:
        """What to make of a replica's error: what is retriable is a reason to ask another one.  ``is_last``: the round is over."""
        self.failures += 1
        if isinstance(error, UnreachableError) and self._clock.monotonic_ms() >= self._until_ms:
            self._patience_ms[source.node_id] = 2 * self._patience(source)
            if self.is_over:  # the end of all time cut it short: what it failed with before says more
                error = self._reasons.get(source.node_id, error)
        self._reasons[source.node_id] = error
        if isinstance(error, OffsetOutOfRangeError) and offset < error.min_offset:
            self._widen(error, offset)
            self._is_final |= source.is_leader or source.pinned
            error = NotYetError(f"{source.node_id}: {error.message}; the leader has not said so yet")
        if is_last and self._is_final and self._gone is not None:
            return self._gone
        return _lag_or_error(error, source, offset)

    def _widen(self, error: OffsetOutOfRangeError, offset: int) -> None:
        known = self._gone or error
        least, most = min(known.min_offset, error.min_offset), max(known.max_offset, error.max_offset)
        details: dict[str, object] = {**error.details, "min_offset": least, "max_offset": most}
        place = f"{error.details.get('topic', '?')}/{error.details.get('queue_id', '?')}"
        self._gone = OffsetOutOfRangeError(f"{place}: offset {offset} is outside {least} to {most}", **details)


def _lag_or_error(error: DledgerError, source: Source, offset: int) -> DledgerError:
    """The error; one that says another replica may know better when this one is damaged, or is a follower that lags."""
    if isinstance(error, StorageDamagedError | CorruptFrameError):
        return UnreachableError(f"{source.node_id}: {error.message}", address=source.address)
    if source.is_leader:
        return error
    if isinstance(error, TopicNotFoundError) or (isinstance(error, OffsetOutOfRangeError) and offset > error.max_offset):
        return NotYetError(f"{source.node_id}: {error.message} (this follower lags)")
    return error
