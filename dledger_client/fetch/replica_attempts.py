"""Failover of one read between replicas: their order, how long each is waited for, and what their errors mean together.

Owns no I/O.  A read asks one replica after the other, in rounds.  A follower that lags (knows neither topic nor offset yet), has expired
more than the others, is damaged or does not respond is no reason to fail: the next one is asked, and the leader decides.  Nor is one
whose certificate is not trusted, or that refuses the caller: that is final when a second replica says so, or when no other can be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger_client.cluster.channels import MAX_REFUSALS
from dledger_wire.clock import Clock
from dledger_wire.errors import (
    AuthenticationFailedError,
    CorruptFrameError,
    DledgerError,
    NotYetError,
    OffsetOutOfRangeError,
    StorageDamagedError,
    TopicNotFoundError,
    UnreachableError,
)

RESPONSE_TIMEOUT_MS = 3_000  # of a replica before the next one is asked; doubled with every timeout
FIRST_TIMEOUT_PART = 4  # a replica's first timeout is at most this part of the whole


@dataclass(frozen=True, slots=True)
class Source:
    """A replica that may be asked.  ``pinned``: no other replica is asked instead; ``repairs``: it is asked to repair what is damaged."""

    node_id: str
    address: str
    is_leader: bool
    pinned: bool = False
    repairs: bool = True


class ReplicaFailover:
    """One read.  It ends without progress for ``timeout_ms``; a response may take ``wait_ms`` more, which the request asks for."""

    def __init__(self, clock: Clock, timeout_ms: int, wait_ms: int = 0) -> None:
        self._clock, self._timeout_ms, self._wait_ms = clock, timeout_ms, wait_ms
        self._timeouts_ms: dict[str, int] = {}  # of replicas that did not respond
        self._reasons: dict[str, DledgerError] = {}  # the last error of each replica
        self._until_ms = 0  # when the current replica times out
        self._gone: OffsetOutOfRangeError | None = None  # with the widest range of any replica in this round
        self._is_final = False
        self._refusing: dict[str, AuthenticationFailedError] = {}  # replicas that could not be authenticated with, since something was read
        self._may_serve = False  # whether a replica of this round was reached, or was only slow, and does not refuse
        self._final_refusals = MAX_REFUSALS
        self.progress()

    def progress(self) -> None:
        """Something was read and processed: the timeout starts again."""
        self.failures = 0
        self._reasons.clear()
        self._refusing.clear()
        self._may_serve = True
        self.deadline_ms = self._clock.monotonic_ms() + self._timeout_ms

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic_ms() >= self.deadline_ms

    def in_order(self, sources: Sequence[Source]) -> list[Source]:
        """Begin a round: replicas that did not respond come last."""
        self._gone, self._is_final, self._may_serve = None, False, False
        self._final_refusals = min(MAX_REFUSALS, len(sources))
        return sorted(sources, key=lambda source: source.node_id in self._timeouts_ms)

    def left_s(self, source: Source) -> float:
        """Seconds to wait for the next response of ``source``."""
        now_ms = self._clock.monotonic_ms()
        left_ms = min(self._timeout_of(source), self.deadline_ms - now_ms) + self._wait_ms
        self._until_ms = now_ms + left_ms
        return left_ms / 1000

    def _timeout_of(self, source: Source) -> int:
        return self._timeouts_ms.get(source.node_id, min(RESPONSE_TIMEOUT_MS, self._timeout_ms // FIRST_TIMEOUT_PART))

    def failed(self, error: DledgerError, source: Source, offset: int, *, is_last: bool) -> DledgerError:
        """What a replica's error means for the read: a retriable one lets the next replica be asked.  ``is_last``: the round is over."""
        self.failures += 1
        if isinstance(error, UnreachableError) and self._clock.monotonic_ms() >= self._until_ms:
            self._timeouts_ms[source.node_id] = 2 * self._timeout_of(source)
            self._may_serve = True  # when it is given more time
            if self.is_over:  # the deadline cut it short: its error before says more
                error = self._reasons.get(source.node_id, error)
        self._reasons[source.node_id] = error
        if isinstance(error, AuthenticationFailedError):
            self._refusing[source.node_id] = error
            if len(self._refusing) >= self._final_refusals:
                return error
            error = UnreachableError(error.message, address=source.address)
        self._may_serve |= not isinstance(error, UnreachableError)
        if is_last and self._refusing and not self._may_serve:
            return next(iter(self._refusing.values()))
        if isinstance(error, OffsetOutOfRangeError) and offset < error.min_offset:
            self._widen(error, offset)
            self._is_final |= source.is_leader or source.pinned
            error = NotYetError(f"{source.node_id}: {error.message}; not confirmed by the leader yet")
        if is_last and self._is_final and self._gone is not None:
            return self._gone
        return _lag_or_error(error, source, offset)

    def _widen(self, error: OffsetOutOfRangeError, offset: int) -> None:
        known = self._gone or error
        low, high = min(known.min_offset, error.min_offset), max(known.max_offset, error.max_offset)
        details: dict[str, object] = {**error.details, "min_offset": low, "max_offset": high}
        place = f"{error.details.get('topic', '?')}/{error.details.get('queue_id', '?')}"
        self._gone = OffsetOutOfRangeError(f"{place}: offset {offset} is outside {low} to {high}", **details)


def _lag_or_error(error: DledgerError, source: Source, offset: int) -> DledgerError:
    """The error; a retriable one when the replica is damaged, or is a follower that lags."""
    if isinstance(error, CorruptFrameError) and source.pinned and not source.repairs:
        return error  # no other node is asked, and nothing mends it
    if isinstance(error, StorageDamagedError | CorruptFrameError):
        return UnreachableError(f"{source.node_id}: {error.message}", address=source.address)
    if source.is_leader:
        return error
    if isinstance(error, TopicNotFoundError) or (isinstance(error, OffsetOutOfRangeError) and offset > error.max_offset):
        return NotYetError(f"{source.node_id}: {error.message} (this follower lags)")
    return error
