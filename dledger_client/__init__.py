"""Clients of dledger: producers, consumers, transactions and administration. ``dledger_client.aio`` has the same names for asyncio."""

from dledger_client import errors, types
from dledger_client.sync.admin import Admin
from dledger_client.sync.consumer import PullConsumer
from dledger_client.sync.logical_queue import LogicalQueueReader, LogicalQueueWriter
from dledger_client.sync.producer import Producer
from dledger_client.sync.push import PushConsumer
from dledger_client.sync.transaction import Transaction, TransactionProducer
from dledger_client.types import *  # noqa: F403
from dledger_wire.errors import *  # noqa: F403
from dledger_wire.version import installed_version as _installed_version

__version__ = _installed_version()

__all__ = [
    "Admin",
    "LogicalQueueReader",
    "LogicalQueueWriter",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Transaction",
    "TransactionProducer",
    "errors",
]
__all__ += errors.__all__
__all__ += types.__all__
