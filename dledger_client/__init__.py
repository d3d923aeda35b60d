"""Python clients: producers, consumers and topic management.  ``dledger_client.aio`` has the same names for asyncio."""

from dledger_client.admin import Admin
from dledger_client.aio.transaction import TransactionResult
from dledger_client.consumer import PullConsumer
from dledger_client.listener import Action, ConsumeContext
from dledger_client.logical_queue import LogicalQueueReader, LogicalQueueWriter
from dledger_client.message import Message, SendResult, SendStatus
from dledger_client.producer import Producer
from dledger_client.push import PushConsumer
from dledger_client.received import ReceivedMessage
from dledger_client.topic_lanes import by_hash, by_random
from dledger_client.transaction import Transaction, TransactionProducer
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
