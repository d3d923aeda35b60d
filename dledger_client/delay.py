"""Delayed messages on the producer's side: parked in the schedule topic, with the place they are meant for in their properties.

Owns the two properties.  The broker's schedule service (master only) stores them under their real topic when their level's time is over.
"""

from __future__ import annotations

from dledger_client.message import Message
from dledger_wire.frame_layout import encode_properties
from dledger_wire.names import SCHEDULE_TOPIC


def parked(message: Message, queue_id: int) -> tuple[Message, int]:
    """(the message as it is sent now, the queue of the schedule topic it goes to) for one meant for ``queue_id`` of its topic."""
    copy = Message.__new__(Message)
    copy.topic, copy.body, copy.flag, copy.delay_level = SCHEDULE_TOPIC, message.body, message.flag, message.delay_level
    copy.tags, copy.keys, copy.properties = message.tags, message.keys, message.properties
    copy.extras = message.extras + encode_properties({"REAL_TOPIC": message.topic, "REAL_QID": str(queue_id)})
    return copy, message.delay_level - 1
