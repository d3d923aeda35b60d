"""One send of which every call is noted, and what counts of it: for the tests of a message's way through the client and the nodes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import groupby
from types import FrameType

from dledger_client.aio import Message, Producer

Note = Callable[[FrameType, str, object], None]


async def send_noted(producer: Producer, note: Note) -> None:
    """Send a message of 100 bytes to topic t; ``note`` is called as a profile function until the answer is here."""
    message, before = Message("t", b"x" * 100), sys.getprofile()
    sys.setprofile(note)
    try:
        await producer.send(message)
    finally:
        sys.setprofile(before)


def stays_of(files: Iterable[str]) -> list[str]:
    """The file of each run of calls in one file."""
    return [file for file, _ in groupby(files)]
