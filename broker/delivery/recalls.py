"""RecallMessage: a message that waits for its delivery time is not delivered.

Owns how such a message is found, and that a recall and a delivery follow each other.  The state decides where the command stands in the log
(``store/state/timers.py``); what this master proposes about waiting messages is proposed under one lock, so that a delivery that was put
together before a recall is in front of it.
"""

from __future__ import annotations

import asyncio

import numpy as np

from broker.context import ServiceContext
from broker.delivery.verified_reads import StoredMessages, read_with_repair
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import InvalidArgumentError, OutcomeUnknownError
from dledger_wire.frames.frame import Frame
from dledger_wire.frames.frame_layout import UNIQUE_ID_SIZE
from dledger_wire.names import TIMER_TOPIC
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.append.staged_check import REAL_TOPIC
from store.commands.redelivery import RecallTimed
from store.key_index.index_file import Window

TIMEOUT_S = 5.0


class RecallService:
    """Recalls messages on the master; ``lock`` is that of ``TimerService``."""

    def __init__(self, context: ServiceContext, lock: asyncio.Lock) -> None:
        self._context, self._lock = context, lock

    def register(self, server: Server) -> None:
        methods.RECALL_MESSAGE.serve(server, self.recall)

    async def recall(self, request: broker_pb2.RecallMessageRequest, _caller: CallContext) -> broker_pb2.RecallMessageResponse:
        self._context.require_master()
        if len(request.unique_id) != UNIQUE_ID_SIZE:
            raise InvalidArgumentError(f"unique id {request.unique_id[:40]!r}: expected {UNIQUE_ID_SIZE} characters")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not await self._recalled(*await self._place(request)):
                    pass  # it was moved meanwhile, which is rare
        except TimeoutError:
            raise OutcomeUnknownError(f"the recall was not committed within {TIMEOUT_S:g} s; it may still be") from None
        return broker_pb2.RecallMessageResponse()

    async def _recalled(self, offset: int, due_ms: int) -> bool:
        """Recall the message; False when it is not there any more."""
        async with self._lock:
            if offset < self._context.store.timers.progress.low:
                return False
            await self._context.command(RecallTimed(offset=offset, due_ms=due_ms), TIMEOUT_S)
            return True

    async def _place(self, request: broker_pb2.RecallMessageRequest) -> tuple[int, int]:
        """The offset of a message in the timer queue, and when it is due.  InvalidArgumentError when none waits."""
        store = self._context.store
        if store.topics.get(TIMER_TOPIC) is not None:
            found = await self._at(request.offset, request)
            if found is None and request.offset < store.timers.progress.low:
                moved = await store.query.by_unique_id([TIMER_TOPIC], request.unique_id, Window())
                for each in moved.messages:  # the newest first
                    found = found or await self._at(each.frame.queue_offset, request)
            if found is not None:
                return found
        raise InvalidArgumentError(f"no message {request.unique_id} waits to be delivered to topic {request.topic}")

    async def _at(self, offset: int, request: broker_pb2.RecallMessageRequest) -> tuple[int, int] | None:
        store = self._context.store
        low, high = store.reader.bounds(TIMER_TOPIC, 0)
        if not max(low, store.timers.progress.low) <= offset < high:
            return None
        units = await read_with_repair(self._context.raft, lambda: store.reader.units(TIMER_TOPIC, 0, offset, 1))
        if not len(units):
            return None
        (frame,) = await StoredMessages(self._context, TIMER_TOPIC, 0).at(units, np.array([offset], np.int64))
        return (offset, int(units["tag_hash"][0])) if _is_wanted(frame, request) else None


def _is_wanted(frame: Frame, request: broker_pb2.RecallMessageRequest) -> bool:
    return frame.properties.get("UNIQ_KEY") == request.unique_id and frame.properties.get(REAL_TOPIC) == request.topic
