"""Stored messages as RocketMQ's gRPC clients read them.

Owns which property becomes which field.  Bodies go out as they were before they were compressed, since clients open different formats,
with a digest that all of them compare alike.
"""

from __future__ import annotations

import asyncio
import hashlib

from google.protobuf.timestamp_pb2 import Timestamp

from broker.groups.pop_reads import SHARDING_KEY
from broker.rocketmq_grpc._pb.definition_pb2 import DeadLetterQueue, Digest, DigestType, Encoding, Message, MessageType
from broker.rocketmq_grpc.client import resource_of
from broker.rocketmq_grpc.incoming import BESIDE_BYTES, KEYS, RESERVED, TAGS, TRACE
from dledger_wire.addresses import host_of
from dledger_wire.errors import CorruptFrameError
from dledger_wire.frames.compress import compression_in, decompress
from dledger_wire.frames.frame import Frame
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.frames.message_id import offset_message_id
from dledger_wire.frames.priority import PRIORITY
from dledger_wire.frames.timer import TIMER_DELIVER, TIMER_OUT
from dledger_wire.status import SysFlag
from store.append.redelivery import UNIQUE_ID
from store.append.staged_check import PREPARED

ORIGIN_TOPIC, ORIGIN_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
_DELAYS = ("DELAY", TIMER_DELIVER, TIMER_OUT, "TIMER_DELAY_MS", "TIMER_DELAY_SEC")


async def message_of(frame: Frame) -> Message:
    """A stored message, without what only a consumer that has leased it is given."""
    properties = frame.properties
    large = len(frame.body) > (BESIDE_BYTES // 16 if frame.sys_flag & SysFlag.COMPRESSED else BESIDE_BYTES)
    body, digest = await asyncio.to_thread(_opened, frame) if large else _opened(frame)
    message = Message(topic=resource_of(frame.topic), body=body)
    for name, value in properties.items():
        if name not in RESERVED:
            message.user_properties[name] = value
    system = message.system_properties
    system.message_id = properties.get(UNIQUE_ID) or offset_message_id(pack_host(frame.store_host), frame.physical_offset)
    if TAGS in properties:
        system.tag = properties[TAGS]
    system.keys.extend(properties.get(KEYS, "").split())
    system.body_digest.CopyFrom(Digest(type=DigestType.MD5, checksum=digest))
    system.body_encoding = Encoding.IDENTITY
    system.message_type = _type_of(properties)
    system.born_timestamp.CopyFrom(timestamp(frame.born_timestamp))
    system.store_timestamp.CopyFrom(timestamp(frame.store_timestamp))
    system.born_host, system.store_host = host_of(frame.born_host), host_of(frame.store_host)
    system.queue_id, system.queue_offset = frame.queue_id, frame.queue_offset
    if SHARDING_KEY in properties:
        system.message_group = properties[SHARDING_KEY]
    if TRACE in properties:
        system.trace_context = properties[TRACE]
    if TIMER_DELIVER in properties:
        system.delivery_timestamp.CopyFrom(timestamp(_number(properties[TIMER_DELIVER], 13)))
    if PRIORITY in properties:
        system.priority = _number(properties[PRIORITY], 9)
    if ORIGIN_TOPIC in properties:
        origin = DeadLetterQueue(topic=properties[ORIGIN_TOPIC], message_id=properties.get(ORIGIN_ID, ""))
        system.dead_letter_queue.CopyFrom(origin)
    return message


def _opened(frame: Frame) -> tuple[bytes, str]:
    """The body, and its digest."""
    try:
        body = decompress(frame.body, compression_in(frame.sys_flag))
    except CorruptFrameError:
        body = frame.body  # its producer compressed it in a way of its own; nobody gets anything else of it
    return body, hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def _type_of(properties: dict[str, str]) -> MessageType.ValueType:
    if properties.get(PREPARED) == "true":
        return MessageType.TRANSACTION
    if any(name in properties for name in _DELAYS):
        return MessageType.DELAY
    if PRIORITY in properties:
        return MessageType.PRIORITY
    return MessageType.FIFO if SHARDING_KEY in properties else MessageType.NORMAL


def _number(text: str, digits: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else 0


def timestamp(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
