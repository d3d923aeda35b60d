"""What a message may hold: the checks that ``Message`` makes of its arguments, and its property string.

The property string is encoded once, when the message is made, so that a batch only joins bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from numbers import Integral
from typing import Any

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES, encode_properties
from dledger_wire.frames.priority import MAX_PRIORITY, PRIORITY
from dledger_wire.frames.timer import TIMER_DELIVER, timer_property

# What every message of ours carries beside the caller's properties: the unique id, see dledger_wire.frames.frame_layout.
UNIQUE_ID_PROPERTY_BYTES = 42
# Room for where a message came from and goes to: while it waits for its time or its transaction, in each redelivery, and as a dead letter.
PLACE_BYTES = 512
MAX_DELAY_LEVEL = 18

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
        PRIORITY,
        "__BORNHOST",
    }
)


def as_bytes(body: object) -> bytes:
    if isinstance(body, bytearray | memoryview | bytes):
        return bytes(body)
    raise TypeError(f"a message body is bytes, not {type(body).__name__}; encode text first")


@lru_cache(maxsize=4096)
def tag_property(tags: str) -> bytes:
    return encode_properties({"TAGS": _checked_tags(tags)})


def checked_types(topic: object, tags: object, **numbers: object) -> list[int]:
    """The numbers as ints.  TypeError for what no message can have."""
    for name, text in (("topic", topic), ("tag", tags)):
        if not isinstance(text, str):
            raise TypeError(f"a message's {name} is text, not {type(text).__name__}")
    for name, number in numbers.items():
        if not isinstance(number, Integral):
            raise TypeError(f"a message's {name} is a whole number, not {type(number).__name__}")
    return [int(number) for number in numbers.values() if isinstance(number, Integral)]


def joined_keys(keys: Any) -> str:
    """Keys as they stand in a property; a space would make two of one."""
    if isinstance(keys, bytes) or not isinstance(keys, Iterable):
        raise TypeError(f"a message's keys are text or a list of texts, not {type(keys).__name__}")
    found: list[Any] = list(keys)
    for key in found:
        if not isinstance(key, str):
            raise TypeError(f"a message's keys are text, not {type(key).__name__}")
        if not key or " " in key:  # what else looks like a space separates nothing
            raise InvalidArgumentError(f"key {key!r}: expected a word without spaces, since spaces separate keys")
    return " ".join(found)


def _checked_tags(tags: Any) -> str:
    if not isinstance(tags, str):
        raise TypeError(f"a message's tag is text, not {type(tags).__name__}")
    if "|" in tags:
        raise InvalidArgumentError(f"tags {tags!r}: a message has one tag, and '|' is how subscriptions separate several")
    return tags


def _checked_priority(priority: Any) -> str:
    if not isinstance(priority, Integral):
        raise TypeError(f"a message's priority is a whole number, not {type(priority).__name__}")
    if not 0 <= int(priority) <= MAX_PRIORITY:
        raise InvalidArgumentError(f"priority {priority}: expected 0 to {MAX_PRIORITY}")
    return str(int(priority))


def encoded_extras(tags: str, keys: str, properties: Any, delay_level: int, deliver_at_ms: int, priority: Any) -> bytes:
    """The property string behind UNIQ_KEY.  Raises InvalidArgumentError for what a property string cannot hold."""
    packed: dict[str, str] = {}
    if keys:
        packed["KEYS"] = keys
    if tags:
        packed["TAGS"] = _checked_tags(tags)
    if delay_level:
        if not 0 < delay_level <= MAX_DELAY_LEVEL:
            raise InvalidArgumentError(f"delay level {delay_level}: expected 0 to {MAX_DELAY_LEVEL}")
        packed["DELAY"] = str(delay_level)
    if deliver_at_ms:
        if delay_level:
            raise InvalidArgumentError("a delay level and a delivery time are mutually exclusive")
        timer_property(deliver_at_ms)
        packed[TIMER_DELIVER] = str(deliver_at_ms)
    if priority is not None:
        packed[PRIORITY] = _checked_priority(priority)
    properties = properties or {}
    if not isinstance(properties, Mapping):
        raise TypeError(f"a message's properties are a dict of texts, not {type(properties).__name__}")
    for name, value in properties.items():
        if name in RESERVED_PROPERTIES:
            raise InvalidArgumentError(f"property {name!r} is reserved; expected a name of the application's own")
        if not (isinstance(name, str) and isinstance(value, str)):
            wrong = name if not isinstance(name, str) else value
            raise TypeError(f"property {name!r}: names and values are text, not {type(wrong).__name__}")
        packed[name] = value
    extras = encode_properties(packed)
    check_size(extras, "keys, tags and properties")
    return extras


def check_size(extras: bytes, what: str) -> None:
    """Whether there is room for ``extras`` beside what a message is given later.  InvalidArgumentError."""
    most = MAX_PROPERTIES_BYTES - UNIQUE_ID_PROPERTY_BYTES - PLACE_BYTES
    if len(extras) > most:
        raise InvalidArgumentError(f"{what} take {len(extras)} bytes; expected at most {most}")
