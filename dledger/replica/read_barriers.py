"""Linearizable reads that wait for the core's confirmation: one future a read, resolved by its token.

Owns those futures.  Waiting until the confirmed index is applied is the caller's part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger_wire.errors import NotReadyError


class ReadBarriers:
    """Reads requested and not confirmed yet."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._token = 0

    async def ask(self, request: Callable[[int], object]) -> int:
        """The read index of a new read; ``request`` passes its token to the core.  NotReadyError when it is not confirmed."""
        self._token += 1
        token = self._token
        confirmed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[token] = confirmed
        try:
            request(token)
            return await confirmed
        finally:
            self._waiting.pop(token, None)

    def ready(self, token: int, index: int) -> None:
        read = self._waiting.pop(token, None)
        if read is not None and not read.done():
            read.set_result(index)

    def failed(self, token: int, reason: str) -> None:
        read = self._waiting.pop(token, None)
        if read is not None and not read.done():
            read.set_exception(NotReadyError(reason))

    def fail_all(self, reason: str) -> None:
        for token in list(self._waiting):
            self.failed(token, reason)
