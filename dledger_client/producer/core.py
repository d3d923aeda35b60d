"""The core of a producer, shared by the synchronous and the asyncio client: wires routes, accumulator and senders together.

Owns the senders, the producer's tasks, flushing and closing.  A message's way: ``RecordAccumulator.append``, ``Sender``, the leader's
response, ``DeliveryReport``.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from dledger_client.cluster.router import Router
from dledger_client.metrics.instruments import installed
from dledger_client.producer.accumulator import CLOSED, RecordAccumulator
from dledger_client.producer.delivery_report import DeliveryReport, settled
from dledger_client.producer.latency_fault import LatencyFaultTolerance
from dledger_client.producer.partitioner import QueueNumber
from dledger_client.producer.record_encoder import RecordEncoder
from dledger_client.producer.redispatch import Redispatcher
from dledger_client.producer.send_metrics import SendMetrics
from dledger_client.producer.sender import Sender
from dledger_client.producer.settings import ProducerOptions
from dledger_client.producer.topic_routes import REFRESH_PAUSE_S, TopicRoutes
from dledger_wire.errors import ClientClosedError, InvalidArgumentError, ProducerForgottenError
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.tasks import BackgroundTasks

_logger = logging.getLogger(__name__)


class Waiting(Protocol):
    """Sends that wait to be added (``dledger_client.aio.delayed_sends``)."""

    async def flush(self) -> None: ...
    def held(self) -> list[tuple[DeliveryReport, int]]: ...


class ProducerCore:
    """Made on the event loop that it runs on."""

    def __init__(self, router: Router, options: ProducerOptions, ids: UniqueIds, born_host: bytes) -> None:
        self.router, self.options = router, options
        self.loop = asyncio.get_running_loop()
        self.latency = LatencyFaultTolerance(
            options.latency_max, options.not_available_duration, router.clock.monotonic_ms, enabled=options.latency_fault
        )
        self._senders: dict[str, Sender] = {}
        self.accumulator = RecordAccumulator(options, self.latency, self._senders)
        instruments = installed()
        if instruments is not None:
            self.accumulator.metrics = SendMetrics(instruments, router.clock, options.group, buffered_by(self))
        self.routes = TopicRoutes(router, options, self.accumulator, self.ensure_senders)
        self.redispatcher = Redispatcher(self.accumulator, self.routes, router.clock)
        self.tasks = BackgroundTasks("producer", self._on_internal_error)
        self._encoder = RecordEncoder(ids, router.clock, born_host)
        self._refreshing: asyncio.Task[None] | None = None
        self.waiting: Waiting | None = None

    @property
    def closed(self) -> bool:
        return self.accumulator.closed

    def require_open(self) -> None:
        if self.closed:
            raise ClientClosedError(CLOSED)

    def deadline_ms(self) -> int:
        """Of what is sent now."""
        return self.router.clock.monotonic_ms() + self.options.send_timeout_ms

    # Routes and senders

    async def resolve(self, topic: str, deadline_ms: int, queue_id: QueueNumber | None = None, *, by_key: bool = False) -> None:
        """Look up the queues of a topic; see ``TopicRoutes.resolve``."""
        self.require_open()
        await self.routes.resolve(topic, deadline_ms, queue_id, by_key=by_key)
        if self._refreshing is None:
            self._refreshing = self.tasks.spawn(self._refresh(), "refresh routes")

    async def _refresh(self) -> None:
        while True:
            await self.routes.refresh()
            self.redispatcher.redispatch()
            await asyncio.sleep(REFRESH_PAUSE_S)

    def ensure_senders(self, replica_groups: Iterable[str]) -> None:
        """Start a sender for each replica group that has none."""
        for replica_group in replica_groups:
            if replica_group not in self._senders:
                sender = self._senders[replica_group] = Sender(
                    self.router, replica_group, self.options, self.accumulator, self.redispatcher, self.latency, self._encoder
                )
                self.tasks.spawn(sender.run(), f"produce to {replica_group}").add_done_callback(self._sender_ended)

    async def stored_before(self, topic: str, deadline_ms: int) -> dict[tuple[str, int], int]:
        """See ``Producer.stored``."""
        if not self.options.producer_id:
            raise InvalidArgumentError("only a producer with a producer_id of its own can know what it stored before")
        await self.resolve(topic, deadline_ms)
        queues = self.accumulator.queues(topic)
        for replica_group in sorted({replica_group for replica_group, _ in queues}):
            await self._senders[replica_group].ensure_session()
            if self._senders[replica_group].session.is_incomplete:
                raise ProducerForgottenError(
                    f"replica group {replica_group} has forgotten what producer {self.options.producer_id} stored before; read the topic to"
                    " find out, then continue with a producer_id that was never used"
                )
        return {(group, queue_id): self._senders[group].session.stored.get((topic, queue_id), 0) for group, queue_id in queues}

    # Flushing and closing

    async def flush(self) -> None:
        """Return when every message sent so far is acknowledged or failed."""
        if self.waiting is not None:
            await self.waiting.flush()
        unacknowledged = self.unacknowledged()
        for sender in self._senders.values():
            sender.flush()
        for report, _ in unacknowledged:
            await settled(report)

    def held(self) -> list[tuple[DeliveryReport, int]]:
        """As ``unacknowledged``, with what waits to be added."""
        return self.unacknowledged() + (self.waiting.held() if self.waiting is not None else [])

    def unacknowledged(self) -> list[tuple[DeliveryReport, int]]:
        """The reports that are not settled, with their numbers of messages.  On the event loop."""
        batches = [batch for sender in self._senders.values() for batch in sender.unacknowledged() if not batch.timed_out]
        return [(batch.report, len(batch.messages)) for batch in [*batches, *self.redispatcher.orphaned()]]

    async def close(self) -> None:
        """Flush, then end.  What is not stored by its deadline fails."""
        await self.flush()
        self.accumulator.close()
        await self.flush()  # what other threads and callbacks have sent meanwhile
        await self.tasks.stop()
        self._end("the producer was closed")

    def disown(self) -> None:
        """Take no more messages: the event loop is not here (after a fork), or ends with the process."""
        self.accumulator.disown()

    def _sender_ended(self, task: asyncio.Task[None]) -> None:
        """Cancelled before the producer is closed, it says that the event loop ends."""
        if not task.cancelled() or self.closed:
            return
        why = "the event loop ended before the producer was closed"
        lost = sum(count for _, count in self.unacknowledged())
        self._end(why)
        if lost:
            _logger.error("%s: %d messages were not acknowledged", why, lost)

    def _on_internal_error(self, error: BaseException) -> None:
        self._end(f"the producer stopped after an internal error ({type(error).__name__}: {error})")

    def _end(self, why: str) -> None:
        """Take no more messages, and fail what is left."""
        self.accumulator.close()
        self.redispatcher.fail_all()
        for sender in self._senders.values():
            sender.abandon(why)


def buffered_by(core: ProducerCore) -> Callable[[], float]:
    """Reads what a producer holds; one that is left open is not kept alive by it."""
    known = weakref.ref(core)

    def read() -> float:
        found = known()
        return 0 if found is None else found.accumulator.buffered_bytes

    return read
