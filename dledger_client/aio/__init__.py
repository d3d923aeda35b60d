"""The clients for asyncio; the same names as in ``dledger_client``."""

from dledger_client.aio.admin import Admin
from dledger_client.aio.consumer import PullConsumer
from dledger_client.aio.logical_queue import LogicalQueueReader, LogicalQueueWriter
from dledger_client.aio.producer import Producer
from dledger_client.aio.push import PushConsumer
from dledger_client.aio.transaction import Transaction, TransactionProducer, TransactionResult
from dledger_client.listener import Action, ConsumeContext
from dledger_client.message import Message, SendResult, SendStatus
from dledger_client.received import ReceivedMessage
from dledger_client.topic_lanes import by_hash, by_random
from dledger_client.transaction_ends import TransactionOutcome, TransactionState

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
    "Transaction",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "by_hash",
    "by_random",
]
