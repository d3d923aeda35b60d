"""Results of ``Admin``; importable from ``dledger_client`` and from ``dledger_client.aio``, which load this module when one is used."""

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
from dledger_client.admin.message_query import QueryResult
from dledger_client.admin.message_trace import ConsumerState, ReplicaState, Trace, TracedCopy
from dledger_client.admin.name_servers import NameServerStatus
from dledger_client.admin.open_transactions import GroupTransactions, OpenTransaction
from dledger_client.admin.replica_comparison import ReplicaComparison
from dledger_client.admin.replica_groups import LeaderTransfer, LeftMessages, Membership, NodeExpiry, ReplicaGroupDescription
from dledger_client.admin.security import AccessDecision, AccessRule, ClusterUser, SecurityChange
from dledger_client.admin.send_back import SendBackResult, SentBack
from dledger_client.admin.topic_route import RoutePart, TopicRoute
from dledger_client.admin.topics import ChangedTopic, QueueRange
from dledger_client.admin.upgrade import GroupUpgrade, RaisedLevel, UpgradeCheck

__all__ = [
    "AccessDecision",
    "AccessRule",
    "AuditLog",
    "AuditRecord",
    "ChangedTopic",
    "ClusterDescription",
    "ClusterDirectory",
    "ClusterUser",
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
    "LogLine",
    "LogTail",
    "Membership",
    "NameServerStatus",
    "NodeDetails",
    "NodeExpiry",
    "NodeStatus",
    "NodeTraffic",
    "OffsetReset",
    "OpenTransaction",
    "PeerStatus",
    "QueryResult",
    "QueueLag",
    "QueueRange",
    "RaisedLevel",
    "RegisteredGroup",
    "RegisteredNode",
    "ReplicaComparison",
    "ReplicaGroupDescription",
    "ReplicaGroupStatus",
    "ReplicaState",
    "RoutePart",
    "SecurityChange",
    "SendBackResult",
    "SentBack",
    "StandingQueue",
    "TopicCounts",
    "TopicRoute",
    "Trace",
    "TracedCopy",
    "UpgradeCheck",
    "WaitingDelays",
    "WaitingMessage",
]
