"""Messages to send and the result of sending them: ``Message``, ``SendResult``, ``SendStatus``.

What a message may hold is checked by ``message_fields``; do not change a message after it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dledger_client.message_fields import as_bytes, checked_types, encoded_extras, joined_keys, tag_property
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES, encode_properties
from dledger_wire.status import SendStatus
from dledger_wire.trace_context import MAX_STATE_CHARACTERS, TRACEPARENT, TraceContext

__all__ = ["Message", "SendResult", "SendStatus"]

ROOM_BYTES = 2048  # a trace leaves them free: for where a message waits, and what its redeliveries add


class Message:
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
        priority: In a topic with priorities: which of its queues gets the message, 0 for the least urgent; the highest for all above it.

    Raises:
        TypeError: An argument has the wrong type, e.g. a body that is text.
        InvalidArgumentError: A value is outside its range, a property name is reserved, or keys, tag and properties together take more
            than 32,213 bytes.

    Examples:
        >>> message = Message("orders", b'{"id": 7}', tags="created", keys="order-7", properties={"region": "eu"})
        >>> message.tags
        'created'
    """

    __slots__ = (
        "body",
        "delay_level",
        "deliver_at_ms",
        "extras",
        "flag",
        "keys",
        "priority",
        "properties",
        "sys_flag",
        "tags",
        "topic",
        "transaction_group",
    )

    transaction_group: str  # the producer group of a half message, see half_messages.py
    sys_flag: int  # bits of dledger_wire.status.SysFlag, set on the way to the wire
    extras: bytes  # the encoded properties

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
        priority: int | None = None,
    ) -> None:
        if not (type(topic) is type(tags) is str and type(flag) is type(delay_level) is type(deliver_at_ms) is int):
            flag, delay_level, deliver_at_ms = checked_types(topic, tags, flag=flag, delay_level=delay_level, deliver_at_ms=deliver_at_ms)
        if flag and not -(1 << 31) <= flag < 1 << 31:
            raise InvalidArgumentError(f"flag {flag}: expected {-(1 << 31)} to {(1 << 31) - 1}")
        self.topic = topic
        self.body = body if type(body) is bytes else as_bytes(body)
        self.tags = tags
        self.flag = flag
        self.delay_level = delay_level
        self.deliver_at_ms = deliver_at_ms
        self.priority = priority
        self.properties = properties
        self.transaction_group = ""
        self.sys_flag = 0
        if keys or properties or delay_level or deliver_at_ms or priority is not None:
            self.keys = keys if isinstance(keys, str) else joined_keys(keys)
            self.extras = encoded_extras(tags, self.keys, properties, delay_level, deliver_at_ms, priority)
        else:
            self.keys = ""
            self.extras = tag_property(tags) if tags else b""

    def clone(self) -> Message:
        """A copy that may be changed before it is sent.

        Returns:
            A message with the same content.

        Examples:
            >>> Message("orders", b"one").clone().body
            b'one'
        """
        copy = Message(self.topic, self.body)
        for name in Message.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def __repr__(self) -> str:
        shown = [name for name in ("tags", "keys", "properties", "flag", "delay_level", "deliver_at_ms") if getattr(self, name)]
        shown += ["priority"] if self.priority is not None else []
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
