"""The clients for asyncio; the same names as in ``dledger_client``."""

from dledger_client import errors, types
from dledger_client.aio.admin import Admin
from dledger_client.aio.consumer import PullConsumer
from dledger_client.aio.logical_queue import LogicalQueueReader, LogicalQueueWriter
from dledger_client.aio.producer import Producer
from dledger_client.aio.push import PushConsumer
from dledger_client.aio.transaction import Transaction, TransactionProducer
from dledger_client.types import *  # noqa: F403
from dledger_wire.errors import *  # noqa: F403

__all__ = [
    "Admin",
    "LogicalQueueReader",
    "LogicalQueueWriter",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Transaction",
    "TransactionProducer",
]
__all__ += errors.__all__
__all__ += types.__all__
