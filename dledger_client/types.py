"""Results, settings and callback types of the clients; importable from ``dledger_client`` and from ``dledger_client.aio``."""

from typing import TYPE_CHECKING, Any

from dledger_client.cluster.channels import Bootstrap
from dledger_client.cluster.followers_first import ReadAt
from dledger_client.cluster.routes import Node, ReplicaGroup, TopicQueues
from dledger_client.consumer.allocation import (
    MessageQueue,
    Strategy,
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
    machine_room_nearby,
)
from dledger_client.consumer.listener import Action, ConsumeContext, Listener
from dledger_client.consumer.settings import PushSettings
from dledger_client.fetch.options import FetchOptions, RangeOptions, ReadOptions, ScanOptions
from dledger_client.fetch.records import Chunk, NumberedMessage, QueueOffsets, ReceivedMessage, ReplicaLag
from dledger_client.message import Message, SendResult, SendStatus
from dledger_client.producer.delivery_report import AsyncSendFuture, SendFuture
from dledger_client.producer.message_columns import ArrowColumn, Bodies, Texts
from dledger_client.producer.partitioner import QueueKey, QueueNumber
from dledger_client.producer.queue_selectors import QueueSelector, by_hash, by_random
from dledger_client.producer.send_many import AsyncSendManyFuture, SendManyFuture, SendManyResult, SentRange
from dledger_client.producer.settings import ProducerSettings
from dledger_client.runtime.security import SecuritySettings, Tls
from dledger_client.transactions.resolver import CheckListener, TransactionOutcome, TransactionResult, TransactionState
from dledger_wire.security.tls import TlsSettings
from dledger_wire.status import Perm
from dledger_wire.trace_context import TraceContext

if TYPE_CHECKING:
    from dledger_client.admin.results import *  # noqa: F403

__all__ = [
    "AccessDecision",
    "AccessRule",
    "Action",
    "ArrowColumn",
    "AsyncSendFuture",
    "AsyncSendManyFuture",
    "AuditLog",
    "AuditRecord",
    "Bodies",
    "Bootstrap",
    "ChangedTopic",
    "CheckListener",
    "Chunk",
    "ClusterDescription",
    "ClusterDirectory",
    "ClusterUser",
    "ConsumeContext",
    "ConsumerGroup",
    "ConsumerGroupDescription",
    "ConsumerGroupSettings",
    "ConsumerState",
    "ConsumersStatus",
    "DataFiles",
    "DeadLetters",
    "DelayLevel",
    "FetchOptions",
    "GroupMember",
    "GroupProgress",
    "GroupState",
    "GroupTransactions",
    "GroupUpgrade",
    "LeaderChange",
    "LeaderTransfer",
    "LeftMessages",
    "Listed",
    "Listener",
    "LogLine",
    "LogTail",
    "Membership",
    "Message",
    "MessageQueue",
    "NameServerStatus",
    "Node",
    "NodeDetails",
    "NodeExpiry",
    "NodeStatus",
    "NodeTraffic",
    "NumberedMessage",
    "OffsetReset",
    "OpenTransaction",
    "PeerStatus",
    "Perm",
    "ProducerSettings",
    "PushSettings",
    "QueryResult",
    "QueueKey",
    "QueueLag",
    "QueueNumber",
    "QueueOffsets",
    "QueueRange",
    "QueueSelector",
    "RaisedLevel",
    "RangeOptions",
    "ReadAt",
    "ReadOptions",
    "ReceivedMessage",
    "RegisteredGroup",
    "RegisteredNode",
    "ReplicaComparison",
    "ReplicaGroup",
    "ReplicaGroupDescription",
    "ReplicaGroupStatus",
    "ReplicaLag",
    "ReplicaState",
    "RoutePart",
    "ScanOptions",
    "SecurityChange",
    "SecuritySettings",
    "SendBackResult",
    "SendFuture",
    "SendManyFuture",
    "SendManyResult",
    "SendResult",
    "SendStatus",
    "SentBack",
    "SentRange",
    "StandingQueue",
    "Strategy",
    "Texts",
    "Tls",
    "TlsSettings",
    "TopicCounts",
    "TopicQueues",
    "TopicRoute",
    "Trace",
    "TraceContext",
    "TracedCopy",
    "TransactionOutcome",
    "TransactionResult",
    "TransactionState",
    "UpgradeCheck",
    "WaitingDelays",
    "WaitingMessage",
    "averagely",
    "averagely_by_circle",
    "by_config",
    "by_hash",
    "by_machine_room",
    "by_random",
    "consistent_hash",
    "machine_room_nearby",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The results of ``Admin``, which are loaded when the first of them is used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from dledger_client.admin import results

        globals().update({each: getattr(results, each) for each in results.__all__})
        return globals()[name]
