"""Compression of large message bodies, as RocketMQ's producers do it; the frame's system flag names the codec.

Owns the choice: a body that does not get smaller is sent as it is.  Runs on the sending thread, so that several threads compress in
parallel and the event loop does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client.message import Message
from dledger_wire.frames.compress import WORTHWHILE, compress, flags_of, is_worthwhile
from dledger_wire.status import Compression


@dataclass(frozen=True, slots=True)
class BodyCompression:
    """Codec and level."""

    kind: Compression
    level: int

    def compressed(self, message: Message) -> Message:
        """A large message with its body compressed, or the message itself when that is not worthwhile."""
        body = message.body
        if self.kind is Compression.NONE or not is_worthwhile(body):
            return message
        smaller = compress(body, self.kind, self.level)
        if len(smaller) >= len(body) * WORTHWHILE:
            return message
        copy = message.clone()
        copy.body, copy.sys_flag = smaller, message.sys_flag | flags_of(self.kind)
        return copy
