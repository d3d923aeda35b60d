"""Requests of a Produce stream: the slices they are proposed in, what has become of each, and the response.

Owns no order: ``produce.py`` says when a request is proposed and answered.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from broker.support.limits import at_most
from broker.support.measures import OK
from dledger.core.types import EntryId
from dledger_wire._pb import broker_pb2
from dledger_wire.batches.batch import COMMAND_HEADER_SIZE
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import to_detail
from store.append.prepared import BatchOutcome

MAX_BATCHES = 10_000  # of one request
SLICE_BATCHES, SLICE_BYTES = 200, 8 << 20  # checked and proposed without a pause
ANSWER_SHARE = 0.9  # of a client's time; what is left of it is for the way back
NOTHING = memoryview(b"")
_SIZE = struct.Struct(">I")


@dataclass(slots=True)
class Slice:
    """Batches proposed together; receives what the log decided (``dledger.replica.proposals.Outcome``), and notifies ``waiting`` then.

    ``outcomes`` are valid once ``waiting`` is empty; ``refusal`` is why none of them was accepted.
    """

    outcomes: list[BatchOutcome]
    refusal: DledgerError | None = None
    waiting: Callable[[], None] | None = None

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return self.waiting is None

    def set_result(self, _entry: EntryId, /) -> None:
        if self.waiting is not None:
            waiting, self.waiting = self.waiting, None
            waiting()

    def set_exception(self, error: DledgerError, /) -> None:
        """Called from within a step of the core, which must not do the work of a stream."""
        self.refusal = error
        if self.waiting is not None:
            waiting, self.waiting = self.waiting, None
            asyncio.get_running_loop().call_soon(waiting)


@dataclass(slots=True)
class Request:
    """A request in progress."""

    request_id: int
    size_bytes: int
    payload: memoryview  # until it is proposed
    slices: list[tuple[int, int, int]]
    parts: list[Slice]
    since_s: float
    timeout_s: float = 0.0  # from ``since_s``: then its client gives up; 0: it does not
    was_held: bool = False  # it had to wait for its turn

    def left_s(self, now_s: float) -> float:
        """How much longer its client waits for an answer, which has to travel, too."""
        return self.timeout_s * ANSWER_SHARE - (now_s - self.since_s) if self.timeout_s else math.inf

    @property
    def is_decided(self) -> bool:
        return all([part.waiting is None for part in self.parts])

    @property
    def code(self) -> str:
        """Of the first batch that was refused, OK when none was."""
        refusals = (part.refusal or next((each.error for each in part.outcomes if each.error is not None), None) for part in self.parts)
        return next((refusal.code for refusal in refusals if refusal is not None), OK)

    def response(self, throttle_ms: int = 0) -> bytes:
        """Its results, once it is decided.  ``throttle_ms``: how long no further request is read."""
        response = broker_pb2.ProduceResponse(request_id=self.request_id, throttle_ms=throttle_ms)
        for part in self.parts:
            refusal = to_detail(part.refusal) if part.refusal is not None else None
            for outcome in part.outcomes:
                if outcome.error is not None:
                    response.results.add(error=to_detail(outcome.error))
                elif refusal is not None:
                    response.results.add(error=refusal)
                else:
                    response.results.add(
                        first_queue_offset=outcome.first_queue_offset,
                        physical_offset=outcome.physical_offset,
                        store_timestamp_ms=outcome.store_timestamp,
                        duplicate=outcome.duplicate,
                        queue_id=outcome.queue_id,
                    )
        return methods.encode(response)


def slices_of(payload: memoryview) -> list[tuple[int, int, int]]:
    """(first byte, end, records) of the slices of a payload, by its records' sizes; the records are not checked here.

    A refusal must answer for each record, so there is always one slice.  InvalidArgumentError for too many records.
    """
    found: list[tuple[int, int, int]] = []
    first = at = count = total = 0
    last, size_at = len(payload) - COMMAND_HEADER_SIZE, _SIZE.unpack_from
    while at <= last:
        (size,) = size_at(payload, at + 4)
        if size < COMMAND_HEADER_SIZE:
            break
        total += 1
        if total > MAX_BATCHES:
            at_most(total, "batches", MAX_BATCHES)
        if count and (count >= SLICE_BATCHES or at + size - first > SLICE_BYTES):
            found.append((first, at, count))
            first, count = at, 0
        count, at = count + 1, at + size
    found.append((first, len(payload), max(1, count)))  # trailing bytes that are no record are refused with the last slice
    return found
