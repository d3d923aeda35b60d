"""Messages of a stream given to a receiver as they arrive: ``ByteStream.receive`` for its implementations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

# Takes a message; whether it wants the next one as well.
Take = Callable[[bytes], bool]


class Delivery:
    """One wait for messages.  The callback in which a message arrives calls ``deliver``: no task is woken for it.

    ``over`` resolves when the receiver wants no more, with whatever it raised, and when the implementer ends the wait: something other
    than a message has come.
    """

    __slots__ = ("_take", "over", "stopped")

    def __init__(self, take: Take) -> None:
        self._take = take
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopped = False  # by the receiver

    @property
    def is_open(self) -> bool:
        """Whether the next message is to be delivered; one that is not has to wait in the stream."""
        return not self.over.done()

    def deliver(self, message: bytes) -> None:
        try:
            if self._take(message):
                return
        except Exception as error:  # noqa: BLE001 - raised to the waiting reader, as if it had read the message itself
            if self.is_open:
                self.over.set_exception(error)
            return
        self.stopped = True
        self.end()

    def end(self) -> None:
        if self.is_open:
            self.over.set_result(None)


async def receive_by_reading(read: Callable[[], Awaitable[bytes | None]], take: Take) -> bool:
    """``ByteStream.receive`` where messages cannot be had but by reading."""
    while (message := await read()) is not None:
        if not take(message):
            return True
    return False
