"""What a consumer does with messages that it leased: the calls for it, and what became of each message.

Owns which messages go in one call: all that are settled in the same way while a call for their topic and replica group is on its way.  A
receipt that does not count any more after a lost attempt may be that attempt's doing: its outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from dledger_client.cluster.responses import garbage
from dledger_client.cluster.router import Router
from dledger_client.consumer.leased_messages import LeasedMessage
from dledger_wire._pb import pop_pb2
from dledger_wire.errors import DledgerError, OutcomeUnknownError, StaleReceiptError
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.tasks import BackgroundTasks

MAX_TOGETHER = 1024  # receipts in one call

Results = list[DledgerError | None]


class What(Enum):
    """What becomes of messages."""

    ACKNOWLEDGED = "acknowledged"
    CHANGED = "changed"  # of their invisible time
    DEAD = "moved to the dead letters"


class How(NamedTuple):
    """Messages that are settled in the same way may go in one call."""

    what: What
    invisible_ms: int = 0
    uncounted: bool = False


class _Lane(NamedTuple):
    """Where calls follow each other."""

    replica_group: str
    topic: str
    epoch: str
    how: How


@dataclass(slots=True)
class _Ask:
    """Messages of one caller."""

    messages: Sequence[LeasedMessage]
    results: asyncio.Future[Results] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Receipts:
    """Of one consumer, on its event loop."""

    def __init__(self, router: Router, group: str, timeout_ms: int) -> None:
        self._router, self._group, self._timeout_ms = router, group, timeout_ms
        self._waiting: dict[_Lane, list[_Ask]] = {}  # of lanes whose calls are on their way
        self._tasks = BackgroundTasks(f"receipts of group {group}")

    async def settle(self, messages: Sequence[LeasedMessage], how: How) -> Results:
        """Settle messages: for each, None or why it was not done."""
        places: dict[_Lane, list[int]] = {}
        for place, message in enumerate(messages):
            places.setdefault(_Lane(message.replica_group, message.topic, message.topic_epoch, how), []).append(place)
        asks: list[tuple[list[int], _Ask]] = []
        for lane, numbers in places.items():
            for first in range(0, len(numbers), MAX_TOGETHER):
                part = numbers[first : first + MAX_TOGETHER]
                asks.append((part, self._add(lane, [messages[place] for place in part])))
        results: Results = [None] * len(messages)
        for part, ask in asks:
            for place, result in zip(part, await ask.results, strict=True):
                results[place] = result
        return results

    def settle_later(self, messages: Sequence[LeasedMessage], how: How) -> None:
        """The same, where no caller waits: messages that this fails for come again."""

        async def work() -> None:
            await self.settle(messages, how)

        if messages:
            self._tasks.spawn(work(), how.what.value)

    async def close(self, timeout_s: float) -> None:
        """Let the calls end that are on their way."""
        await self._tasks.drain(timeout_s)

    def _add(self, lane: _Lane, messages: Sequence[LeasedMessage]) -> _Ask:
        ask = _Ask(messages)
        if lane in self._waiting:
            self._waiting[lane].append(ask)
        else:
            self._waiting[lane] = [ask]
            self._tasks.spawn(self._run(lane), lane.how.what.value)
        return ask

    async def _run(self, lane: _Lane) -> None:
        """Call after call, as long as there is something to settle."""
        together: list[_Ask] = []
        try:
            while waiting := self._waiting[lane]:
                count = len(waiting[0].messages)
                together = [waiting.pop(0)]
                while waiting and count + len(waiting[0].messages) <= MAX_TOGETHER:
                    count += len(waiting[0].messages)
                    together.append(waiting.pop(0))
                await self._settle(lane, together)
        finally:  # cancelled by a close that took too long
            for ask in (*together, *self._waiting.pop(lane)):
                if not ask.results.done():
                    ask.results.cancel()

    async def _settle(self, lane: _Lane, together: Sequence[_Ask]) -> None:
        messages = [message for ask in together for message in ask.messages]
        try:
            results = await self._call(lane, messages)
        except DledgerError as error:
            results = [error] * len(messages)
        at = 0
        for ask in together:
            if not ask.results.done():  # its caller was cancelled
                ask.results.set_result(results[at : at + len(ask.messages)])
            at += len(ask.messages)

    async def _call(self, lane: _Lane, messages: Sequence[LeasedMessage]) -> Results:
        lost: list[DledgerError] = []
        deadline_ms = self._router.clock.monotonic_ms() + self._timeout_ms
        place = {"group": self._group, "topic": lane.topic, "incarnation": lane.epoch}
        receipts = [pop_pb2.Receipt(queue_id=each.queue_id, offset=each.queue_offset, lease=each.lease) for each in messages]
        how, call = lane.how, self._router.call_leader
        if how.what is not What.CHANGED:
            method = methods.ACKNOWLEDGE if how.what is What.ACKNOWLEDGED else methods.MOVE_TO_DEAD_LETTERS
            request = pop_pb2.ReceiptsRequest(**place, receipts=receipts)
            response = await call(lane.replica_group, method, request, deadline_ms=deadline_ms, lost=lost)
        else:
            change = pop_pb2.ChangeInvisibleRequest(**place, receipts=receipts, invisible_ms=how.invisible_ms, uncounted=how.uncounted)
            response = await call(lane.replica_group, methods.CHANGE_INVISIBLE, change, deadline_ms=deadline_ms, lost=lost)
        if len(response.results) != len(messages):
            raise garbage(lane.replica_group, f"{len(response.results)} results for {len(messages)} receipts")
        return [_error_of(result, how.what, is_doubtful=bool(lost)) for result in response.results]


def _error_of(result: pop_pb2.ReceiptResult, what: What, *, is_doubtful: bool) -> DledgerError | None:
    if not result.HasField("error"):
        return None
    error = from_detail(result.error)
    if is_doubtful and isinstance(error, StaleReceiptError):
        return OutcomeUnknownError(f"the message was {what.value} by an attempt whose answer was lost, or is no longer the caller's")
    return error
