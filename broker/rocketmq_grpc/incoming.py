"""Messages of RocketMQ's gRPC producers as they are stored.

Owns what is refused, as RocketMQ's proxy does, and which property each field of a message becomes.  Bodies are stored as they came, but for
compressed ones: what gRPC clients call GZIP is one of two formats, neither of which other clients open.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp

from broker.groups.pop_reads import SHARDING_KEY
from broker.rocketmq_grpc._pb.definition_pb2 import Code, Encoding, Message, MessageType, SystemProperties
from broker.rocketmq_grpc.client import Client
from broker.rocketmq_grpc.statuses import StatusError
from dledger_wire.frames.frame import Frame
from dledger_wire.frames.priority import PRIORITY
from dledger_wire.frames.timer import TIMER_DELIVER
from dledger_wire.status import SysFlag
from store.append.half_messages import IMMUNITY
from store.append.redelivery import UNIQUE_ID
from store.append.staged_check import PREPARED, PRODUCER_GROUP

TAGS, KEYS, TRACE, BORN = "TAGS", "KEYS", "TRACE_CONTEXT", "BORN_TIMESTAMP"
TRANSACTION_ID = "__transactionId__"
MAX_ID_CHARS, MAX_GROUP_CHARS = 64, 64
MAX_USER_PROPERTIES, MAX_USER_BYTES = 128, 16 << 10
MAX_RECOVERY_S = 3600
BESIDE_BYTES = 128 << 10  # a body that is larger is opened beside the event loop
# What a program may not set: servers and clients go by it.
RESERVED = frozenset(
    (
        *(UNIQUE_ID, TAGS, KEYS, "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "REAL_UNIQ_KEY", PREPARED, PRODUCER_GROUP),
        *("MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "UNIT"),
        *("RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME"),
        *("TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", IMMUNITY, "EXTEND_UNIQ_INFO", "INSTANCE_ID", "CORRELATION_ID"),
        *("REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "TIMER_DELAY_LEVEL", "TIMER_DELAY_MS"),
        *("TIMER_DELAY_SEC", TIMER_DELIVER, "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"),
        *("TIMER_DEL_UNIQKEY", "__BORNHOST", BORN, "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "MSG_REGION", "TRACE_ON"),
        *("__CRC32#", TRACE, PRIORITY, "INNER_NUM", "INNER_BASE"),
    )
)
_OF_FIELDS = RESERVED | {SHARDING_KEY, TRANSACTION_ID}


async def frame_of(message: Message, topic: str, client: Client, max_bytes: int) -> Frame:
    """The message as it is stored.  StatusError for one that may not be."""
    properties = message.system_properties
    _check_type(properties)
    named = _named(properties, topic) | _user_properties(message)
    return Frame(
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=await _body(message, max_bytes),
        topic=topic,
        properties=named,
        sys_flag=int(SysFlag.TRANSACTION_PREPARED) if is_transaction(message) else 0,
        born_timestamp=max(0, _ms(properties.born_timestamp)),
        born_host=client.peer,
    )


def is_transaction(message: Message) -> bool:
    return message.system_properties.message_type == MessageType.TRANSACTION


def _check_type(properties: SystemProperties) -> None:
    wanted, text = properties.message_type, ""
    if wanted == MessageType.TRANSACTION and (properties.HasField("delivery_timestamp") or properties.HasField("message_group")):
        text = "a message of a transaction has neither a time of delivery nor a message group"
    elif wanted == MessageType.FIFO and not properties.HasField("message_group"):
        text = "a FIFO message has a message group"
    elif wanted == MessageType.DELAY and not properties.HasField("delivery_timestamp"):
        text = "a DELAY message has a time of delivery"
    elif wanted == MessageType.LITE or properties.HasField("lite_topic"):
        text = "there are no lite topics"
    if text:
        raise StatusError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)


def _named(properties: SystemProperties, topic: str) -> dict[str, str]:
    """The fields as properties, UNIQ_KEY and TAGS first: readers look for them there."""
    _check_text(properties.message_id, Code.ILLEGAL_MESSAGE_ID, "message_id", MAX_ID_CHARS)
    named = {UNIQUE_ID: properties.message_id}
    if properties.HasField("tag"):
        _check_text(properties.tag, Code.ILLEGAL_MESSAGE_TAG, "tag", MAX_USER_BYTES, "|")
        named[TAGS] = properties.tag
    for key in properties.keys:
        _check_text(key, Code.ILLEGAL_MESSAGE_KEY, "key", MAX_USER_BYTES)
    if properties.keys:
        named[KEYS] = " ".join(properties.keys)
    if properties.HasField("message_group"):
        _check_text(properties.message_group, Code.ILLEGAL_MESSAGE_GROUP, "message_group", MAX_GROUP_CHARS)
        named[SHARDING_KEY] = properties.message_group
    if properties.HasField("delivery_timestamp"):
        due_ms = _ms(properties.delivery_timestamp)
        if due_ms < 0:
            raise StatusError(Code.ILLEGAL_DELIVERY_TIME, f"delivery_timestamp {due_ms} ms: expected a time since 1970")
        named[TIMER_DELIVER] = str(due_ms)
    if properties.HasField("trace_context"):
        named[TRACE] = properties.trace_context
    if properties.HasField("priority"):
        named[PRIORITY] = str(max(0, properties.priority))
    if properties.HasField("orphaned_transaction_recovery_duration"):
        seconds = properties.orphaned_transaction_recovery_duration.seconds
        if not 0 <= seconds <= MAX_RECOVERY_S:
            raise StatusError(Code.BAD_REQUEST, f"orphaned_transaction_recovery_duration {seconds} s: expected at most {MAX_RECOVERY_S}")
        named[IMMUNITY] = str(seconds)
    if properties.message_type == MessageType.TRANSACTION:
        # Producers of this protocol have no groups: the topic is theirs.
        named |= {TRANSACTION_ID: properties.message_id, PREPARED: "true", PRODUCER_GROUP: topic}
    return named


def _user_properties(message: Message) -> dict[str, str]:
    given = message.user_properties
    if len(given) > MAX_USER_PROPERTIES or sum(map(len, (*given.keys(), *given.values()))) > MAX_USER_BYTES:
        text = f"expected at most {MAX_USER_PROPERTIES} properties of {MAX_USER_BYTES} characters in all"
        raise StatusError(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    for name, value in given.items():
        if not name or name in _OF_FIELDS or _has_marks((name, value)):
            raise StatusError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name[:40]!r}: reserved, or with a control character")
    return dict(sorted(given.items()))


async def _body(message: Message, max_bytes: int) -> bytes:
    body: bytes = message.body
    if not body:
        raise StatusError(Code.MESSAGE_BODY_EMPTY, "a message without a body")
    if message.system_properties.body_encoding == Encoding.GZIP:
        body = await asyncio.to_thread(_opened, body, max_bytes) if len(body) > BESIDE_BYTES else _opened(body, max_bytes)
    if len(body) > max_bytes:
        raise StatusError(Code.MESSAGE_BODY_TOO_LARGE, f"a body of {len(body)} bytes; expected at most {max_bytes}")
    return body


def _opened(body: bytes, limit: int) -> bytes:
    """A body in the format of gzip or of zlib; one byte more than ``limit`` when it is larger."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        opened = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise StatusError(Code.MESSAGE_CORRUPTED, f"the body is not compressed with gzip or zlib: {error}") from None
    if len(opened) <= limit and not stream.eof:
        raise StatusError(Code.MESSAGE_CORRUPTED, "the compressed body ends too early")
    return opened


def _check_text(text: str, code: Code.ValueType, name: str, most: int, without: str = "") -> None:
    if not text.strip() or len(text) > most or any(mark in text for mark in without) or _has_marks((text,)):
        raise StatusError(code, f"{name} {text[:40]!r}: expected 1 to {most} characters, not blank and without control characters")


def _has_marks(texts: Iterable[str]) -> bool:
    return any(not mark.isprintable() for text in texts for mark in text if mark < " " or mark == "\x7f")


def _ms(when: Timestamp) -> int:
    return int(when.seconds) * 1000 + int(when.nanos) // 1_000_000
