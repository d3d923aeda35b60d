"""The server's end of a stream that a client keeps open as member of a group.

Owns the messages that wait to be sent.  Sending never blocks: a member that writes and does not read is sent messages until its buffer is
full, then its stream ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

from dledger_wire.errors import DledgerError, NotReadyError
from dledger_wire.rpc.transport import ByteStream

MAX_WAITING = 5000
MAX_WAITING_BYTES = 16 << 20


class MemberStream:
    """One member's stream.  ``ended`` resolves when the server ends it, with the error that the member gets, or None."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self.ended: asyncio.Future[DledgerError | None] = asyncio.get_running_loop().create_future()

    async def read(self) -> bytes | None:
        """The member's next message; None when it has finished."""
        return await self._stream.read()

    def has_room(self, messages: int, size_bytes: int) -> bool:
        """Whether at most so many messages and bytes wait to be sent."""
        return len(self._waiting) <= messages and self._waiting_bytes <= size_bytes

    def send(self, message: bytes) -> None:
        """Queue a message for the member; ends the stream when too many wait."""
        if self.ended.done():
            return
        if not self.has_room(MAX_WAITING, MAX_WAITING_BYTES):
            self.end(NotReadyError(f"{len(self._waiting)} messages wait for this member to read them; join again"))
            return
        self._waiting.append(message)
        self._waiting_bytes += len(message)
        self._changed.set()

    def end(self, error: DledgerError | None) -> None:
        """End the stream; the member gets ``error``, if there is one."""
        if not self.ended.done():
            self.ended.set_result(error)

    async def serve(self, receive: Coroutine[Any, Any, None]) -> None:
        """Send what is queued and run ``receive`` beside it, until either is over or the stream is ended.  Raises what ended it."""
        loop = asyncio.get_running_loop()
        sending = loop.create_task(self._send_queued(), name="send to a member")
        receiving = loop.create_task(receive, name="receive from a member")
        tasks: list[asyncio.Future[Any]] = [sending, receiving]
        try:
            await asyncio.wait([*tasks, self.ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for problem in (self.ended.result() if self.ended.done() else None, *outcomes):
            if isinstance(problem, Exception):
                raise problem

    async def _send_queued(self) -> None:
        while True:
            while self._waiting:
                message = self._waiting.popleft()
                self._waiting_bytes -= len(message)
                await self._stream.write(message)
            self._changed.clear()
            await self._changed.wait()
