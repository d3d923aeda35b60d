"""Message ids: the unique id a producer makes (property UNIQ_KEY) and the offset id a place in the log gives.

Owns both formats, RocketMQ's.  Unique id: 32 upper-case hex digits of address 4 bytes, process id 2, a random part 4, and 6 bytes that
only grow (milliseconds since the generator began, and a counter).  Offset id: store host and port, then physical offset, in hex.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dledger_wire.clock import Clock, Random
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import UNIQUE_ID_SIZE, unpack_host

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_COUNTER_DIGITS = 12
FEW = 8  # ids at a time that are quicker made one by one


class UniqueIds:
    """Makes unique ids, a batch at a time.  Not shared between threads."""

    def __init__(self, clock: Clock, random: Random, *, address: bytes = b"\x7f\0\0\x01", process_id: int = 0) -> None:
        self._clock = clock
        self._started_ms = clock.monotonic_ms()
        head = address[:4] + (process_id & 0xFFFF).to_bytes(2, "big") + random.getrandbits(32).to_bytes(4, "big")
        self.prefix = head.hex().upper()
        self._prefix_row = np.frombuffer(self.prefix.encode(), np.uint8)
        self._last = -1

    def take(self, count: int) -> npt.NDArray[np.uint8]:
        """(count, 32) matrix of ASCII digits, each row an id never given before."""
        first = max(self._last + 1, (self._clock.monotonic_ms() - self._started_ms) << 16)
        self._last = first + count - 1
        if count <= FEW:
            text = "".join([f"{self.prefix}{number:0{_COUNTER_DIGITS}X}" for number in range(first, first + count)])
            return np.frombuffer(text.encode("ascii"), np.uint8).reshape(count, UNIQUE_ID_SIZE)
        ids = np.empty((count, UNIQUE_ID_SIZE), np.uint8)
        ids[:, : len(self._prefix_row)] = self._prefix_row
        numbers = np.arange(first, first + count, dtype=np.int64)
        shifts = np.arange(4 * (_COUNTER_DIGITS - 1), -1, -4)
        ids[:, -_COUNTER_DIGITS:] = _HEX[(numbers[:, None] >> shifts) & 0xF]
        return ids


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """32 hex digits (56 with IPv6) of a frame's place."""
    return (store_host + physical_offset.to_bytes(8, "big", signed=physical_offset < 0)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int]:
    """(store address, physical offset).  Raises InvalidArgumentError for anything that is no offset message id."""
    try:
        packed = bytes.fromhex(message_id)
    except ValueError:
        packed = b""
    if len(packed) not in (16, 28):
        raise InvalidArgumentError(f"message id {message_id!r}: expected 32 or 56 hex digits")
    return unpack_host(packed[:-8]), int.from_bytes(packed[-8:], "big")
