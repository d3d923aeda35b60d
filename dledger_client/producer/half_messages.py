"""Half and delayed messages on the producer's side: staged in a system topic, with properties that say what they become.

Owns those properties.  Half messages wait until their transaction ends, with RocketMQ's names (``store/append/half_messages.py`` reads
them).  Delayed messages carry their real topic and queue: the leader's services move them there when their level's delay, or their
delivery time, is over.
"""

from __future__ import annotations

from dledger_client.message import Message
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import encode_properties
from dledger_wire.frames.timer import timer_property
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC


def staged_delayed(message: Message, queue_id: int) -> tuple[Message, int]:
    """(the message as it is sent now, the queue that holds it); ``queue_id``: its queue once it is delivered."""
    copy = message.clone()
    place = encode_properties({"REAL_TOPIC": message.topic, "REAL_QID": str(queue_id)})
    if message.deliver_at_ms:
        copy.topic, copy.extras = TIMER_TOPIC, timer_property(message.deliver_at_ms) + message.extras + place
        queue_id = 0
    else:
        copy.topic, copy.extras = SCHEDULE_TOPIC, message.extras + place
        queue_id = message.delay_level - 1
    return copy, queue_id


def half_of(message: Message, producer_group: str) -> Message:
    """The message as one of a transaction; ``producer_group`` gets the transaction checks.

    InvalidArgumentError for a delayed message: it would not be delivered with its transaction.
    """
    if message.delay_level or message.deliver_at_ms:
        raise InvalidArgumentError("a transactional message is delivered when its transaction is committed; expected no delay")
    half = message.clone()
    half.transaction_group = producer_group
    return half


def staged_half(half: Message, queue_id: int) -> Message:
    """The message as it is sent now; ``queue_id``: its queue once it is committed."""
    place = {"TRAN_MSG": "true", "PGROUP": half.transaction_group, "REAL_TOPIC": half.topic, "REAL_QID": str(queue_id)}
    copy = half.clone()
    copy.topic, copy.extras = HALF_TOPIC, half.extras + encode_properties(place)
    return copy
