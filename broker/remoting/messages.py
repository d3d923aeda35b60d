"""Messages of RocketMQ's producers as batches of the Produce stream.

Owns how a send request is read: both sets of its names, the body of a batch, and where a message goes that is delayed, timed, or one half
of a transaction.  Bodies stay as they came, compressed or not.  UNIQ_KEY comes first among the properties, since readers look for it there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from broker.remoting.command import Command
from broker.support.limits import at_most, in_slices
from dledger_wire.batches.batch import stamp_unique
from dledger_wire.batches.frame_batch import FrameBatch
from dledger_wire.checksum import Buffer
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.frames.frame_layout import decode_properties
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.frames.priority import PRIORITY, priority_of
from dledger_wire.frames.timer import REAL_UNIQUE, TIMER_DELIVER, TIMER_OUT, waiting_id
from dledger_wire.names import HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic
from dledger_wire.status import TRANSACTION_MASK, SysFlag
from store.append.redelivery import DELAY
from store.append.staged_check import PREPARED, PRODUCER_GROUP, REAL_QUEUE, REAL_TOPIC

MAX_BATCH = 10_000  # messages
AT_ONCE = 25  # before other work runs: each takes up to 50 us
# Names of the fields in the compact form of the header.
COMPACT = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
_PART = struct.Struct(">iiiii")  # of a batch's body: size, magic, CRC, flag, length of the body
_SHORT = struct.Struct(">h")
_TIMER_SECONDS, _TIMER_MS = "TIMER_DELAY_SEC", "TIMER_DELAY_MS"
REPLY_TO = "REPLY_TO_CLIENT"  # of a request and its reply: the client that waits for the reply
CLUSTER = "CLUSTER"  # of a request: clients make the topic of replies of it
_NOT_KEPT = frozenset({"POP_CK", "RECONSUME_TIME", REAL_TOPIC, REAL_QUEUE, REAL_UNIQUE})
_MOST_RETRIES = 16


@dataclass(frozen=True, slots=True)
class Sending:
    """One send request: its messages belong to one queue, which is -1 for any."""

    topic: str
    queue_id: int
    group: str
    default_queues: int
    frames: Sequence[Frame]

    @property
    def ids(self) -> list[str]:
        return [frame.properties.get("UNIQ_KEY", "") for frame in self.frames]

    @property
    def is_half(self) -> bool:
        """Whether it is one half of a transaction."""
        return any(_is_half(frame) for frame in self.frames)

    @property
    def priority(self) -> int | None:
        """That of its messages; None when they have none and their producer chose the queue.  InvalidArgumentError for different ones."""
        texts = {frame.properties.get(PRIORITY) for frame in self.frames}
        if len(texts) > 1:
            raise InvalidArgumentError("the messages of a batch have different priorities; expected one for all")
        return None if self.queue_id >= 0 and None in texts else priority_of(self.frames[0].properties)

    def in_queue(self, queue_id: int) -> Sending:
        return replace(self, queue_id=queue_id)


async def sending_of(request: Command, born_host: str, ids: UniqueIds, *, compact: bool) -> Sending:
    """What a request sends.  InvalidArgumentError for one that is not well-formed."""

    def name(long: str) -> str:
        return COMPACT[long] if compact else long

    topic, group = request.text(name("topic")), request.text(name("producerGroup"))
    base = Frame(
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=b"",
        topic=topic,
        flag=request.number(name("flag"), 0),
        sys_flag=request.number(name("sysFlag"), 0),
        born_timestamp=request.number(name("bornTimestamp"), 0),
        born_host=born_host,
        reconsume_times=request.number(name("reconsumeTimes"), 0),
    )
    properties = decode_properties(request.text(name("properties"), "").encode())
    given: Iterable[Frame] = _batch(request.body, base)
    if not request.is_true(name("batch")):
        base.body, base.properties = bytes(request.body), properties
        given = [base]
    frames: list[Frame] = []
    async for frame in in_slices(given, AT_ONCE):
        frame.properties = _ordered(frame.properties, ids)
        frames.append(frame)
    retries = request.number(name("maxReconsumeTimes"), _MOST_RETRIES)
    if topic.startswith(RETRY_PREFIX) and base.reconsume_times >= retries:
        topic = dlq_topic(topic.removeprefix(RETRY_PREFIX))
    return Sending(topic, request.number(name("queueId"), -1), group, request.number(name("defaultTopicQueueNums"), 4), frames)


def _batch(body: Buffer, base: Frame) -> Iterator[Frame]:
    """The messages in the body of a batch."""
    view, at, number = memoryview(body), 0, 0
    if not len(view):
        raise InvalidArgumentError("a batch without messages")
    while at < len(view):
        try:
            size, _magic, _crc, flag, length = _PART.unpack_from(view, at)
            body_at = at + _PART.size
            (properties,) = _SHORT.unpack_from(view, body_at + max(length, 0))
        except struct.error:
            raise InvalidArgumentError(f"message {number} of a batch is cut off") from None
        properties_at = body_at + length + _SHORT.size
        if length < 0 or properties < 0 or properties_at + properties != at + size or at + size > len(view):
            raise InvalidArgumentError(f"message {number} of a batch: its sizes do not add up")
        names = decode_properties(view[properties_at : at + size])
        yield replace(base, flag=flag, body=bytes(view[body_at : body_at + length]), properties=names)
        at, number = at + size, number + 1
        at_most(number, "messages", MAX_BATCH)


def _ordered(properties: dict[str, str], ids: UniqueIds) -> dict[str, str]:
    """UNIQ_KEY first, made where the client sent none, and TAGS behind it."""
    unique = properties.get("UNIQ_KEY") or ids.take(1).tobytes().decode()
    first = {"UNIQ_KEY": unique, **({"TAGS": properties["TAGS"]} if "TAGS" in properties else {})}
    return first | {name: value for name, value in properties.items() if name not in _NOT_KEPT and name not in first}


@dataclass(frozen=True, slots=True)
class Staging:
    """What decides when a message is delivered: the delay levels there are, and the time now."""

    levels: int
    now_ms: int


async def batch_of(sending: Sending, staging: Staging) -> FrameBatch:
    """A batch of the Produce stream.  InvalidArgumentError for delays that cannot be."""
    first = _staged(sending, sending.frames[0], staging)
    batch = FrameBatch(first.topic, first.queue_id)
    async for each in in_slices(sending.frames, AT_ONCE):
        frame = _staged(sending, each, staging)
        if (frame.topic, frame.queue_id) != (first.topic, first.queue_id):
            raise InvalidArgumentError("the messages of a batch are delayed differently; expected one delay for all")
        batch.add(encode_frame(frame), frame.properties)
    return batch


def record_of(sending: Sending, batch: FrameBatch) -> list[Buffer]:
    """The record in parts; recognised by its keys when it is sent again, unless it is a retry."""
    parts = batch.parts()
    if not sending.topic.startswith(RETRY_PREFIX):  # a message comes there once for each attempt, with the same key
        stamp_unique(parts)
    return parts


def _staged(sending: Sending, frame: Frame, staging: Staging) -> Frame:
    """The message as it is stored now: itself, or in the topic where it waits."""
    properties, place = frame.properties, {REAL_TOPIC: sending.topic, REAL_QUEUE: str(sending.queue_id)}
    if _is_half(frame):
        kept = {name: value for name, value in properties.items() if name not in (PREPARED, PRODUCER_GROUP, DELAY)}
        half = {PREPARED: "true", PRODUCER_GROUP: properties.get(PRODUCER_GROUP) or sending.group}
        return replace(frame, topic=HALF_TOPIC, queue_id=0, properties=kept | half | place)
    if (due_ms := due_ms_of(properties, staging.now_ms)) is not None:
        unique = properties["UNIQ_KEY"]  # of 56 characters from a host without an IPv4 address
        parked = waiting_id(unique)
        kept = {name: value for name, value in properties.items() if name not in ("UNIQ_KEY", TIMER_OUT)}
        own = {REAL_UNIQUE: unique} if parked != unique else {}
        timed = {"UNIQ_KEY": parked, TIMER_OUT: str(due_ms)} | kept | own | place
        return replace(frame, topic=TIMER_TOPIC, queue_id=0, properties=timed)
    level = _number(properties, DELAY)
    if level is not None and level > 0:
        return replace(frame, topic=SCHEDULE_TOPIC, queue_id=min(level, staging.levels) - 1, properties=properties | place)
    frame.topic, frame.queue_id = sending.topic, sending.queue_id
    return frame


def _is_half(frame: Frame) -> bool:
    return frame.sys_flag & TRANSACTION_MASK == SysFlag.TRANSACTION_PREPARED or frame.properties.get(PREPARED) == "true"


def due_ms_of(properties: dict[str, str], now_ms: int) -> int | None:
    """When a message is to be delivered; None for one that is not timed."""
    deliver_ms = _number(properties, TIMER_DELIVER)
    if deliver_ms is not None:
        return deliver_ms if deliver_ms > now_ms else None
    delay_ms = _number(properties, _TIMER_MS)
    seconds = _number(properties, _TIMER_SECONDS)
    if delay_ms is None and seconds is not None:
        delay_ms = seconds * 1000
    return now_ms + delay_ms if delay_ms is not None and delay_ms > 0 else None


def _number(properties: dict[str, str], name: str) -> int | None:
    text = properties.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise InvalidArgumentError(f"property {name} {text[:40]!r}: expected a number")
    return int(text)
