"""Half messages on the producer's side: parked in a system topic until their transaction ends, with what the broker has to know.

Owns those properties, RocketMQ's names.  ``store/halves.py`` reads them.
"""

from __future__ import annotations

from dledger_client.message import UNIQUE_ID_PROPERTY_BYTES, Message
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frame_layout import MAX_PROPERTIES_BYTES, encode_properties
from dledger_wire.names import HALF_TOPIC


class HalfMessage(Message):
    """A message of a transaction, on its way to ``topic``; ``producer_group`` is who can be asked what became of the transaction."""

    __slots__ = ("producer_group",)

    producer_group: str

    @classmethod
    def of(cls, message: Message, producer_group: str) -> HalfMessage:
        """InvalidArgumentError for a delayed message: it would not be delivered with its transaction."""
        if message.delay_level or message.deliver_at_ms:
            raise InvalidArgumentError("a message of a transaction comes when the transaction is committed; expected no delay")
        half = cls.__new__(cls)
        half.topic, half.body, half.flag, half.delay_level, half.deliver_at_ms = message.topic, message.body, message.flag, 0, 0
        half.tags, half.keys, half.properties, half.extras = message.tags, message.keys, message.properties, message.extras
        half.producer_group = producer_group
        return half

    def parked(self, queue_id: int) -> Message:
        """The message as it is sent now, for one meant for ``queue_id`` of its topic."""
        place = {"TRAN_MSG": "true", "PGROUP": self.producer_group, "REAL_TOPIC": self.topic, "REAL_QID": str(queue_id)}
        copy = Message.__new__(Message)
        copy.topic, copy.body, copy.flag, copy.delay_level, copy.deliver_at_ms = HALF_TOPIC, self.body, self.flag, 0, 0
        copy.tags, copy.keys, copy.properties = self.tags, self.keys, self.properties
        copy.extras = self.extras + encode_properties(place)
        if len(copy.extras) + UNIQUE_ID_PROPERTY_BYTES > MAX_PROPERTIES_BYTES:
            most = MAX_PROPERTIES_BYTES - UNIQUE_ID_PROPERTY_BYTES - len(copy.extras) + len(self.extras)
            raise InvalidArgumentError(f"keys, tags and properties take {len(self.extras)} bytes; expected at most {most} in a transaction")
        return copy
