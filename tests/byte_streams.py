"""What is alike in streams that tests put in the place of real ones."""

from __future__ import annotations

from typing import Protocol

from dledger_wire.rpc.delivery import Take, receive_by_reading


class _Readable(Protocol):
    async def read(self) -> bytes | None: ...


class TaskwiseStream:
    """A ``ByteStream`` whose messages are read and written by tasks only."""

    async def receive(self: _Readable, take: Take) -> bool:
        return await receive_by_reading(self.read, take)

    def write_now(self, _message: bytes) -> bool:
        return False
