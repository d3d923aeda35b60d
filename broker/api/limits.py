"""How much one request may ask for, and how long work for it is done without letting the node's own go on.

Owns the numbers.  A request over its limit is refused before anything is done for it; one below is worked off in slices: a loop that is
kept busy for an election timeout costs this node the leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from dledger_wire.errors import InvalidArgumentError

MAX_ITEMS = 10_000  # names, queues, offsets of one request
MAX_NAME_CHARS = 32_767  # of what is looked up: no longer than all properties of a message
SLICE = 200

T = TypeVar("T")


def at_most(count: int, what: str, most: int = MAX_ITEMS) -> None:
    """Refuse a request with ``count`` of something: InvalidArgumentError over ``most``."""
    if count > most:
        raise InvalidArgumentError(f"{count} {what} in one request; expected at most {most}")


async def in_slices(items: Iterable[T], every: int = SLICE) -> AsyncIterator[T]:
    """The items; other work runs between slices of ``every``."""
    for number, item in enumerate(items):
        if number and number % every == 0:
            await asyncio.sleep(0)
        yield item
