"""Clients of dledger: producers, consumers, transactions and administration. ``dledger_client.aio`` has the same names for asyncio."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dledger_client import errors as errors
    from dledger_client.sync.admin import Admin as Admin
    from dledger_client.sync.consumer import PullConsumer as PullConsumer
    from dledger_client.sync.logical_queue import LogicalQueueReader as LogicalQueueReader
    from dledger_client.sync.logical_queue import LogicalQueueWriter as LogicalQueueWriter
    from dledger_client.sync.polled import Consumer as Consumer
    from dledger_client.sync.producer import Producer as Producer
    from dledger_client.sync.push import PushConsumer as PushConsumer
    from dledger_client.sync.simple_consumer import SimpleConsumer as SimpleConsumer
    from dledger_client.sync.transaction import Transaction as Transaction
    from dledger_client.sync.transaction import TransactionProducer as TransactionProducer
    from dledger_client.types import *  # noqa: F403
    from dledger_wire.errors import *  # noqa: F403

    __version__: str
else:
    from dledger_client.lazy import exported_by as _exported_by

    _load, __dir__ = _exported_by(__name__, "dledger_client.sync")

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from dledger_wire.version import installed_version

            return installed_version()
        return _load(name)
