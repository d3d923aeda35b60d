"""A stream whose rights are looked at for as long as it is open: one without a remaining right ends at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.context import Access
from dledger_wire.errors import DledgerError
from dledger_wire.rpc.delivery import Take, receive_by_reading
from dledger_wire.rpc.transport import ByteStream
from dledger_wire.tasks import let_go


class GuardedStream:
    """Implements ``ByteStream``.  ``check`` raises why the caller may not have it; call ``release`` when the stream is over."""

    def __init__(self, stream: ByteStream, access: Access, check: Callable[[], None]) -> None:
        check()
        self._stream = stream
        self._check = check
        self._refused: asyncio.Future[DledgerError] = asyncio.get_running_loop().create_future()
        self.release = access.on_change(self._look)

    def _look(self) -> None:
        try:
            self._check()
        except DledgerError as error:
            if not self._refused.done():
                self._refused.set_result(error)

    async def read(self) -> bytes | None:
        reading = asyncio.ensure_future(self._stream.read())
        try:
            await asyncio.wait((reading, self._refused), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await let_go(reading)
        self._raise_refusal()
        return reading.result()

    async def receive(self, take: Take) -> bool:
        return await receive_by_reading(self.read, take)

    async def write(self, message: bytes) -> None:
        self._raise_refusal()
        await self._stream.write(message)

    def write_now(self, message: bytes) -> bool:
        return not self._refused.done() and self._stream.write_now(message)

    async def close(self) -> None:
        await self._stream.close()

    def _raise_refusal(self) -> None:
        if self._refused.done():
            raise self._refused.result()
