"""The copies that retry and dead letters are made of: which topic, which delay, which properties.

Owns RocketMQ's rules of a message that was sent back: where it came from and its first id stay in its properties, the frame counts the
attempts, the delay grows a level an attempt, and after the last one it is a dead letter.  Pure; what stores the copies is the broker's.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame import Frame
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.frames.message_id import offset_message_id
from dledger_wire.java_hash import java_hash
from dledger_wire.names import dlq_topic, retry_topic
from store.append.redelivery import copied, staged
from store.state.delays import LEVELS

RETRY_TOPIC, ORIGIN_MESSAGE_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
_OF_RETRIES = (RETRY_TOPIC, ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, "MAX_RECONSUME_TIMES", "CONSUME_START_TIME")

FIRST_RETRY_LEVEL = 3
DEAD_AT_ONCE = -1


@dataclass(frozen=True, slots=True)
class RetryRule:
    """What a consumer group asks for: ``delay_level`` 0 is by attempt, -1 none at all; ``max_times`` attempts, over ``queues`` queues."""

    group: str
    delay_level: int
    max_times: int
    queues: int

    def __post_init__(self) -> None:
        if not DEAD_AT_ONCE <= self.delay_level <= LEVELS:
            raise InvalidArgumentError(f"delay level {self.delay_level}: expected -1 (dead letter), 0 (by attempt) or 1 to {LEVELS}")

    def is_dead(self, frame: Frame) -> bool:
        """Whether the message, as the group read it, has had all its attempts."""
        return self.delay_level == DEAD_AT_ONCE or frame.reconsume_times >= self.max_times

    def level_of(self, frame: Frame) -> int:
        return self.delay_level or min(LEVELS, FIRST_RETRY_LEVEL + frame.reconsume_times)


def sent_back(frame: Frame, rule: RetryRule) -> Frame:
    """The copy to store for a message that ``rule``'s group could not process."""
    # Only a message in the group's own retry topic was put there by a broker: on others a producer may have written these properties.
    known_properties = frame.properties if frame.topic == retry_topic(rule.group) else {}
    origin_topic = known_properties.get(RETRY_TOPIC) or frame.topic
    origin_id = known_properties.get(ORIGIN_MESSAGE_ID) or offset_message_id(pack_host(frame.store_host), frame.physical_offset)
    properties = frame.properties | {RETRY_TOPIC: origin_topic, ORIGIN_MESSAGE_ID: origin_id}
    times = frame.reconsume_times + 1
    if rule.is_dead(frame):
        properties |= {DLQ_ORIGIN_TOPIC: origin_topic, DLQ_ORIGIN_MESSAGE_ID: origin_id}
        return copied(frame, dlq_topic(rule.group), 0, properties, times)
    queue_id = frame.queue_offset % rule.queues
    return staged(copied(frame, retry_topic(rule.group), queue_id, properties, times), rule.level_of(frame))


def redriven(frame: Frame, group: str, write_queues: int, *, to_retry_topic: bool) -> Frame:
    """A dead letter as it was when it was first sent, for its original topic; for the group's retry topic it keeps where it came from."""
    topic = origin_of(frame)
    properties = {name: value for name, value in frame.properties.items() if name not in _OF_RETRIES}
    queue_id = abs(java_hash(frame.properties.get("UNIQ_KEY", str(frame.queue_offset)))) % write_queues
    if to_retry_topic:
        kept = {name: frame.properties[name] for name in (RETRY_TOPIC, ORIGIN_MESSAGE_ID) if name in frame.properties}
        return copied(frame, retry_topic(group), queue_id, properties | kept, 0)
    return copied(frame, topic, queue_id, properties, 0)


def origin_of(frame: Frame) -> str:
    """The topic a dead letter was first sent to; empty when it does not say."""
    return frame.properties.get(DLQ_ORIGIN_TOPIC) or frame.properties.get(RETRY_TOPIC, "")
