"""Python clients: producers, consumers and topic management.  ``dledger_client.aio`` has the same names for asyncio."""

from dledger_client.admin import Admin
from dledger_client.consumer import PullConsumer
from dledger_client.listener import Action, ConsumeContext
from dledger_client.logical_queue import LogicalQueueReader, LogicalQueueWriter
from dledger_client.message import Message, SendResult, SendStatus
from dledger_client.producer import Producer
from dledger_client.push import PushConsumer
from dledger_client.received import ReceivedMessage
from dledger_client.topic_lanes import by_hash, by_random

__all__ = [
    "Action",
    "Admin",
    "ConsumeContext",
    "LogicalQueueReader",
    "LogicalQueueWriter",
    "Message",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "by_hash",
    "by_random",
]
