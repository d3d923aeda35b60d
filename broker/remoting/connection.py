"""One connection of a RocketMQ client: its bytes, its requests and their answers.

Owns framing and bounds.  Requests are served side by side; the connection is not read while there are ``MAX_REQUESTS``, or while they hold
more than its share of ``ReceivedBytes``, which gives credit for a large frame before more of it is read.  Answers go out as they come.  A
connection that says nothing for ``IDLE_S`` is closed, as RocketMQ does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import cast

from broker.remoting.command import ONEWAY, RESPONSE, Command, decode, encode, frame_size
from dledger_wire.checksum import Buffer
from dledger_wire.errors import DeadlineExceededError, DledgerError, InvalidArgumentError, UnreachableError
from dledger_wire.tcp.counted import Counted
from dledger_wire.tcp.listener import named
from dledger_wire.tcp.rare_warning import RareWarning
from dledger_wire.tcp.received_bytes import Credit, ReceivedBytes

MAX_REQUESTS = 20_000  # a consumer has one pull under way for each of its queues
IDLE_S = 120.0
LOOK_S = 10.0
HEAD_BYTES = 8
SMALL_FRAME_BYTES = 64 << 10  # needs no credit

_strangers = RareWarning()

Serve = Callable[["RemotingConnection", Command], Awaitable[Command | None]]


class RemotingConnection(asyncio.Protocol):
    """``serve`` returns the answer to a request; ``on_close`` are called once it is gone.  ``counted``: of one that was accepted."""

    is_members = False

    def __init__(self, counted: Counted | None, serve: Serve, memory: ReceivedBytes) -> None:
        self.peer = ""
        self.language, self.version, self.form = "OTHER", 0, 0
        self.on_close: list[Callable[[], object]] = []
        self._counted, self._serve, self._memory = counted, serve, memory
        self._served_bytes = self._rest_bytes = 0  # counted there: of requests, and of a frame without credit that is not complete
        self._is_released = False
        self._credit: Credit | None = None  # for the frame that is not complete
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []  # of a frame that is not complete
        self._part_bytes = 0
        self._wanted = HEAD_BYTES
        self._serving: set[asyncio.Task[None]] = set()
        self._asked: dict[int, asyncio.Future[Command]] = {}
        self._numbers = count(1)
        self._is_waiting = False  # not read
        self._writable = asyncio.Event()
        self._writable.set()
        self._seen_s = self._loop.time()
        self._look: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    # Bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = named(transport.get_extra_info("peername"))
        if self._counted is not None:
            self._counted.opened(self._transport)
        self._look = self._loop.call_later(LOOK_S, self._look_at_silence)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        if self._counted is not None:
            self._counted.lost()
        self._release()
        self._writable.set()
        if self._look is not None:
            self._look.cancel()
        for task in self._serving:
            task.cancel()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(UnreachableError(f"{self.peer} has gone"))
        for closed in self.on_close:
            closed()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _look_at_silence(self) -> None:
        if self._loop.time() - self._seen_s > IDLE_S and not self._is_waiting:
            self.abort()
            return
        self._look = self._loop.call_later(LOOK_S, self._look_at_silence)

    def data_received(self, data: bytes) -> None:
        self._seen_s = self._loop.time()
        self._parts.append(data)
        self._part_bytes += len(data)
        if self._credit is not None:
            self._credit.filled = self._part_bytes
        if self._part_bytes >= self._wanted:
            self._take_frames()
        self._count_rest()

    def _take_frames(self) -> None:
        """Serve every whole frame, and keep the rest."""
        data = memoryview(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))
        at, wanted = 0, HEAD_BYTES
        try:
            while len(data) - at >= HEAD_BYTES:
                size = frame_size(data[at : at + HEAD_BYTES])
                if len(data) - at < size:
                    wanted = size
                    break
                self._end_credit()
                self._received(decode(data[at : at + size]), size)
                at += size
        except InvalidArgumentError as error:
            _strangers.log(f"{self.peer}: closed: no RocketMQ client: {error.message}")
            self.abort()
            return
        rest = bytes(data[at:])
        self._parts, self._part_bytes, self._wanted = [rest] if rest else [], len(rest), wanted
        if wanted > SMALL_FRAME_BYTES and self._credit is None and not self._is_released:
            self._credit = self._memory.ask(self, wanted)
        self._memory.give()
        self._pause_or_go_on()

    def _count_rest(self) -> None:
        rest_bytes = self._part_bytes if self._credit is None else 0
        if rest_bytes != self._rest_bytes and not self._is_released:
            change, self._rest_bytes = rest_bytes - self._rest_bytes, rest_bytes
            self._memory.wait(self, change)

    @property
    def is_paused(self) -> bool:
        return len(self._serving) >= MAX_REQUESTS or self._served_bytes > self._memory.waiting_bytes

    def _pause_or_go_on(self) -> None:
        """Read on as long as there is room for requests and credit for the frame that has begun."""
        if self._transport is None:
            return
        waits = self.is_paused or (self._credit is not None and not self._credit.granted)
        if waits and not self._is_waiting:
            self._transport.pause_reading()
        elif self._is_waiting and not waits:
            self._seen_s = self._loop.time()
            self._transport.resume_reading()
        self._is_waiting = waits

    def credited(self, _credit: Credit) -> None:
        self._pause_or_go_on()

    def drop(self, _error: DledgerError) -> None:
        """Close it, and keep nothing of it: its client learns of it by that."""
        self._release()
        self.abort()

    def _end_credit(self) -> None:
        credit, self._credit = self._credit, None
        if credit is not None:
            self._memory.end(credit)

    def _hold(self, change: int) -> None:
        """A request is served, or was."""
        if not self._is_released:
            self._served_bytes += change
            self._memory.wait(self, change)

    def _release(self) -> None:
        """Nothing of it counts any more."""
        if not self._is_released:
            self._end_credit()
            self._memory.wait(self, -self._served_bytes - self._rest_bytes)
            self._is_released = True
            self._memory.give()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    # Requests of the client

    def _received(self, command: Command, size_bytes: int) -> None:
        if self._counted is not None:
            self._counted.asked()
        self.language, self.version, self.form = command.language, command.version, command.form
        if command.is_response:
            waiting = self._asked.pop(command.opaque, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(command)
            return
        self._hold(size_bytes)
        task = self._loop.create_task(self._answer(command), name=f"remoting {command.code}")
        self._serving.add(task)
        task.add_done_callback(lambda done: self._served(done, size_bytes))

    def _served(self, task: asyncio.Task[None], size_bytes: int) -> None:
        self._serving.discard(task)
        self._hold(-size_bytes)
        self._pause_or_go_on()

    async def _answer(self, request: Command) -> None:
        answer = await self._serve(self, request)
        if answer is None or request.is_oneway:
            return
        answer.opaque, answer.flag, answer.form = request.opaque, RESPONSE, request.form
        await self._writable.wait()
        self._write(answer)

    def _write(self, command: Command) -> None:
        if self._transport is not None:
            self._transport.write(encode(command))

    # Requests of the server

    def notify(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request that has no answer."""
        self._write(Command(code, fields, body, opaque=self._next_number(), flag=ONEWAY, form=self.form))

    async def ask(self, code: int, fields: Mapping[str, str], body: Buffer, timeout_s: float) -> Command:
        """The client's answer to a request.  UnreachableError, DeadlineExceededError."""
        if self._transport is None:
            raise UnreachableError(f"{self.peer} has gone")
        number = self._next_number()
        waiting = self._asked[number] = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                while not self._writable.is_set():  # others that waited may have filled it again
                    await self._writable.wait()
                self._write(Command(code, fields, body, opaque=number, form=self.form))
                answer: Command = await waiting
                return answer
        except TimeoutError:
            raise DeadlineExceededError(f"{self.peer} did not answer request {code} within {timeout_s:g} s") from None
        finally:
            self._asked.pop(number, None)

    def _next_number(self) -> int:
        return next(self._numbers) & 0x7FFFFFFF
