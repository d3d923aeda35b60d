"""The Produce stream: batches in, results out as they commit.

Owns what is in flight on one stream: requests are checked and proposed as they arrive, answered in arrival order, and bounded by bytes, so
that the stream's flow control slows down a client that sends faster than the group commits.  A request of many small batches is checked
and proposed in slices, so that other work runs between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from functools import partial

from broker.api.node_state import SLOW_DISK_S
from broker.api.produce_request import NOTHING, Request, Slice, slices_of
from broker.context import ServiceContext
from broker.quotas.produce import ProduceQuota
from broker.support.measures import method_name
from dledger.replica.room import Flow
from dledger.settings import PeerStatus, RaftStatus
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, NotSentError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Server, TimedStream
from dledger_wire.security.principal import Principal
from dledger_wire.status import SendStatus
from store.append.prepared import BatchOutcome
from store.commands.security import Action

STREAM_BYTES = 16 << 20  # in flight on one stream
STREAM_REQUESTS = 4096
LOOK_S = 1.0  # how often a request that waits looks whether the disk is full
_NAME = method_name(methods.PRODUCE.path)


class ProduceService:
    """Takes batches on the master."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def register(self, server: Server) -> None:
        methods.PRODUCE.serve(server, self.produce)

    async def produce(self, stream: ByteStream, caller: CallContext) -> None:
        quota, measures = ProduceQuota(self._context.quotas, caller), self._context.measures
        requests = _ProduceStream(self._context, stream, caller.principal, quota)
        answers = asyncio.get_running_loop().create_task(requests.answer(), name="produce answers")
        try:
            quota.owes()
            if quota.is_overdrawn:
                await quota.pay(answers.done)
            while await stream.receive(requests.take) and not answers.done():
                began_s = measures.stopwatch()
                await requests.turn()
                measures.backpressure_s += measures.stopwatch() - began_s
                await requests.accept_held()
                began_s = measures.stopwatch()
                await requests.room()
                measures.backpressure_s += measures.stopwatch() - began_s
                if quota.is_overdrawn:
                    await quota.pay(answers.done)
            requests.finish()
            await answers
        finally:
            answers.cancel()
            requests.end()
            quota.close()
            await asyncio.gather(answers, return_exceptions=True)  # its outcome does not matter: the stream has ended


class _ProduceStream:
    """One stream's requests, oldest first.

    A request is taken and answered in the callbacks that bring it and its outcome.  A task does what has to wait: for room, for a client
    that reads slowly, for an outcome that is late.
    """

    def __init__(self, context: ServiceContext, stream: ByteStream, caller: Principal, quota: ProduceQuota) -> None:
        self._context, self._measures = context, context.measures
        self._stream, self._quotas, self._quota = stream, context.quotas, quota
        self._timed = stream if isinstance(stream, TimedStream) else None
        self._flow = Flow(caller.name)
        self._unacknowledged = quota.unacknowledged
        self._loop = asyncio.get_running_loop()
        self._check_writer = partial(context.access.require_topic, caller, Action.WRITE)
        self._check_producer = partial(context.access.require_producer, caller)
        self._pending: deque[Request] = deque()
        self._bytes = 0
        self._held: Request | None = None  # taken, and not accepted yet
        self._answered = asyncio.Event()
        self._needed = asyncio.Event()  # ``answer`` has something to do
        self._is_writing = False
        self._finished = self._ended = False
        self._bug: BaseException | None = None
        self._timeout_s = context.settings.cluster.store.syncFlushTimeout / 1000
        self._look_s = min(LOOK_S, self._timeout_s)
        self._look: asyncio.TimerHandle | None = None
        self._waits_since_s = 0.0  # since the oldest request became that, or its client was sent the reason

    # Requests

    @property
    def is_full(self) -> bool:
        is_full = self._bytes >= STREAM_BYTES or len(self._pending) >= STREAM_REQUESTS
        return is_full or (self._quotas.limits_unacknowledged and self._quota.is_full)

    async def turn(self) -> None:
        """Wait until the request that is held may be proposed, or is too late for that."""
        held = self._held
        if held is not None:
            left_s = held.left_s(self._measures.stopwatch())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s if left_s < math.inf else None):
                    await self._context.raft.room.wait(self._flow, held.size_bytes)

    async def room(self) -> None:
        """Wait until there is room again, or answering ended."""
        while self.is_full and not self._ended:
            self._answered.clear()
            with self._quota.waits(self._answered):
                await self._answered.wait()

    def finish(self) -> None:
        """No more requests follow: answering ends with the last one."""
        self._finished = True
        self._needed.set()

    def end(self) -> None:
        """The stream is over: nothing is answered any more."""
        self._ended = True
        self._unacknowledged.size_bytes -= self._bytes
        self._bytes = 0
        self._unacknowledged.wake()
        if self._look is not None:
            self._look.cancel()

    def take(self, message: bytes) -> bool:
        """Accept a request at once; False when it is held instead, or the next one has to wait.

        InvalidArgumentError ends the stream: no request, or too many batches.
        """
        header, payload = envelope.decode(broker_pb2.ProduceRequest, message)
        slices = slices_of(payload)
        timeout_s = header.timeout_ms / 1000
        since_s = self._measures.stopwatch()
        if self._timed is not None and self._timed.since_s:  # a large one, which had to wait until it was read
            since_s -= self._loop.time() - self._timed.since_s
        pending = Request(header.request_id, len(message), payload, slices, [], since_s, timeout_s)
        if self._ended or len(slices) > 1 or not self._context.raft.room.enters(self._flow, len(message)):
            pending.was_held, self._held = True, pending
            return False
        pending.parts.append(self._proposed(pending, *slices[0]))
        self._accept(pending)
        return not self.is_full and not self._quota.is_overdrawn

    async def accept_held(self) -> None:
        """Accept the request that was held, if one was."""
        pending, self._held = self._held, None
        if pending is None:
            return
        for each in pending.slices:
            if pending.parts:
                await asyncio.sleep(0)
            pending.parts.append(self._proposed(pending, *each))
        self._accept(pending)

    def _accept(self, pending: Request) -> None:
        """What a request holds is proposed."""
        pending.payload = NOTHING
        if not self._pending:
            self._waits_since_s = self._loop.time()
        self._pending.append(pending)
        self._bytes += pending.size_bytes
        self._unacknowledged.size_bytes += pending.size_bytes
        if self._look is None:
            self._look = self._loop.call_later(self._look_s, self._look_again)
        self._answer_now()

    def _proposed(self, pending: Request, first: int, end: int, count: int) -> Slice:
        payload = pending.payload[first:end]
        # An error that is kept goes without its traceback: it would keep this frame, and with it the payload, in a cycle.
        try:
            self._context.require_master()
            self._context.require_room()
            self._require_time(pending)
            prepared = self._context.store.prepare(payload, check_writer=self._check_writer, check_producer=self._check_producer)
        except DledgerError as error:
            return Slice([BatchOutcome() for _ in range(count)], refusal=error.with_traceback(None))
        if self._quotas.limits_produce:
            self._quota.sent(prepared.sizes())
        part = Slice(prepared.outcomes)
        if prepared.size_bytes:
            part.waiting = self._decided
            try:
                self._context.raft.propose_for(prepared, part)
            except DledgerError as error:
                part.waiting, part.refusal = None, error.with_traceback(None)
        return part

    def _require_time(self, pending: Request) -> None:
        """NotSentError when it cannot be committed before its client gives up, which would leave that in doubt."""
        window = self._context.raft.window
        if not window.waits_since_s and not pending.was_held:
            return  # it is under way alone
        now_s = self._measures.stopwatch()
        left_s, expected_s = pending.left_s(now_s), window.expected_s(now_s)
        if left_s > expected_s:
            return
        took = f"it waited {now_s - pending.since_s:.1f} s for its turn" if left_s <= 0 else f"a commit takes {expected_s:.1f} s now"
        _status, nodes = waiting_for(self._context)
        why = f" ({nodes})" if nodes else ""
        raise NotSentError(f"refused by the leader: {took}{why}, {pending.timeout_s:.1f} s were given; nothing was stored")

    # Answers

    def _decided(self) -> None:
        """The log decided on a slice, which may be the one that the oldest request waits for."""
        try:
            self._answer_now()
        except Exception as error:  # noqa: BLE001 - ends the stream, and not the replica that calls this
            self._bug = error
            self._needed.set()

    def _answer_now(self) -> None:
        """Answer what is decided, the oldest first; what cannot be written at once is left to the task."""
        if self._is_writing or self._ended:
            return
        while self._bug is None and self._pending and self._pending[0].is_decided:
            throttle_ms = self._quota.owed_ms if self._quota.is_overdrawn else 0
            if not self._stream.write_now(self._pending[0].response(throttle_ms)):
                self._needed.set()
                return
            self._note_answered()
        if self._bug is not None or (self._finished and not self._pending):
            self._needed.set()

    def _note_answered(self) -> None:
        pending = self._pending.popleft()
        self._measures.request(_NAME, pending.code, self._measures.stopwatch() - pending.since_s)
        self._bytes -= pending.size_bytes
        self._unacknowledged.size_bytes -= pending.size_bytes
        if self._unacknowledged.waiting:
            self._unacknowledged.wake()
        self._waits_since_s = self._loop.time()
        self._answered.set()

    def _look_again(self) -> None:
        """From time to time while requests wait: their client may have to be sent the reason."""
        self._look = None
        if self._pending and not self._ended:
            self._look = self._loop.call_later(self._look_s, self._look_again)
            self._needed.set()

    async def answer(self) -> None:
        """Answer what was not answered at once."""
        try:
            while self._pending or not self._finished:
                await self._needed.wait()
                self._needed.clear()
                if self._bug is not None:
                    raise self._bug
                self._is_writing = True
                try:
                    await self._write_waiting()
                finally:
                    self._is_writing = False
                if self._pending and self._pending[0].is_decided:  # while a message was written that had to wait
                    self._needed.set()
        finally:
            self.end()
            self._answered.set()

    async def _write_waiting(self) -> None:
        while self._pending and self._pending[0].is_decided:
            await self._stream.write(self._pending[0].response())
            self._note_answered()
        if self._pending and self._is_late:
            pending, self._waits_since_s = self._pending[0], self._loop.time()
            status, nodes = waiting_for(self._context)
            waiting = broker_pb2.ProduceResponse(request_id=pending.request_id, waiting_for=status.value, waiting_nodes=nodes)
            await self._stream.write(methods.encode(waiting))

    @property
    def _is_late(self) -> bool:
        """Whether to send a client what its oldest request waits for: after a while, and on a full disk at once."""
        waited_s = self._loop.time() - self._waits_since_s
        return waited_s >= self._timeout_s or (waited_s >= self._look_s and self._context.is_out_of_disk)


def waiting_for(context: ServiceContext) -> tuple[SendStatus, str]:
    """Why the oldest uncommitted entry waits, as RocketMQ's send status (docs/reference/semantics/send.md), and for which nodes.

    The reasons: the master's own disk, too few connected replicas, or replicas that do not confirm.  Each node
    comes with what is known of its disk.
    """
    status = context.raft.status()
    kind, late = late_parts(context, status)
    if kind is SendStatus.FLUSH_DISK_TIMEOUT:
        return kind, f"{status.node_id}: {_own_disk(status)}"
    timeout_ms = context.settings.cluster.raft.election_timeout_ms
    return kind, ", ".join(f"{peer.node_id}: {_peer(peer, timeout_ms)}" for peer in late)


def late_parts(context: ServiceContext, status: RaftStatus) -> tuple[SendStatus, list[PeerStatus]]:
    """Why the oldest uncommitted entry waits, and the followers that it waits for: none where that is the master's own disk."""
    sync = context.settings.cluster.store.flushDiskType == "SYNC_FLUSH"
    if sync and status.durable.index <= status.commit_index < status.last.index:
        return SendStatus.FLUSH_DISK_TIMEOUT, []
    voters = [peer for peer in status.peers if peer.voter]
    timeout_ms = context.settings.cluster.raft.election_timeout_ms
    connected = [peer for peer in voters if peer.node_id == status.node_id or peer.answers(timeout_ms)]
    kind = SendStatus.FLUSH_SLAVE_TIMEOUT if len(connected) > len(voters) // 2 else SendStatus.SLAVE_NOT_AVAILABLE
    return kind, [peer for peer in voters if peer.node_id != status.node_id and peer.match_index <= status.commit_index]


def _own_disk(status: RaftStatus) -> str:
    return "its disk is full" if status.disk_full else _slow_disk(status.slowest_flush_s)


def _slow_disk(sync_s: float) -> str:
    return f"a write takes {sync_s:.1f} s to be on its disk"


def _peer(peer: PeerStatus, timeout_ms: int) -> str:
    if peer.low_on_space:
        return "its disk is full or nearly so"
    if not peer.answers(timeout_ms):
        return "does not answer"
    sync_s = peer.sync_ms / 1000
    return _slow_disk(sync_s) if sync_s >= SLOW_DISK_S else "connected, does not confirm"
