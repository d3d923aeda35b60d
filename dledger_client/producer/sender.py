"""The sender of one replica group: drains ready batches, sends them to the leader, takes the responses, sends again after failures.

Owns what is in flight, and what a response means.  A batch is sent at once when nothing is in flight, else when it is full or a response
arrives: the busier the group, the larger the batches.  Everything but ``wake_up`` runs on the client's event loop.

    retriable error, broken stream     reopened at the leader; everything unacknowledged is sent again, in order
    refused for good                   its messages fail; a single bad message fails alone
    out of order without a reason      the broker has forgotten this producer: drain, new epoch, sequences from 0
    refused after a lost attempt       the same: that one may have taken the sequence
    fenced                             a producer with the same stable id was started: everything fails, for good

In the last three cases batches that an unacknowledged attempt may have stored end with OutcomeUnknownError (``in_flight.py``).
"""

from __future__ import annotations

import asyncio
import logging
import math

from dledger_client.cluster.leader_stream import PRODUCE_SILENCE, LeaderStream
from dledger_client.cluster.responses import garbage
from dledger_client.cluster.retry import is_retriable
from dledger_client.cluster.router import Router
from dledger_client.producer.accumulator import RecordAccumulator
from dledger_client.producer.batches import UNSENT, ProducerBatch
from dledger_client.producer.in_flight import InFlightQueue
from dledger_client.producer.latency_fault import LatencyFaultTolerance
from dledger_client.producer.producer_session import ProducerSession
from dledger_client.producer.record_encoder import RecordEncoder
from dledger_client.producer.redispatch import Redispatcher
from dledger_client.producer.settings import ProducerOptions
from dledger_wire._pb import broker_pb2
from dledger_wire.checksum import Buffer
from dledger_wire.errors import (
    DeadlineExceededError,
    DledgerError,
    MessageTooLargeError,
    NotLeaderError,
    NotSentError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    PermissionDeniedError,
    ProducerFencedError,
)
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.rpc.transport import ByteStream
from dledger_wire.status import SendStatus

REQUEST_BYTES = 1 << 20
FIRST_WINDOW_BYTES = 2 << 20
WINDOW_BYTES = 12 << 20  # in flight to a leader that answers in time; a full request to another one
THROTTLE_MS = 1_000  # the longest that nothing is sent by a leader's word: a quota may be changed meanwhile
SLOW_SHARE = 4  # of the send timeout: answers that take longer make the window smaller
WINDOW_REQUESTS = 64
REGISTER_SILENCE_S = 0.3
GIVE_UP_MS = 1000  # without a leader for so long: messages without a key that were never sent go to another replica group
QUEUE_WINDOW = 16  # batches of one queue in flight; the broker remembers more
SWEEP_S = 0.02
QUICK_MS = 20  # answers that take no longer leave little in doubt: no look at what waits before each request
LATE_S, READ_FIRST_S = 0.02, 0.001
NOTHING_STORED = "nothing was stored"
_WAITS = {  # what a leader says that it waits for, in words
    SendStatus.FLUSH_DISK_TIMEOUT.value: "waits for its leader's disk, which is full or slow",
    SendStatus.FLUSH_SLAVE_TIMEOUT.value: "waits for its followers, which do not confirm",
    SendStatus.SLAVE_NOT_AVAILABLE.value: "waits for followers: no majority answers",
}

_logger = logging.getLogger(__name__)


class Sender:
    """One producer's sender to one replica group."""

    def __init__(
        self,
        router: Router,
        replica_group: str,
        options: ProducerOptions,
        accumulator: RecordAccumulator,
        redispatcher: Redispatcher,
        latency: LatencyFaultTolerance,
        encoder: RecordEncoder,
    ) -> None:
        self.replica_group = replica_group
        self.session = ProducerSession(router, replica_group, options)
        self._router, self._options, self._clock = router, options, router.clock
        self._accumulator, self._redispatcher, self._latency, self._encoder = accumulator, redispatcher, latency, encoder
        self._loop = asyncio.get_running_loop()
        self._stream = LeaderStream(
            router, replica_group, methods.PRODUCE, PRODUCE_SILENCE, metadata={methods.PRODUCER_GROUP: options.group}
        )
        self._queues: dict[tuple[str, int], InFlightQueue] = {}  # by topic and queue id
        self._active: dict[InFlightQueue, None] = {}  # queues with something to do, the next one to be served first
        self._wake = asyncio.Event()
        self._is_woken = False
        self._flushing = False
        self._needs_session = False  # the broker has forgotten the session
        self._fenced: ProducerFencedError | None = None
        self._requests: dict[int, tuple[list[ProducerBatch], int]] = {}  # in flight, with the time each was sent
        self._next_request_id = 1
        self._in_flight_bytes, self._window_bytes = 0, FIRST_WINDOW_BYTES
        self._held_until_ms = 0  # a quota is exceeded: nothing before, and then one request; 0: it is not
        self._throttled_until_ms = 0
        self._answer_ms = 0  # how long answers take: the longest one, which counts less with each that follows
        self._last_error: DledgerError | None = None
        self._logged = ""  # of the last error that another attempt alone will not help
        self._failing_since_ms = 0  # when the first of the failures was that no response has followed yet; 0: none
        self._waiting_for = ""  # the send status that the leader reports for the oldest request
        self._waiting_nodes = ""  # which nodes it waits for
        self._timer: asyncio.TimerHandle | None = None
        self._max_attempts = options.retry_times + 1 if options.retry_times >= 0 else 1 << 30

    # Work

    def wake_up(self) -> None:
        """The accumulator has got something.  Safe from any thread."""
        if not self._is_woken:
            self._is_woken = True
            if _running_loop() is self._loop:
                self._loop.call_soon(self.collect)
            else:
                self._loop.call_soon_threadsafe(self.collect)

    def collect(self) -> None:
        """Take over the queues that got batches."""
        self._is_woken = False  # first: an append after the next line wakes again
        for batcher in self._accumulator.touched(self.replica_group, self._clock.monotonic_ms()):
            key = (batcher.topic, batcher.queue_id)
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = InFlightQueue(batcher, self._accumulator)
            self._active[queue] = None
        self._wake.set()

    def flush(self) -> None:
        """Send everything without lingering."""
        self._flushing = True
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        return all(queue.is_idle for queue in self._active)

    def unacknowledged(self) -> list[ProducerBatch]:
        """Every batch that is not resolved, in the order of its queue."""
        self.collect()
        return [batch for queue in self._active for batch in (*queue.unacknowledged(), *self._accumulator.unsent(queue.batcher))]

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                await self._wait_for_work()
                self._schedule_sweep()
                if self._fenced is not None:
                    self._fail_all(self._fenced)
                    continue
                try:
                    await self._stream.locate()
                    await self._serve()
                except DledgerError as error:
                    if not is_retriable(error) and error.message != self._logged:
                        self._logged = error.message
                        _logger.warning("group %s: %s", self.replica_group, error.message)
                    self._last_error = error
                    self._accumulator.blocked.refused(self.replica_group, error)
                    self._avoid()
                    await self._stream.back_off(error)
                    self._sweep()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _avoid(self) -> None:
        """The replica group does not answer: messages without a key go elsewhere, those never sent when it has had time for an election."""
        now_ms = self._clock.monotonic_ms()
        if not self._failing_since_ms:
            self._failing_since_ms = now_ms
        self._latency.failed(self.replica_group)
        is_given_up = self._options.retry_another_group or now_ms - self._failing_since_ms >= GIVE_UP_MS
        self._accumulator.leave_group(self.replica_group, move_unsent=is_given_up)

    async def _wait_for_work(self) -> None:
        while self.is_idle:
            if self._last_error is not None:
                self._accumulator.blocked.ended(self.replica_group)
            self._wake.clear()
            for queue in [queue for queue in self._active if queue.is_idle]:
                del self._active[queue]
            await self._wake.wait()

    async def ensure_session(self) -> None:
        """Register with the replica group, unless that is done.  While that takes long, other groups get what may go there."""
        registering = asyncio.ensure_future(self.session.ensure())
        try:
            while not (await asyncio.wait([registering], timeout=REGISTER_SILENCE_S))[0]:
                self._avoid()
                self._sweep()
        except asyncio.CancelledError:
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)
            raise
        if registering.result():
            self._restart_sequences()

    # One stream

    async def _serve(self) -> None:
        await self.ensure_session()
        stream = self._stream.open()
        reader = self._loop.create_task(self._read_responses(), name=f"produce responses of {self.replica_group}")
        reader.add_done_callback(self._task_done)
        # Writes run in a task: a leader that reads nothing must not block deadlines and the search for another one.
        writer: asyncio.Task[None] | None = None
        try:
            while True:
                self._wake.clear()
                if reader.done():
                    reader.result()
                if self._fenced is not None:
                    self._fail_all(self._fenced)
                if self._requests:
                    await self._stream.check_leader()
                if self._needs_session and not any(queue.sent for queue in self._active):
                    await self.session.register()
                    self._restart_sequences()
                if writer is None or writer.done():
                    writer = self._write_next(stream, writer)
                self._schedule_sweep()
                await self._wake.wait()
        finally:
            await self._end_stream(reader, writer)

    def _write_next(self, stream: ByteStream, last: asyncio.Task[None] | None) -> asyncio.Task[None] | None:
        """Write the next request, if there is one, or start to if it has to wait; raises the error of the last write."""
        if last is not None:
            last.result()
        request = self._next_request()
        if request is None:
            self._flushing = self._flushing and not self.is_idle
            return None
        if stream.write_now(request):
            self._loop.call_soon(self._wake.set)  # responses that have come have their turn before the next one
            return None
        writer = self._loop.create_task(stream.write(request), name=f"produce to {self.replica_group}")
        writer.add_done_callback(self._task_done)
        return writer

    async def _end_stream(self, reader: asyncio.Task[None], writer: asyncio.Task[None] | None) -> None:
        tasks = [reader] if writer is None else [reader, writer]
        for task in tasks:
            task.cancel()
        failed = (await asyncio.gather(*tasks, return_exceptions=True))[1:]
        if failed and failed[0] is not None:  # the last request did not leave, as when the connection was never made
            for batch in self._requests.get(self._next_request_id - 1, ([], 0))[0]:
                self._queue_of(batch).not_sent(batch)
        self._requests.clear()
        self._in_flight_bytes = self._held_until_ms = 0
        for queue in self._active:
            queue.stream_lost()
            self._fail_unresolvable(queue)
        await self._stream.close()

    def _restart_sequences(self) -> None:
        self._needs_session = False
        for queue in self._queues.values():
            queue.restart()

    def _task_done(self, _task: asyncio.Task[None]) -> None:
        self._wake.set()

    def _schedule_sweep(self) -> None:
        """While there is work, a timer looks at deadlines and lingering batches, whatever the sender waits for."""
        if self._timer is None and not self.is_idle:
            interval_s = max(0.001, min(SWEEP_S, self._options.linger_ms / 1000 or SWEEP_S))
            self._timer = self._loop.call_later(interval_s, self._on_timer, self._loop.time() + interval_s)

    def _on_timer(self, due_s: float) -> None:
        self._timer = None
        if self._loop.time() - due_s > LATE_S:
            # This process was held up itself.  Some loops call timers before they read: answers that have come are first.
            self._timer = self._loop.call_later(READ_FIRST_S, self._on_timer, math.inf)
            return
        self._sweep()
        self._wake.set()
        self._schedule_sweep()

    # Requests

    def _next_request(self) -> bytes | None:
        """The next produce request: one batch of each queue that has one ready."""
        if self._in_flight_bytes >= self._window_bytes or len(self._requests) >= WINDOW_REQUESTS:
            return None
        now_ms = self._clock.monotonic_ms()
        if self._held_until_ms and (self._requests or now_ms < self._held_until_ms):
            return None  # it would wait unread, and be in doubt when its time is over
        batches: list[ProducerBatch] = []
        size = 0
        expected_ms = self._expected_ms(now_ms)
        for queue in list(self._active):
            if expected_ms > QUICK_MS:
                self._expire(queue, now_ms + expected_ms)  # it would be under way when its time is over, which leaves it in doubt
            batch = self._next_batch(queue, now_ms)
            if batch is None:
                continue
            if batch.parts is None:
                self._encode(batch)
            queue.sending(batch, self.session.producer_id, self.session.epoch)
            batches.append(batch)
            size += batch.size_bytes
            # A queue that was served goes behind the others.
            del self._active[queue]
            self._active[queue] = None
            if size >= REQUEST_BYTES:
                break
        if not batches:
            return None
        request_id, self._next_request_id = self._next_request_id, self._next_request_id + 1
        if not self._requests:
            self._stream.last_seen_ms = now_ms  # it is asked now: silence counts from here
        self._requests[request_id] = batches, now_ms
        self._in_flight_bytes += size
        payload: list[Buffer] = []
        for batch in batches:
            payload += batch.parts or ()
        timeout_ms = max(1, min([batch.deadline_ms for batch in batches]) - now_ms)
        return envelope.encode(broker_pb2.ProduceRequest(request_id=request_id, timeout_ms=timeout_ms), payload)

    def _expected_ms(self, now_ms: int) -> int:
        """How long an answer takes now: as long as lately, or longer when the oldest request in flight already waits longer."""
        oldest_ms = next(iter(self._requests.values()))[1] if self._requests else now_ms
        return min(max(self._answer_ms, now_ms - oldest_ms), self._options.send_timeout_ms // 2)

    def _next_batch(self, queue: InFlightQueue, now_ms: int) -> ProducerBatch | None:
        if queue.sent:  # else nothing of it can have to be sent again, or be numbered again
            again = queue.to_resend()
            if again is not None:
                return again
            if len(queue.sent) >= QUEUE_WINDOW or queue.is_renumbering:
                return None
        if self._needs_session:
            return None
        return self._accumulator.drain(queue.batcher, now_ms, is_idle=not self._requests, flush=self._flushing)

    def _encode(self, batch: ProducerBatch) -> None:
        try:
            batch.report.ids, batch.parts = self._encoder.encode(batch.batcher.topic, batch.batcher.queue_id, batch.messages)
        except Exception:
            self._accumulator.requeue(batch.batcher, [batch])  # an internal error ends this sender, which fails what is queued
            raise

    # Responses

    async def _read_responses(self) -> None:
        await self._stream.receive_all(self._handle_response)

    def _handle_response(self, data: bytes) -> None:
        stream = self._stream
        response = methods.PRODUCE.parse_response(data, stream.address)
        if response.waiting_for:
            self._waiting_for, self._waiting_nodes = response.waiting_for, response.waiting_nodes
            return
        stream.touch()
        self._held_until_ms = self._held_back(response.throttle_ms) if response.throttle_ms else 0
        batches, sent_ms = self._requests.pop(response.request_id, ([], 0))
        if not batches or len(batches) != len(response.results):
            raise garbage(stream.address, "a produce response to no request")
        took_ms = stream.last_seen_ms - sent_ms
        self._latency.responded(self.replica_group, took_ms)
        self._answer_ms = max(took_ms, self._answer_ms * 7 // 8)
        # What is in flight when its time is over is in doubt; what waits here is not.
        is_slow = took_ms * SLOW_SHARE > self._options.send_timeout_ms
        self._window_bytes = (
            max(REQUEST_BYTES, self._window_bytes // 2) if is_slow else min(WINDOW_BYTES, self._window_bytes + REQUEST_BYTES)
        )
        error: DledgerError | None = None
        for batch, result in zip(batches, response.results, strict=True):
            self._in_flight_bytes -= batch.size_bytes
            error = self._handle_result(batch, result) or error
        if error is not None:
            raise error
        if self._last_error is not None:
            self._accumulator.blocked.ended(self.replica_group)
        self._last_error, self._waiting_for, self._failing_since_ms, self._logged = None, "", 0, ""
        stream.confirm()
        self._wake.set()

    def _held_back(self, throttle_ms: int) -> int:
        """Until when the leader wants nothing."""
        now_ms = self._stream.last_seen_ms
        begins_ms, self._throttled_until_ms = max(now_ms, self._throttled_until_ms), now_ms + throttle_ms
        self._accumulator.throttled_ms += max(0, self._throttled_until_ms - begins_ms)
        held_ms = min(throttle_ms, THROTTLE_MS)
        self._loop.call_later(held_ms / 1000, self._wake.set)
        return now_ms + held_ms

    def _handle_result(self, batch: ProducerBatch, result: broker_pb2.BatchResult) -> DledgerError | None:
        """Resolve one batch of a response, or not; returns the error that makes a new stream necessary."""
        queue = self._queue_of(batch)
        batch.in_flight = False
        if not result.HasField("error"):
            queue.stored(batch)
            self._accumulator.release(batch)
            batch.succeed(result.first_queue_offset, result.store_timestamp_ms, is_duplicate=result.duplicate)
            return None
        error = from_detail(result.error)
        batch.maybe_stored = batch.maybe_stored or error.outcome_unknown
        if isinstance(error, ProducerFencedError) and self._options.producer_id:
            self._fenced = error
            if batch.maybe_stored:
                queue.refused(batch, rest=[])
                self._fail_maybe_stored(batch, error)
            else:
                queue.refused(batch, rest=self._redispatcher.refused(batch, error))
        elif isinstance(error, OutOfOrderSequenceError | ProducerFencedError):
            if not queue.out_of_order(batch):
                self._last_error, self._needs_session = error, True
        elif isinstance(error, NotSentError):  # by a leader that would have been too late with it
            self._refused(queue, batch, error)
        elif is_retriable(error) or error.outcome_unknown:
            if isinstance(error, NotLeaderError):
                self._router.cache.leader_is(self.replica_group, error.leader_address)
            return error
        else:
            self._refused(queue, batch, error)
        self._fail_unresolvable(queue)
        return None

    def _refused(self, queue: InFlightQueue, batch: ProducerBatch, error: DledgerError) -> None:
        """It is refused for good."""
        # If an attempt before is stored, its sequence is taken: the next batch under it would be acknowledged as that one, and be lost.
        self._needs_session = self._needs_session or batch.maybe_stored
        if batch.maybe_stored and _says_nothing_of_an_attempt_before(error):
            self._last_error = error
            queue.refused(batch, rest=[])
            self._fail_maybe_stored(batch, error)
        else:
            queue.refused(batch, rest=self._redispatcher.refused(batch, error))

    def _queue_of(self, batch: ProducerBatch) -> InFlightQueue:
        return self._queues[batch.batcher.topic, batch.batcher.queue_id]

    # Failures

    def _sweep(self) -> None:
        """Report timeouts.  What was sent stays in flight until its result is known, so that the order is kept."""
        now_ms = self._clock.monotonic_ms()
        self._recall_late(now_ms)
        for queue in self._active:
            topic = queue.batcher.topic
            for batch in queue.sent:
                out_of_attempts = not batch.in_flight and batch.attempts >= self._max_attempts
                if not batch.timed_out and (now_ms >= batch.deadline_ms or out_of_attempts):
                    when = f"after {batch.attempts} attempts" if out_of_attempts else "in time"
                    text = f"{topic}: not acknowledged {when}; it may be stored ({self._reason()})"
                    batch.time_out(self._caused(DeadlineExceededError(text, send_status=self._send_status())))
            self._expire(queue, now_ms)

    def _expire(self, queue: InFlightQueue, until_ms: int) -> None:
        """Fail what has not been sent, and is to be acknowledged by ``until_ms``."""
        for batch in self._accumulator.expire(queue.batcher, until_ms):
            text = f"{queue.batcher.topic}: could not be sent in time; {NOTHING_STORED} ({self._reason()})"
            batch.fail(self._caused(NotSentError(text)))

    def _recall_late(self, now_ms: int) -> None:
        """The newest request is late and has not left whole: its stream is given up, so no leader ever gets it, and it is not in doubt."""
        newest = self._next_request_id - 1
        batches, _sent_ms = self._requests.get(newest, ([], 0))
        if any(now_ms >= batch.deadline_ms for batch in batches) and self._stream.recall():
            del self._requests[newest]
            for batch in batches:
                self._in_flight_bytes -= batch.size_bytes
                self._queue_of(batch).not_sent(batch)

    def _fail_unresolvable(self, queue: InFlightQueue) -> None:
        unresolvable, queue.unresolvable = queue.unresolvable, []
        for batch in unresolvable:
            self._fail_maybe_stored(batch, self._fenced or self._last_error)

    def _fail_maybe_stored(self, batch: ProducerBatch, error: DledgerError | None) -> None:
        """Fail a batch that may be stored, and cannot be sent again to find out."""
        why = error.message if error is not None else "refused"
        text = f"{batch.batcher.topic}: an attempt that was not acknowledged may have stored it ({why})"
        self._accumulator.fail(batch, OutcomeUnknownError(text))

    def _fail_all(self, error: DledgerError) -> None:
        """Send nothing more: fails everything that is not in flight."""
        for queue in self._active:
            for batch in queue.give_up():
                if batch.maybe_stored:
                    self._fail_maybe_stored(batch, error)
                else:
                    self._accumulator.fail(batch, error)
            for batch in self._accumulator.expire(queue.batcher, None):
                batch.fail(error)

    def abandon(self, why: str) -> None:
        """The producer ends: report a failure for everything that is left."""
        for batch in self.unacknowledged():
            if not batch.report.settled:
                is_sent = batch.first_sequence != UNSENT
                batch.fail(OutcomeUnknownError(f"{why}; it may be stored") if is_sent else NotSentError(f"{why}; {NOTHING_STORED}"))

    def _send_status(self) -> str:
        if isinstance(self._last_error, NotLeaderError) and not self._last_error.leader_address:
            return SendStatus.SLAVE_NOT_AVAILABLE.value  # no leader: no majority is available
        return self._waiting_for

    def _caused(self, error: DledgerError) -> DledgerError:
        """The error, with what was waited for as its cause."""
        error.__cause__ = self._last_error
        return error

    def _reason(self) -> str:
        """The last error, without its statement on what was stored, which is about one attempt only."""
        error = self._last_error
        if error is not None:
            return error.message.removesuffix(f"; {NOTHING_STORED}")
        if self._held_until_ms:
            return f"a quota is exceeded: the leader of replica group {self.replica_group} takes no more now"
        nodes = f" ({self._waiting_nodes})" if self._waiting_for and self._waiting_nodes else ""
        return f"replica group {self.replica_group} {_WAITS.get(self._waiting_for, 'did not acknowledge in time')}{nodes}"


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of this thread, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _says_nothing_of_an_attempt_before(error: DledgerError) -> bool:
    """Whether a leader refuses by it before it looks whether the batch is stored: for want of time, a right, or a message over its limit.

    That a batch is too large for an entry, which no one message is to blame for, it finds later.
    """
    return isinstance(error, PermissionDeniedError | NotSentError) or (
        isinstance(error, MessageTooLargeError) and error.detail_int("first_bad") >= 0
    )
