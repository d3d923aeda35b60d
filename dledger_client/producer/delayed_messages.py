"""Delayed messages on the producer's side: staged in a system topic, with their real topic and queue as properties.

Owns those properties.  The leader's services move them to their real topic when their level's delay, or their delivery
time, is over.
"""

from __future__ import annotations

from dledger_client.message import Message
from dledger_wire.frames.frame_layout import encode_properties
from dledger_wire.frames.timer import timer_property
from dledger_wire.names import SCHEDULE_TOPIC, TIMER_TOPIC


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
