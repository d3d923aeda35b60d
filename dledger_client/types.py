"""Results, settings and callback types of the clients; importable from ``dledger_client`` and from ``dledger_client.aio``."""

from dledger_client.admin.audit import AuditLog, AuditRecord
from dledger_client.admin.calls import Listed
from dledger_client.admin.cluster_status import ClusterDescription, NodeStatus, PeerStatus, ReplicaGroupStatus
from dledger_client.admin.consumer_checks import ConsumersStatus
from dledger_client.admin.consumer_groups import (
    ConsumerGroup,
    ConsumerGroupDescription,
    ConsumerGroupSettings,
    OffsetReset,
    QueueLag,
)
from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.diagnostics import (
    DataFiles,
    DelayLevel,
    LeaderChange,
    LogLine,
    LogTail,
    NodeDetails,
    NodeTraffic,
    TopicCounts,
    WaitingDelays,
    WaitingMessage,
)
from dledger_client.admin.directory import ClusterDirectory, RegisteredGroup, RegisteredNode
from dledger_client.admin.group_answers import GroupMember
from dledger_client.admin.group_progress import GroupProgress, GroupState, StandingQueue
from dledger_client.admin.membership import LeaderTransfer, Membership
from dledger_client.admin.message_query import QueryResult
from dledger_client.admin.message_trace import ConsumerState, ReplicaState, Trace, TracedCopy
from dledger_client.admin.name_servers import NameServerStatus
from dledger_client.admin.open_transactions import GroupTransactions, OpenTransaction
from dledger_client.admin.replica_comparison import ReplicaComparison
from dledger_client.admin.replica_groups import LeftMessages, ReplicaGroupState
from dledger_client.admin.retention import NodeExpiry
from dledger_client.admin.security import AccessDecision, AccessRule, ClusterUser, SecurityChange
from dledger_client.admin.send_back import SendBackResult, SentBack
from dledger_client.admin.topic_route import RoutePart, TopicRoute
from dledger_client.admin.topics import ChangedTopic, QueueRange
from dledger_client.admin.upgrade import GroupUpgrade, NodeBuild, RaisedLevel, UpgradeCheck
from dledger_client.cluster.bootstrap import Bootstrap
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
    "NodeBuild",
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
    "ReadAt",
    "ReceivedMessage",
    "RegisteredGroup",
    "RegisteredNode",
    "ReplicaComparison",
    "ReplicaGroup",
    "ReplicaGroupState",
    "ReplicaGroupStatus",
    "ReplicaLag",
    "ReplicaState",
    "RoutePart",
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
