"""Results, settings and callback types of the clients; importable from ``dledger_client`` and from ``dledger_client.aio``."""

import typing as _typing

from dledger_client.cluster.channels import Bootstrap as Bootstrap
from dledger_client.cluster.followers_first import ReadAt as ReadAt
from dledger_client.cluster.routes import Node as Node
from dledger_client.cluster.routes import ReplicaGroup as ReplicaGroup
from dledger_client.cluster.routes import TopicQueues as TopicQueues
from dledger_client.consumer.allocation import MessageQueue as MessageQueue
from dledger_client.consumer.allocation import Strategy as Strategy
from dledger_client.consumer.allocation import averagely as averagely
from dledger_client.consumer.allocation import averagely_by_circle as averagely_by_circle
from dledger_client.consumer.allocation import by_config as by_config
from dledger_client.consumer.allocation import by_machine_room as by_machine_room
from dledger_client.consumer.allocation import consistent_hash as consistent_hash
from dledger_client.consumer.allocation import machine_room_nearby as machine_room_nearby
from dledger_client.consumer.leased_messages import LeasedMessage as LeasedMessage
from dledger_client.consumer.listener import Action as Action
from dledger_client.consumer.listener import ConsumeContext as ConsumeContext
from dledger_client.consumer.listener import Listener as Listener
from dledger_client.consumer.poll_settings import ConsumerSettings as ConsumerSettings
from dledger_client.consumer.poll_settings import RebalanceCallback as RebalanceCallback
from dledger_client.consumer.settings import PushSettings as PushSettings
from dledger_client.fetch.options import FetchOptions as FetchOptions
from dledger_client.fetch.options import PullSettings as PullSettings
from dledger_client.fetch.options import RangeOptions as RangeOptions
from dledger_client.fetch.options import ReadOptions as ReadOptions
from dledger_client.fetch.options import ScanOptions as ScanOptions
from dledger_client.fetch.records import Chunk as Chunk
from dledger_client.fetch.records import NumberedMessage as NumberedMessage
from dledger_client.fetch.records import QueueOffsets as QueueOffsets
from dledger_client.fetch.records import ReceivedMessage as ReceivedMessage
from dledger_client.fetch.records import ReplicaLag as ReplicaLag
from dledger_client.message import Message as Message
from dledger_client.message import SendResult as SendResult
from dledger_client.message import SendStatus as SendStatus
from dledger_client.producer.delivery_report import AsyncSendFuture as AsyncSendFuture
from dledger_client.producer.delivery_report import SendFuture as SendFuture
from dledger_client.producer.message_columns import ArrowColumn as ArrowColumn
from dledger_client.producer.message_columns import Bodies as Bodies
from dledger_client.producer.message_columns import Texts as Texts
from dledger_client.producer.partitioner import QueueKey as QueueKey
from dledger_client.producer.partitioner import QueueNumber as QueueNumber
from dledger_client.producer.partitioner import QueueSelector as QueueSelector
from dledger_client.producer.partitioner import by_hash as by_hash
from dledger_client.producer.partitioner import by_random as by_random
from dledger_client.producer.send_many import AsyncSendManyFuture as AsyncSendManyFuture
from dledger_client.producer.send_many import SendManyFuture as SendManyFuture
from dledger_client.producer.send_many import SendManyResult as SendManyResult
from dledger_client.producer.send_many import SentRange as SentRange
from dledger_client.producer.settings import ProducerSettings as ProducerSettings
from dledger_client.producer.settings import TransactionSettings as TransactionSettings
from dledger_client.runtime.security import SecuritySettings as SecuritySettings
from dledger_client.runtime.security import Tls as Tls
from dledger_client.transactions.resolver import CheckListener as CheckListener
from dledger_client.transactions.resolver import TransactionOutcome as TransactionOutcome
from dledger_client.transactions.resolver import TransactionResult as TransactionResult
from dledger_client.transactions.resolver import TransactionState as TransactionState
from dledger_wire.security.tls import TlsSettings as TlsSettings
from dledger_wire.status import Perm as Perm
from dledger_wire.trace_context import TraceContext as TraceContext

if _typing.TYPE_CHECKING:
    from dledger_client.admin.results import *  # noqa: F403
else:

    def __getattr__(name: str) -> _typing.Any:
        """The results of ``Admin``, which are loaded when the first of them is used, and the names of all."""
        from dledger_client.admin import results

        if name == "__all__":
            return sorted(each for each in {**vars(results), **globals()} if not each.startswith("_"))
        return getattr(results, name)
