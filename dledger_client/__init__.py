"""Python clients: producers, consumers and topic management.  ``dledger_client.aio`` has the same names for asyncio."""

from dledger_client.admin import Admin
from dledger_client.consumer import PullConsumer
from dledger_client.message import Message, SendResult, SendStatus
from dledger_client.producer import Producer
from dledger_client.received import ReceivedMessage
from dledger_client.topic_lanes import by_hash, by_random

__all__ = ["Admin", "Message", "Producer", "PullConsumer", "ReceivedMessage", "SendResult", "SendStatus", "by_hash", "by_random"]
