"""The produce stream of one replica group: finds the leader, sends what lanes hold, takes the answers, starts again when it breaks.

Owns the session (producer id and epoch of this producer in that group), what is in flight, and what an answer means.  A batch goes at
once when nothing is in flight, else when it is full or an answer comes back: the busier the group, the larger the batches.  Everything
here runs on the client's event loop.

    retriable refusal, broken stream     leader looked for, everything unanswered sent again in order
    refused for good                     its messages fail; a single bad message takes only itself along
    out of order without a reason        the broker has forgotten this producer: drain, new epoch, numbers from 0
    fenced                               a producer with the same stable id was started: everything fails, for good

In the last two cases whoever may have been stored by an attempt that was not answered ends as OutcomeUnknownError (``lanes.py``).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from dledger_client.cluster.leader_stream import PRODUCE_SILENCE, LeaderStream
from dledger_client.cluster.responses import garbage, parse
from dledger_client.cluster.retry import is_retriable
from dledger_client.producer.batches import UNSENT, ProducerBatch, QueueBatcher
from dledger_wire._pb import broker_pb2
from dledger_wire.checksum import Buffer
from dledger_wire.errors import (
    DeadlineExceededError,
    DledgerError,
    NotLeaderError,
    NotReadyError,
    NotSentError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.status import SendStatus

if TYPE_CHECKING:
    from dledger_client.producer.accumulator import ProducerEngine

INIT_TIMEOUT_MS = 5000
REQUEST_BYTES = 1 << 20
WINDOW_BYTES = 12 << 20
WINDOW_REQUESTS = 64
LANE_WINDOW = 16  # batches of one queue in flight; the broker remembers more
SWEEP_S = 0.02
NEVER_MS = 1 << 62
NOTHING_STORED = "nothing was stored"

_logger = logging.getLogger(__name__)


class Sender:
    """One producer's connection to one replica group."""

    def __init__(self, engine: ProducerEngine, group: str) -> None:
        self.group = group
        self.wake_requested = False
        self._engine = engine
        self._lanes: dict[QueueBatcher, None] = {}  # those with something to do, in the order they got it
        self._wake = asyncio.Event()
        self._producer_id = 0
        self._epoch = -1  # no session yet
        self._restarting = False
        self._session_lock = asyncio.Lock()
        self._fenced: ProducerFencedError | None = None
        self.stored: dict[tuple[str, int], int] = {}  # by topic and queue: what earlier lives of this producer id have stored
        self._requests: dict[int, tuple[list[ProducerBatch], int]] = {}  # with the time it was sent
        self._next_request_id = 1
        self._in_flight_bytes = 0
        self._stream = LeaderStream(engine.router, group, methods.PRODUCE, PRODUCE_SILENCE)
        self._problem: DledgerError | None = None
        self._waiting_for = ""  # the send status that tells what the oldest request waits for
        self._flush_all = False
        self._timer: asyncio.TimerHandle | None = None
        retries = engine.options.retry_times
        self._most_attempts = retries + 1 if retries >= 0 else 1 << 30

    # Work

    def add(self, lane: QueueBatcher) -> None:
        self._lanes[lane] = None

    def wake(self) -> None:
        """There may be something to do.  Called on the loop."""
        self._wake.set()

    def _awake(self, _done: asyncio.Task[None]) -> None:
        self._wake.set()

    def flush(self) -> None:
        """Send everything without lingering."""
        self._flush_all = True
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        return all(lane.is_idle for lane in self._lanes)

    def batches(self) -> list[ProducerBatch]:
        """Everything not resolved."""
        return [batch for lane in self._lanes for batch in lane.unresolved()]

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            await self._run()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _run(self) -> None:
        while True:
            while self.is_idle:
                self._wake.clear()
                self._forget_idle_lanes()
                await self._wake.wait()
            self._watch_deadlines()
            if self._fenced is not None:
                self._fail_all(self._fenced)
                continue
            try:
                await self._stream.locate()
                await self._serve()
            except DledgerError as error:
                if not is_retriable(error):
                    _logger.warning("group %s: %s", self.group, error.message)
                self._problem = error
                self._engine.refused.group_failed(self.group)
                await self._stream.back_off(error)
                self.sweep()

    def _forget_idle_lanes(self) -> None:
        # Numbers are kept with the engine's lane, this is only the work list.
        for lane in [lane for lane in self._lanes if lane.is_idle]:
            del self._lanes[lane]

    async def ensure_session(self) -> None:
        """Register with the group unless that is done: an id, an epoch, what earlier lives have stored."""
        async with self._session_lock:
            if self._epoch < 0:
                await self._start_session()

    async def _start_session(self) -> None:
        engine = self._engine
        request = broker_pb2.InitProducerRequest(
            producer_name=engine.options.group, producer_id=self._producer_id, stable_id=engine.options.producer_id
        )
        deadline_ms = engine.router.clock.monotonic_ms() + INIT_TIMEOUT_MS
        try:
            answer = await engine.router.call_leader(
                self.group, methods.INIT_PRODUCER.path, methods.encode(request), deadline_ms=deadline_ms
            )
        except OutcomeUnknownError as error:  # of a registration, which may be repeated: no message hangs on it
            raise NotReadyError(f"no majority of group {self.group} acknowledged in time that this producer registers") from error
        response = parse(broker_pb2.InitProducerResponse, answer, self.group)
        self._producer_id, self._epoch = response.producer_id, response.epoch
        self.stored = {(each.topic, each.queue_id): each.count for each in response.stored}
        self._restarting = False
        with engine.lock:
            lanes = engine.lanes_of(self.group)
        for lane in lanes:
            lane.restart()

    # One stream

    async def _serve(self) -> None:
        await self.ensure_session()
        stream = self._stream
        stream.open()
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(), name=f"produce answers of {self.group}")
        reader.add_done_callback(self._awake)
        # Beside this task: a leader that takes nothing any more must not keep this one from deadlines and from looking for another.
        writing: asyncio.Task[None] | None = None
        try:
            while True:
                self._wake.clear()
                if reader.done():
                    reader.result()
                if self._fenced is not None:
                    self._fail_all(self._fenced)
                if self._requests:
                    await stream.check_leader()
                if self._restarting and not any(lane.sent for lane in self._lanes):
                    await self._start_session()
                if writing is None or writing.done():
                    if writing is not None:
                        writing.result()
                        writing = None
                    request = self._next_request()
                    if request is not None:
                        writing = loop.create_task(stream.write(request), name=f"produce to {self.group}")
                        writing.add_done_callback(self._awake)
                    elif self.is_idle:
                        self._flush_all = False
                self._watch_deadlines()
                await self._wake.wait()
        finally:
            ending = [reader] if writing is None else [reader, writing]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            self._requests.clear()
            self._in_flight_bytes = 0
            for lane in self._lanes:
                lane.stream_lost()
                self._fail_lost(lane)
            await stream.close()

    def _watch_deadlines(self) -> None:
        """While something is there a timer looks at deadlines and lingering batches, whatever this link waits for meanwhile."""
        if self._timer is None and not self.is_idle:
            interval_s = max(0.001, min(SWEEP_S, self._engine.options.linger_ms / 1000 or SWEEP_S))
            self._timer = asyncio.get_running_loop().call_later(interval_s, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.sweep()
        self._wake.set()
        self._watch_deadlines()

    def _next_request(self) -> bytes | None:
        """The next produce request, of one batch of each lane that has one ready."""
        if self._in_flight_bytes >= WINDOW_BYTES or len(self._requests) >= WINDOW_REQUESTS:
            return None
        batches: list[ProducerBatch] = []
        size = 0
        for lane in list(self._lanes):
            batch = self._next_of(lane)
            if batch is None:
                continue
            if batch.parts is None:
                self._encode(lane, batch)
            lane.sending(batch, self._producer_id, self._epoch)
            batches.append(batch)
            size += batch.size_bytes
            # Whoever was served goes behind the others.
            del self._lanes[lane]
            self._lanes[lane] = None
            if size >= REQUEST_BYTES:
                break
        if not batches:
            return None
        request_id, self._next_request_id = self._next_request_id, self._next_request_id + 1
        now_ms = self._engine.router.clock.monotonic_ms()
        if not self._requests:
            self._stream.touch()
        self._requests[request_id] = batches, now_ms
        self._in_flight_bytes += size
        payload: list[Buffer] = [part for batch in batches for part in batch.parts or ()]
        return envelope.encode(broker_pb2.ProduceRequest(request_id=request_id), payload)

    def _encode(self, lane: QueueBatcher, batch: ProducerBatch) -> None:
        try:
            self._engine.encode(batch)
        except Exception:
            lane.waiting.appendleft(batch)  # a bug ends this link: whoever waits for the batch is to be told
            raise

    def _next_of(self, lane: QueueBatcher) -> ProducerBatch | None:
        if len(lane.sent) >= LANE_WINDOW and lane.to_resend() is None:
            return None
        again = lane.to_resend()
        if again is not None:
            return again
        if self._restarting or lane.renumber_from != UNSENT:
            return None
        return self._engine.take(lane, idle=not self._requests, flush=self._flush_all)

    # Answers

    async def _read(self) -> None:
        stream, address = self._stream, self._stream.address
        while True:
            response = parse(broker_pb2.ProduceResponse, await stream.read(), address)
            if response.waiting_for:
                self._waiting_for = response.waiting_for
                continue
            stream.touch()
            batches, sent_ms = self._requests.pop(response.request_id, ([], 0))
            if not batches or len(batches) != len(response.results):
                raise garbage(address, "a produce answer to no request")
            self._engine.faults.answered(self.group, stream.last_seen_ms - sent_ms)
            problem: DledgerError | None = None
            for batch, result in zip(batches, response.results, strict=True):
                self._in_flight_bytes -= batch.size_bytes
                problem = self._answered(batch, result) or problem
            if problem is not None:
                raise problem
            self._problem, self._waiting_for = None, ""
            stream.confirm()
            self._wake.set()

    def _answered(self, batch: ProducerBatch, result: broker_pb2.BatchResult) -> DledgerError | None:
        """Take one batch's answer; returns the error that makes a new stream necessary."""
        batch.in_flight = False
        if not result.HasField("error"):
            batch.lane.resolved(batch)
            self._engine.stored(batch, result)
            return None
        error = from_detail(result.error)
        batch.in_doubt = batch.in_doubt or error.outcome_unknown
        if isinstance(error, ProducerFencedError) and self._engine.options.producer_id:
            self._fenced = error
            if batch.in_doubt:
                batch.lane.refused(batch, again=[])
                self._fail_in_doubt(batch, error)
            else:
                batch.lane.refused(batch, again=self._engine.refused.refuse(batch, error, -1))
        elif isinstance(error, OutOfOrderSequenceError | ProducerFencedError):
            if not batch.lane.out_of_order(batch):
                self._problem, self._restarting = error, True
        elif is_retriable(error) or error.outcome_unknown:
            if isinstance(error, NotLeaderError):
                self._engine.router.leader_is(self.group, error.leader_address)
            return error
        else:
            batch.lane.refused(batch, again=self._engine.refused.refuse(batch, error, _first_bad(error)))
        self._fail_lost(batch.lane)
        return None

    def _fail_lost(self, lane: QueueBatcher) -> None:
        lost, lane.lost = lane.lost, []
        for batch in lost:
            self._fail_in_doubt(batch, self._fenced or self._problem)

    def _fail_in_doubt(self, batch: ProducerBatch, error: DledgerError | None) -> None:
        """It may be stored, and cannot be sent again to find out."""
        why = error.message if error is not None else "refused"
        text = f"{batch.lane.topic}: an attempt that was not answered may have stored it ({why})"
        self._engine.fail(batch, OutcomeUnknownError(text))

    # Deadlines

    def sweep(self) -> None:
        """Tell the application of batches whose time is up.  What was sent stays until its fate is known, so that order is kept."""
        now_ms = self._engine.router.clock.monotonic_ms()
        for lane in self._lanes:
            for batch in lane.sent:
                tried_enough = not batch.in_flight and batch.attempts >= self._most_attempts
                if not batch.told and (now_ms >= batch.deadline_ms or tried_enough):
                    batch.told = True
                    when = f"after {batch.attempts} attempts" if tried_enough else "in time"
                    text = f"{lane.topic}: not acknowledged {when}; it may be stored ({self._why()})"
                    batch.outcome.fail(DeadlineExceededError(text, send_status=self._status()))
            for batch in self._engine.expire(lane, now_ms):
                batch.outcome.fail(NotSentError(f"{lane.topic}: could not be sent in time; {NOTHING_STORED} ({self._why()})"))

    def _fail_all(self, error: DledgerError) -> None:
        """Nothing more goes out from here; only what is in flight may still be answered."""
        for lane in self._lanes:
            for batch in lane.give_up():
                if batch.in_doubt:
                    self._fail_in_doubt(batch, error)
                else:
                    self._engine.fail(batch, error)
            for batch in self._engine.expire(lane, NEVER_MS):
                batch.outcome.fail(error)

    def _status(self) -> str:
        if isinstance(self._problem, NotLeaderError) and not self._problem.leader_address:
            return SendStatus.SLAVE_NOT_AVAILABLE.value  # nobody leads: no majority is there
        return self._waiting_for

    def _why(self) -> str:
        """What is in the way.  A refusal's word on what was stored is of that attempt alone."""
        return self._problem.message.removesuffix(f"; {NOTHING_STORED}") if self._problem is not None else f"group {self.group} is slow"


def _first_bad(error: DledgerError) -> int:
    """The one message of a batch that was at fault; -1 when it was not a single one."""
    return error.detail_int("first_bad")
