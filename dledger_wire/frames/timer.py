"""Messages that wait for a moment of their own: where their due time stands, and how a whole batch is asked for it.

Owns the one property a message in ``TIMER_TOPIC`` must have.  It comes right behind UNIQ_KEY and is always 13 digits, so that the leader
and the replicas read it out of a batch without looking at anything else:

    UNIQ_KEY \\x01 32 characters \\x02 TIMER_OUT_MS \\x01 13 digits \\x02 ...
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import UNIQ_KEY_PREFIX, UNIQUE_ID_SIZE
from dledger_wire.frames.frames import Bytes1D, Int64s, equal_at, frame_columns, gather

TIMER_OUT = "TIMER_OUT_MS"
TIMER_DELIVER = "TIMER_DELIVER_MS"
REAL_UNIQUE = "REAL_UNIQ_KEY"  # the id of a message that waits under another one
MAX_TIMER_DELAY_MS = 40 * 86_400_000
_NAME = TIMER_OUT.encode() + b"\x01"
_NAME_AT = len(UNIQ_KEY_PREFIX) + UNIQUE_ID_SIZE + 1
_DIGITS_AT = _NAME_AT + len(_NAME)
_DIGITS = 13
_POWERS = 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64)


def waiting_id(unique_id: str) -> str:
    """The id under which a message waits: its own, or one of the right length that is always made of it."""
    if len(unique_id) == UNIQUE_ID_SIZE and unique_id.isascii():
        return unique_id
    return hashlib.md5(unique_id.encode(), usedforsecurity=False).hexdigest().upper()


def timer_property(due_ms: int) -> bytes:
    """TIMER_OUT_MS as it goes first among a message's further properties.  InvalidArgumentError when it has not 13 digits."""
    if not 10 ** (_DIGITS - 1) <= due_ms < 10**_DIGITS:
        raise InvalidArgumentError(f"delivery time {due_ms}: expected milliseconds since 1970, 13 digits")
    return b"%s%d\x02" % (_NAME, due_ms)


def due_times(data: Bytes1D, positions: Int64s) -> Int64s:
    """When each message of a batch for ``TIMER_TOPIC`` is due, ms since 1970.

    Raises InvalidArgumentError that names the first message without a well-formed TIMER_OUT_MS in its place.
    """
    columns = frame_columns(data, positions)
    _demand(columns.properties_length >= _DIGITS_AT + _DIGITS + 1)
    _demand(equal_at(data, columns.properties_at + _NAME_AT, _NAME))
    digits = gather(data, columns.properties_at + _DIGITS_AT, _DIGITS + 1)
    _demand((digits[:, :_DIGITS] >= ord("0")).all(axis=1) & (digits[:, :_DIGITS] <= ord("9")).all(axis=1) & (digits[:, _DIGITS] == 2))
    due: Int64s = (digits[:, :_DIGITS] - ord("0")).astype(np.int64) @ _POWERS
    return due


def _demand(good: npt.NDArray[np.bool_]) -> None:
    if not good.all():
        first = int(np.argmin(good))
        raise InvalidArgumentError(f"message {first} waits for no time: expected {TIMER_OUT} of 13 digits behind UNIQ_KEY")
