"""Messages to send and the result of sending them: ``Message``, ``SendResult``, ``SendStatus``.

Owns the property string of an outgoing message.  It is encoded once, when the message is made, so that a batch only joins bytes; do not
change a message afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral

from dledger_client.deprecation import RenamedAttribute
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, encode_properties
from dledger_wire.frames.timer import TIMER_DELIVER, timer_property
from dledger_wire.status import SendStatus
from dledger_wire.trace_context import MAX_STATE_CHARACTERS, TRACEPARENT, TraceContext

__all__ = ["Message", "SendResult", "SendStatus"]

# What every message of ours carries beside the caller's properties: the unique id, see dledger_wire.frames.frame_layout.
UNIQUE_ID_PROPERTY_BYTES = 42
MAX_DELAY_LEVEL = 18
ROOM_BYTES = 2048  # a trace leaves them free: for where a message waits, and what its redeliveries add

# Names with a meaning of their own: they are set by arguments, by the client or by the broker.
RESERVED_PROPERTIES = frozenset(
    {
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "MSG_REGION",
        "UNIQ_KEY",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_MS",
        "TIMER_OUT_MS",
        "PARKED_POS",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "INSTANCE_ID",
        "CLUSTER",
        "__transactionId__",
        "__BORNHOST",
    }
)


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

    Raises:
        TypeError: An argument has the wrong type, e.g. a body that is text.
        InvalidArgumentError: A value is outside its range, a property name is reserved, or all properties together exceed 32 KiB.

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
        "properties",
        "sys_flag",
        "tags",
        "topic",
        "transaction_group",
    )

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
        if not (type(topic) is type(tags) is str and type(flag) is type(delay_level) is type(deliver_at_ms) is int):
            flag, delay_level, deliver_at_ms = _checked_types(topic, tags, flag=flag, delay_level=delay_level, deliver_at_ms=deliver_at_ms)
        if flag and not -(1 << 31) <= flag < 1 << 31:
            raise InvalidArgumentError(f"flag {flag}: expected {-(1 << 31)} to {(1 << 31) - 1}")
        self.topic = topic
        self.body = body if type(body) is bytes else _as_bytes(body)
        self.tags = tags
        self.flag = flag
        self.delay_level = delay_level
        self.deliver_at_ms = deliver_at_ms
        self.properties = properties
        self.transaction_group = ""  # the producer group of a half message, see half.py
        self.sys_flag = 0  # bits of dledger_wire.status.SysFlag, set on the way to the wire
        if keys or properties or delay_level or deliver_at_ms:
            self.keys = keys if isinstance(keys, str) else _joined_keys(keys)
            self.extras = _extras(self)
        else:
            self.keys = ""
            self.extras = _tag_property(tags) if tags else b""

    def clone(self) -> Message:
        """A copy that may be changed before it is sent.

        Returns:
            A message with the same content.

        Examples:
            >>> Message("orders", b"one").clone().body
            b'one'
        """
        copy = Message.__new__(Message)
        for name in Message.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def __repr__(self) -> str:
        shown = [name for name in ("tags", "keys", "properties", "flag", "delay_level", "deliver_at_ms") if getattr(self, name)]
        more = "".join(f", {name}={getattr(self, name)!r}" for name in shown)
        body = self.body if len(self.body) <= 32 else self.body[:29] + b"..."
        return f"Message({self.topic!r}, {body!r} ({len(self.body)} bytes){more})"


def _as_bytes(body: object) -> bytes:
    if isinstance(body, bytearray | memoryview | bytes):
        return bytes(body)
    raise TypeError(f"a message body is bytes, not {type(body).__name__}; encode text first")


@lru_cache(maxsize=4096)
def _tag_property(tags: str) -> bytes:
    return encode_properties({"TAGS": _checked_tags(tags)})


def _checked_types(topic: object, tags: object, **numbers: object) -> list[int]:
    """The numbers as ints.  TypeError for what no message can have."""
    for name, text in (("topic", topic), ("tag", tags)):
        if not isinstance(text, str):
            raise TypeError(f"a message's {name} is text, not {type(text).__name__}")
    for name, number in numbers.items():
        if not isinstance(number, Integral):
            raise TypeError(f"a message's {name} is a whole number, not {type(number).__name__}")
    return [int(number) for number in numbers.values() if isinstance(number, Integral)]


def _joined_keys(keys: Iterable[str]) -> str:
    """Keys as they stand in a property; a space would make two of one."""
    if isinstance(keys, bytes) or not isinstance(keys, Iterable):
        raise TypeError(f"a message's keys are text or a list of texts, not {type(keys).__name__}")
    found = list(keys)
    for key in found:
        if not isinstance(key, str):
            raise TypeError(f"a message's keys are text, not {type(key).__name__}")
        if not key or " " in key:  # what else looks like a space separates nothing
            raise InvalidArgumentError(f"key {key!r}: expected a word without spaces, since spaces separate keys")
    return " ".join(found)


def _checked_tags(tags: str) -> str:
    if not isinstance(tags, str):
        raise TypeError(f"a message's tag is text, not {type(tags).__name__}")
    if "|" in tags:
        raise InvalidArgumentError(f"tags {tags!r}: a message has one tag, and '|' is how subscriptions separate several")
    return tags


def _extras(message: Message) -> bytes:
    """The property string behind UNIQ_KEY.  Raises InvalidArgumentError for what a property string cannot hold."""
    packed: dict[str, str] = {}
    if message.keys:
        packed["KEYS"] = message.keys
    if message.tags:
        packed["TAGS"] = _checked_tags(message.tags)
    if message.delay_level:
        if not 0 < message.delay_level <= MAX_DELAY_LEVEL:
            raise InvalidArgumentError(f"delay level {message.delay_level}: expected 0 to {MAX_DELAY_LEVEL}")
        packed["DELAY"] = str(message.delay_level)
    if message.deliver_at_ms:
        if message.delay_level:
            raise InvalidArgumentError("a delay level and a delivery time: expected one of them")
        timer_property(message.deliver_at_ms)
        packed[TIMER_DELIVER] = str(message.deliver_at_ms)
    for name, value in (message.properties or {}).items():
        if name in RESERVED_PROPERTIES:
            raise InvalidArgumentError(f"property {name!r} is reserved; expected a name of the application's own")
        if not (isinstance(name, str) and isinstance(value, str)):
            wrong = name if not isinstance(name, str) else value
            raise TypeError(f"property {name!r}: names and values are text, not {type(wrong).__name__}")
        packed[name] = value
    extras = encode_properties(packed)
    check_size(extras, "keys, tags and properties")
    return extras


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


def check_size(extras: bytes, what: str) -> None:
    """Whether there is room for ``extras`` beside the unique id.  InvalidArgumentError."""
    most = MAX_PROPERTIES_BYTES - UNIQUE_ID_PROPERTY_BYTES
    if len(extras) > most:
        raise InvalidArgumentError(f"{what} take {len(extras)} bytes; expected at most {most}")


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
    group = RenamedAttribute("replica_group")


# Kept here so that readers of properties use the same two marks.
SEPARATORS = (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)
