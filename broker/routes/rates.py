"""How many messages and bytes a node stores a second, from counters that are read now and then."""

from __future__ import annotations

SPAN_MS = 5_000  # a rate is of at least that long


class Rates:
    """``sample`` it whenever it is to be told."""

    def __init__(self) -> None:
        self.messages_per_s = 0.0
        self.bytes_per_s = 0.0
        self._at_ms = -1
        self._messages = self._bytes = 0

    def sample(self, now_ms: int, messages: int, log_bytes: int) -> None:
        """``messages`` and ``log_bytes`` so far; after a copy of the state they may have jumped, or have gone back."""
        passed_ms = now_ms - self._at_ms
        if self._at_ms >= 0 and passed_ms < SPAN_MS:
            return
        if self._at_ms >= 0:
            self.messages_per_s = max(0, messages - self._messages) * 1000 / passed_ms
            self.bytes_per_s = max(0, log_bytes - self._bytes) * 1000 / passed_ms
        self._at_ms, self._messages, self._bytes = now_ms, messages, log_bytes
