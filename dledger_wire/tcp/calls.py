"""Unary calls: all of a channel share one connection, and their answers come in any order.

    4 request   id u32 | length of the whole u32 | length of the method u8 | method | as much of the request as fits
    5 answer    id u32 | length of the whole u32 | as much of the answer as fits
    6 failure   id u32 | ErrorDetail
    7 part      id u32 | what follows of that request or answer
    8 cancel    id u32                                             the caller waits no more
    3 error     ErrorDetail of the whole connection: it takes no calls

A message goes in parts of at most ``PART_BYTES``, each only while little waits to be sent, so that a small answer gets in between those of
a large one.  A lost connection fails the calls on it, and a caller that gave up has its handler cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Callable, Mapping
from functools import partial

from dledger_wire.errors import BusyError, DledgerError, MessageTooLargeError
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.methods import request_limit
from dledger_wire.rpc.transport import MAX_MESSAGE_BYTES, CallContext, UnaryHandler
from dledger_wire.tcp.connection import ANSWER, CANCEL, ERROR, FAILURE, PART, REQUEST, Connection, Receiver, fresh
from dledger_wire.tcp.received_bytes import Credit
from dledger_wire.tcp.stream import error_of

PART_BYTES = 48 << 10  # a frame fits into half of the shared receive buffer
CALLS_WRITE_BUFFER = 256 << 10
CALLS_MAX_FRAME = PART_BYTES + 1024
MAX_CALLS = 1024  # of one connection at a time
SUSPECT_AFTER_S = 1.0

_HEAD = struct.Struct(">II")  # id, length of the whole
_ID = struct.Struct(">I")

_logger = logging.getLogger(__name__)


class _Whole:
    """A message of several parts, while they come."""

    def __init__(self, length: int, first: bytes, now_s: float, done: Callable[[bytes], object], credit: Credit) -> None:
        self.length, self.since_s, self.done, self.credit = length, now_s, done, credit
        self._joined = bytearray(first)  # one buffer: an object for each of many tiny parts would take many times more

    def add(self, part: bytes, now_s: float) -> bool:
        """Whether it is complete."""
        if part:
            self.since_s = now_s
        self._joined += part
        self.credit.filled = len(self._joined)
        return len(self._joined) >= self.length

    def joined(self) -> bytes:
        return bytes(self._joined)


async def send_whole(connection: Connection, kind: int, call: int, method: bytes, payload: bytes) -> None:
    """Send a request (with its method) or an answer."""
    head = _HEAD.pack(call, len(payload)) + method
    if len(payload) <= PART_BYTES:
        await connection.put_in_turn(kind, head + payload)
        return
    view, number = memoryview(payload), _ID.pack(call)
    await connection.put_in_turn(kind, head + view[:PART_BYTES])
    for at in range(PART_BYTES, len(payload), PART_BYTES):
        await connection.put_in_turn(PART, number + view[at : at + PART_BYTES])


class _CallFrames(Receiver):
    """Of both ends: the connection, and the messages of which parts are still to come, by call."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        connection.max_frame = CALLS_MAX_FRAME
        connection.set_write_buffer(CALLS_WRITE_BUFFER)
        self._loop = asyncio.get_running_loop()
        self._wholes: dict[int, _Whole] = {}

    def _begin_whole(self, call: int, length: int, first: bytes, done: Callable[[bytes], object]) -> None:
        self._wholes[call] = _Whole(length, first, self._loop.time(), done, self.connection.ask_credit(length))

    def _part(self, call: int, part: bytes) -> None:
        whole = self._wholes.get(call)
        if whole is None:
            return  # of a call that was refused, was cancelled or timed out
        if whole.add(part, self._loop.time()):
            self._whole_gone(call)
            whole.done(whole.joined())

    def _whole_gone(self, call: int) -> None:
        whole = self._wholes.pop(call, None)
        if whole is not None:
            self.connection.end_credit(whole.credit)

    def shed(self) -> None:
        for call in list(self._wholes):
            self._whole_gone(call)


class Calls(_CallFrames):
    """The caller's end."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.used_s = self._loop.time()  # when a call was last under way
        self.suspect = False  # a caller timed out while nothing arrived at all
        self._waiting: dict[int, asyncio.Future[bytes | DledgerError]] = {}
        self._last = 0
        self._error: DledgerError | None = None

    @property
    def is_usable(self) -> bool:
        return self._error is None and not self.suspect and self.connection.is_open

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    async def call(self, method: bytes, request: bytes) -> bytes:
        """The answer.  Raises what the handler raised, or UnreachableError when the connection is lost first."""
        if self._error is not None:  # the server took no calls, and has said so before this one
            raise fresh(self._error)
        if not self.connection.is_connected:  # lost before anything was asked
            raise await self.connection.why_gone()
        self._last = call = self._last % 0xFFFF_FFFF + 1
        begun_s = self.used_s = self._loop.time()
        answered: asyncio.Future[bytes | DledgerError] = self._loop.create_future()
        self._waiting[call] = answered
        try:
            await send_whole(self.connection, REQUEST, call, bytes((len(method),)) + method, request)
            answer = await answered
        except asyncio.CancelledError:
            self._give_up(call, begun_s)
            raise
        finally:
            self.used_s = self._loop.time()
            self._waiting.pop(call, None)
            self._whole_gone(call)
        if isinstance(answer, DledgerError):
            raise answer
        return answer

    def _give_up(self, call: int, begun_s: float) -> None:
        if self.connection.last_received_s < begun_s < self._loop.time() - SUSPECT_AFTER_S:
            self.suspect = True
        if self.connection.is_open:
            self.connection.put(CANCEL, _ID.pack(call))

    def _resolve(self, call: int, outcome: bytes | DledgerError) -> None:
        waiting = self._waiting.get(call)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    # -- the connection's receiver

    def frame(self, kind: int, payload: bytes) -> None:
        if kind == ANSWER and len(payload) >= _HEAD.size:
            call, length = _HEAD.unpack_from(payload)
            answer = payload[_HEAD.size :]
            if len(answer) >= length:
                self._resolve(call, answer)
            elif length > MAX_MESSAGE_BYTES:
                self._resolve(call, MessageTooLargeError(f"answer of {length} bytes; expected at most {MAX_MESSAGE_BYTES}"))
            elif call in self._waiting:
                self._begin_whole(call, length, answer, partial(self._resolve, call))
        elif kind == PART and len(payload) >= _ID.size:
            self._part(_ID.unpack_from(payload)[0], payload[_ID.size :])
        elif kind == FAILURE and len(payload) >= _ID.size:
            self._resolve(_ID.unpack_from(payload)[0], error_of(payload[_ID.size :], self.connection.peer))
        elif kind == ERROR:
            self._fail(error_of(payload, self.connection.peer))

    def lost(self) -> None:
        self._fail(self.connection.gone())

    def _fail(self, error: DledgerError) -> None:
        self._error = self._error or error
        for call in list(self._waiting):
            self._resolve(call, fresh(self._error))


class ServedCalls(_CallFrames):
    """The server's end: runs the handlers of the calls on one connection."""

    def __init__(self, connection: Connection, handlers: Mapping[bytes, tuple[str, UnaryHandler]], context: CallContext) -> None:
        super().__init__(connection)
        self._handlers = handlers
        self._context = context
        self._running: dict[int, asyncio.Task[None]] = {}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._running.values())

    @property
    def is_idle(self) -> bool:
        return not self._running

    @property
    def waits_since(self) -> float:
        """When the last part came of that request which has waited longest for its next; infinite when none waits, or none is read."""
        if not self._wholes or self.connection.is_paused:
            return math.inf
        return max(self.connection.resumed_s, min(whole.since_s for whole in self._wholes.values()))

    # -- the connection's receiver

    def frame(self, kind: int, payload: bytes) -> None:
        if kind == REQUEST and len(payload) > _HEAD.size and len(payload) > _HEAD.size + payload[_HEAD.size]:
            self._request(payload)
        elif kind == PART and len(payload) >= _ID.size:
            self._part(_ID.unpack_from(payload)[0], payload[_ID.size :])
        elif kind == CANCEL and len(payload) == _ID.size:
            self._cancel(_ID.unpack(payload)[0])
        else:
            self.connection.violate(f"a frame of kind {kind} and {len(payload)} bytes between calls")

    def lost(self) -> None:
        self.shed()
        for task in self._running.values():
            task.cancel()

    def _request(self, payload: bytes) -> None:
        call, length = _HEAD.unpack_from(payload)
        begin = _HEAD.size + 1 + payload[_HEAD.size]
        method = payload[_HEAD.size + 1 : begin]
        name, handler = self._handlers.get(method, ("", None))
        if call in self._running or call in self._wholes:
            self.connection.violate(f"call {call} twice")
        elif handler is None:
            self._fail(call, DledgerError(f"method {method.decode(errors='replace')} is not served here"))
        elif length > request_limit(name):
            text = f"{name}: request of {length} bytes; expected at most {request_limit(name)}"
            self._fail(call, MessageTooLargeError(text))
        elif len(self._running) + len(self._wholes) >= MAX_CALLS:
            self._fail(call, BusyError(f"{MAX_CALLS} calls on one connection are under way"))
        elif len(payload) - begin >= length:
            self._run(call, name, handler, payload[begin:])
        elif not self.connection.may_ask(length):
            self._fail(call, BusyError("too many bytes of requests are not complete; nothing of this one was kept"))
        else:
            self._begin_whole(call, length, payload[begin:], partial(self._run, call, name, handler))

    def _cancel(self, call: int) -> None:
        self._whole_gone(call)
        task = self._running.get(call)
        if task is not None:
            task.cancel()

    # -- handlers

    def _run(self, call: int, name: str, handler: UnaryHandler, request: bytes) -> None:
        self._running[call] = self._loop.create_task(self._serve(call, name, handler, request), name=name)

    async def _serve(self, call: int, name: str, handler: UnaryHandler, request: bytes) -> None:
        try:
            answer = await handler(request, self._context)
            if len(answer) > MAX_MESSAGE_BYTES:
                raise MessageTooLargeError(f"{name}: answer of {len(answer)} bytes; expected at most {MAX_MESSAGE_BYTES}")
            await send_whole(self.connection, ANSWER, call, b"", answer)
        except DledgerError as error:
            self._fail(call, error)
        except Exception as error:  # a bug in one handler must not end the server; the caller learns that it was one
            _logger.exception("%s: handler failed", name, extra={"event": "handler_failed"})
            self._fail(call, DledgerError(f"{name}: internal error {type(error).__name__}"))
        finally:
            self._running.pop(call, None)

    def _fail(self, call: int, error: DledgerError) -> None:
        if self.connection.is_open:
            self.connection.put(FAILURE, _ID.pack(call) + to_detail(error).SerializeToString())
