"""Request limits: how much one request may ask for, and how long it may occupy the event loop.

Owns the numbers.  A request over its limit is refused before any work is done.  A long one is processed in slices: an event loop that is
blocked for an election timeout costs this node the leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from dledger_wire.errors import InvalidArgumentError

MAX_ITEMS = 10_000  # names, queues, offsets of one request
MAX_NAME_CHARS = 32_767  # of a key to look up: no longer than all properties of a message
SLICE = 200

T = TypeVar("T")


def at_most(count: int, what: str, limit: int = MAX_ITEMS) -> None:
    """Refuse a request with ``count`` of something: InvalidArgumentError over ``limit``."""
    if count > limit:
        raise InvalidArgumentError(f"{count} {what} in one request; expected at most {limit}")


async def in_slices(items: Iterable[T], every: int = SLICE) -> AsyncIterator[T]:
    """The items; other work runs between slices of ``every``."""
    for number, item in enumerate(items):
        if number and number % every == 0:
            await asyncio.sleep(0)
        yield item
