"""Half messages on the producer's side: staged in a system topic until their transaction ends, with the properties the broker needs.

Owns those properties, RocketMQ's names.  ``store/append/half_messages.py`` reads them.
"""

from __future__ import annotations

from dledger_client.message import Message
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import encode_properties
from dledger_wire.names import HALF_TOPIC


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
