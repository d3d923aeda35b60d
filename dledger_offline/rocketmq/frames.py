"""RocketMQ's messages as this cluster stores them: the same frame, without what only meant something in the old log.

Owns what changes.  Body, flag, compression, tag, keys, properties, unique id, born time and host, and the count of redeliveries stay.
Places and store times are stamped by the new leader.  Messages that wait for a time become timed messages of the new cluster.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from dledger_offline.rocketmq.commit_log import WIDER, StoredMessage
from dledger_wire.batches.frame_batch import FrameBatch
from dledger_wire.frames.frame_layout import (
    BORN_HOST_AT,
    IPV4_HOST_SIZE,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    UNIQUE_ID_SIZE,
    decode_properties,
    encode_properties,
)
from dledger_wire.frames.frames import magic_of, topic_field
from dledger_wire.frames.timer import TIMER_OUT
from dledger_wire.names import TIMER_TOPIC
from dledger_wire.status import TRANSACTION_MASK, SysFlag
from store.append.staged_check import REAL_QUEUE, REAL_TOPIC

UNIQUE_ID = "UNIQ_KEY"
# What the old broker wrote on a message that waited, and takes off when it is delivered.
_OF_WAITING = frozenset(
    {REAL_TOPIC, REAL_QUEUE, UNIQUE_ID, "DELAY", TIMER_OUT}
    | {
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DELAY_LEVEL",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
    }
)
_CLEARED = TRANSACTION_MASK | int(SysFlag.STORE_HOST_V6)
_INT = struct.Struct(">i")


def properties_of(message: StoredMessage) -> dict[str, str]:
    return decode_properties(message.frame[message.properties_at :])


def is_wide(message: StoredMessage) -> bool:
    """Whether its born host is IPv6: the messages of a batch are alike in that."""
    return bool(message.sys_flag & SysFlag.BORN_HOST_V6)


def _head(message: StoredMessage, magic: bytes, queue_id: int, size: int) -> bytes:
    """The fixed fields; what is stamped, and the place of a half message in the old log, are zero.  The store host is IPv4."""
    frame, born_end = message.frame, BORN_HOST_AT + IPV4_HOST_SIZE + WIDER * is_wide(message)
    tail = born_end + 16 + WIDER * bool(message.sys_flag & SysFlag.STORE_HOST_V6)  # redeliveries 4, prepared 8, body length 4
    return b"".join(
        [
            _INT.pack(size),
            magic,
            frame[8:12],
            _INT.pack(queue_id),
            frame[16:QUEUE_OFFSET_AT],
            bytes(SYS_FLAG_AT - QUEUE_OFFSET_AT),
            _INT.pack(message.sys_flag & ~_CLEARED),
            frame[SYS_FLAG_AT + 4 : born_end],
            bytes(16),
            frame[tail : tail + 4],
            bytes(8),
            frame[tail + 12 : tail + 16],
        ]
    )


def moved(message: StoredMessage) -> bytes:
    """The frame for the queue of the same name and number."""
    narrower = WIDER * bool(message.sys_flag & SysFlag.STORE_HOST_V6)
    head = _head(message, message.frame[4:8], message.queue_id, len(message.frame) - narrower)
    return head + message.frame[len(head) + narrower :]


def timed(message: StoredMessage, properties: dict[str, str], due_ms: int) -> tuple[bytes, dict[str, str]]:
    """The frame of a message that waits until ``due_ms``, and its properties.

    Timed messages have unique ids of one length.  Of a longer one (of a client with an IPv6 address) the end is kept: what differs.
    """
    unique = properties.get(UNIQUE_ID, "").encode("ascii", "replace").decode().ljust(UNIQUE_ID_SIZE, "?")[-UNIQUE_ID_SIZE:]
    place = {REAL_TOPIC: properties[REAL_TOPIC], REAL_QUEUE: properties.get(REAL_QUEUE, "0")}
    kept = {name: value for name, value in properties.items() if name not in _OF_WAITING}
    properties = {UNIQUE_ID: unique, TIMER_OUT: str(due_ms), **kept, **place}
    packed, topic = encode_properties(properties), topic_field(TIMER_TOPIC.encode())
    head_size = len(_head(message, bytes(4), 0, 0))
    narrower = WIDER * bool(message.sys_flag & SysFlag.STORE_HOST_V6)
    tail = b"".join([message.frame[head_size + narrower : message.topic_at], topic, struct.pack(">h", len(packed)), packed])
    return _head(message, _INT.pack(magic_of(TIMER_TOPIC.encode())), 0, head_size + len(tail)) + tail, properties


@dataclass(slots=True)
class OpenBatch:
    """Messages of one queue that go together.  ``first``: the offset of the first one in the old queue, of the next when there is none."""

    topic: str
    queue_id: int
    first: int
    size_bytes: int = 0
    wide: bool = False
    _messages: FrameBatch = field(init=False)

    def __post_init__(self) -> None:
        self._messages = FrameBatch(self.topic, self.queue_id)

    @property
    def count(self) -> int:
        """Of its messages."""
        return len(self._messages.sizes)

    def add(self, frame: bytes, properties: dict[str, str]) -> None:
        self._messages.add(frame, properties)
        self.size_bytes += len(frame)

    def record(self) -> bytes:
        """The batch as a client sends it, still without a sequence."""
        return b"".join(self._messages.parts())
