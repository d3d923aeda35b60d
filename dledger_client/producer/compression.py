"""Large bodies are compressed before they are sent, as RocketMQ's producers do it; the frame's system flag tells how.

Owns the choice: what does not get smaller goes as it is.  Runs on the thread of whoever sends, so that
several threads compress side by side and the event loop does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client.message import Message
from dledger_wire.frames.compress import WORTHWHILE, compress, flags_of, is_worthwhile
from dledger_wire.status import Compression


@dataclass(frozen=True, slots=True)
class BodyCompression:
    """How to compress."""

    kind: Compression
    level: int

    def packed(self, message: Message) -> Message:
        """A large message with its body compressed, or the message itself when that does not pay."""
        body = message.body
        if self.kind is Compression.NONE or not is_worthwhile(body):
            return message
        smaller = compress(body, self.kind, self.level)
        if len(smaller) >= len(body) * WORTHWHILE:
            return message
        copy = message.clone()
        copy.body, copy.sys_flag = smaller, message.sys_flag | flags_of(self.kind)
        return copy
