"""The clients for asyncio; the same names as in ``dledger_client``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dledger_client.aio.admin import Admin as Admin
    from dledger_client.aio.consumer import PullConsumer as PullConsumer
    from dledger_client.aio.logical_queue import LogicalQueueReader as LogicalQueueReader
    from dledger_client.aio.logical_queue import LogicalQueueWriter as LogicalQueueWriter
    from dledger_client.aio.polled import Consumer as Consumer
    from dledger_client.aio.producer import Producer as Producer
    from dledger_client.aio.push import PushConsumer as PushConsumer
    from dledger_client.aio.simple_consumer import SimpleConsumer as SimpleConsumer
    from dledger_client.aio.transaction import Transaction as Transaction
    from dledger_client.aio.transaction import TransactionProducer as TransactionProducer
    from dledger_client.types import *  # noqa: F403
    from dledger_wire.errors import *  # noqa: F403
else:
    from dledger_client.lazy import exported_by as _exported_by

    __getattr__, __dir__ = _exported_by(__name__, __name__)
