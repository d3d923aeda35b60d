"""Messages to send and the result of sending them: ``Message``, ``SendResult``, ``SendStatus``.

Owns what applications see of a message.  Its fields and their checks are in ``message_fields``; do not change a message after it was made.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dledger_client.face import face_of
from dledger_client.message_fields import MessageFields
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES, encode_properties
from dledger_wire.status import SendStatus
from dledger_wire.trace_context import MAX_STATE_CHARACTERS, TRACEPARENT, TraceContext

__all__ = ["Message", "SendResult", "SendStatus"]

ROOM_BYTES = 2048  # a trace leaves them free: for where a message waits, and what its redeliveries add


@face_of(MessageFields)
class Message(MessageFields):
    """A message to send. Do not change it after it was made; ``clone`` makes a copy to change.

    Args:
        topic: The topic to send to.
        body: The content, at most ``max_message_bytes`` of the producer.
        tags: One tag, which consumers filter by. Must not contain ``|``.
        keys: What the message can be found by: one key, or several in a list or separated by spaces.
        properties: The application's own names and values, for SQL92 filters and consumers.
        flag: A 32-bit number of the application's own.
        delay_level: Deliver after a delay: level 1 (1 second) to 18 (2 hours) of the cluster's ``messageDelayLevel``; 0: at once.
        deliver_at_ms: Deliver at a time: milliseconds since 1970, at most 40 days ahead; 0: at once. Not together with ``delay_level``.

    Raises:
        TypeError: An argument has the wrong type, e.g. a body that is text.
        InvalidArgumentError: A value is outside its range, a property name is reserved, or keys, tag and properties together take more
            than 32,213 bytes.

    Examples:
        >>> message = Message("orders", b'{"id": 7}', tags="created", keys="order-7", properties={"region": "eu"})
        >>> message.tags
        'created'
    """

    __slots__ = ()

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str = "",
        keys: str | Iterable[str] = "",
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        deliver_at_ms: int = 0,
    ) -> None:
        super().__init__(
            topic, body, tags=tags, keys=keys, properties=properties, flag=flag, delay_level=delay_level, deliver_at_ms=deliver_at_ms
        )

    def clone(self) -> Message:
        """A copy that may be changed before it is sent.

        Returns:
            A message with the same content.

        Examples:
            >>> Message("orders", b"one").clone().body
            b'one'
        """
        copy = Message(self.topic, self.body)
        for name in MessageFields.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def __getstate__(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """What ``object`` gives of a class with slots, which a compiled one is not: either reads what the other pickled."""
        names: list[str] = copyreg._slotnames(type(self))  # type: ignore[attr-defined]
        return getattr(self, "__dict__", None), {name: getattr(self, name) for name in names if hasattr(self, name)}

    def __setstate__(self, state: tuple[dict[str, Any] | None, dict[str, Any]]) -> None:
        others, fields = state
        if others:
            self.__dict__.update(others)
        for name, value in fields.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        shown = [name for name in ("tags", "keys", "properties", "flag", "delay_level", "deliver_at_ms") if getattr(self, name)]
        more = "".join(f", {name}={getattr(self, name)!r}" for name in shown)
        body = self.body if len(self.body) <= 32 else self.body[:29] + b"..."
        return f"Message({self.topic!r}, {body!r} ({len(self.body)} bytes){more})"


def traced(message: Message, context: TraceContext) -> Message:
    """The message as part of a trace: a copy with its properties, or itself when it brings a context, or has no room for one."""
    if message.properties and TRACEPARENT in message.properties:
        return message
    added = trace_properties(context)
    extras = with_trace(message.extras, encode_properties(added))
    if extras is message.extras:
        return message
    copy = message.clone()
    copy.properties, copy.extras = {**(message.properties or {}), **added}, extras
    return copy


def trace_properties(context: TraceContext) -> dict[str, str]:
    """The properties of a message that is part of a trace."""
    return (context if len(context.state) <= MAX_STATE_CHARACTERS else replace(context, state="")).properties()


def with_trace(extras: bytes, added: bytes) -> bytes:
    """``extras`` with the encoded properties of a trace; themselves when there is no room for those."""
    return extras + added if len(extras) + len(added) <= MAX_PROPERTIES_BYTES - ROOM_BYTES else extras


@dataclass(slots=True)
class SendResult:
    """Where a sent message is stored.

    Attributes:
        status: SEND_OK; a message that is not stored raises an error instead.
        msg_id: The unique id that the producer gave the message.
        topic: The topic.
        replica_group: The replica group that stores it.
        queue_id: The queue.
        queue_offset: Its offset in the queue.
        store_timestamp: When it was stored, milliseconds since 1970.
        duplicate: A retry found the message stored already; it is stored once.
    """

    status: SendStatus
    msg_id: str
    topic: str
    replica_group: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    duplicate: bool = False
