"""Every RPC of the cluster: its path, its message types, how it is called, and how large its requests may be.

Owns the table; clients, servers, the command line and tests take methods from here and spell no path themselves.  A method also owns the
step between messages and bytes, on both sides.  A request that is no message of its type is an InvalidArgumentError at the server, a
response that is none an UnreachableError at the client: another attempt, or another node, may do better.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from dledger_wire._pb import (
    admin_pb2,
    broker_pb2,
    copy_pb2,
    diagnostics_pb2,
    pop_pb2,
    query_pb2,
    raft_pb2,
    retention_pb2,
    retry_pb2,
    routes_pb2,
    security_pb2,
    sessions_pb2,
    topics_pb2,
    transaction_pb2,
)
from dledger_wire.errors import InvalidArgumentError, UnreachableError
from dledger_wire.rpc.transport import MAX_MESSAGE_BYTES, ByteStream, CallContext, Channel, Server, StreamHandler, UnaryHandler

PACKAGE = "/dledger.v1."
PRODUCER_GROUP = "dledger-producer-group"  # what a Produce stream sends along: the group that it is of
SMALL_BYTES = 1 << 20
LIST_BYTES = 8 << 20
LARGE_BYTES = MAX_MESSAGE_BYTES  # messages and log entries

Kind = TypeVar("Kind", bound=Message)
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


def encode(message: Message) -> bytes:
    """The wire bytes of ``message``, the same ones in every process: maps are in the order of their keys."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def decode(kind: type[Kind], data: bytes) -> Kind:
    """The message in ``data``.  InvalidArgumentError when it is none."""
    try:
        message: Kind = kind.FromString(data)
    except DecodeError as error:
        raise InvalidArgumentError(f"not a {kind.DESCRIPTOR.name}: {error}") from None
    return message


def _parse_response(kind: type[Kind], data: bytes, sender: str) -> Kind:
    try:
        message: Kind = kind.FromString(data)
    except DecodeError as error:
        text = f"{sender}: {kind.DESCRIPTOR.name} of {len(data)} bytes cannot be read ({error})"
        raise UnreachableError(text, address=sender) from None
    return message


@dataclass(frozen=True, slots=True)
class UnaryMethod(Generic[Request, Response]):
    """One request, one response."""

    path: str
    request: type[Request]
    response: type[Response]
    max_request_bytes: int = SMALL_BYTES

    async def call(self, channel: Channel, request: Request, *, timeout_s: float) -> Response:
        """Call at the other end of ``channel``.  Raises what the handler raised, UnreachableError and DeadlineExceededError."""
        return self.parse_response(await self.call_bytes(channel, request, timeout_s=timeout_s))

    async def call_bytes(self, channel: Channel, request: Request, *, timeout_s: float) -> bytes:
        """As ``call``, for a response with a payload (``dledger_wire/rpc/envelope.py``): its bytes as they arrived."""
        return await channel.call(self.path, encode(request), timeout_s=timeout_s)

    def parse_response(self, data: bytes, address: str = "") -> Response:
        """The response in ``data``; ``address`` is the sender.  UnreachableError when it is none."""
        return _parse_response(self.response, data, address or self.path)

    def serve(self, server: Server, handler: Callable[[Request, CallContext], Awaitable[Response]]) -> None:
        """Answer calls with ``handler``."""

        async def answer(data: bytes, context: CallContext) -> bytes:
            return encode(await handler(decode(self.request, data), context))

        server.add_unary(self.path, answer)

    def serve_payload(self, server: Server, handler: Callable[[Request, CallContext], Awaitable[bytes]]) -> None:
        """As ``serve``, for responses with a payload: the handler makes the bytes."""

        async def answer(data: bytes, context: CallContext) -> bytes:
            return await handler(decode(self.request, data), context)

        server.add_unary(self.path, answer)

    def serve_bytes(self, server: Server, handler: UnaryHandler) -> None:
        """As ``serve``, for a handler that reads and makes the bytes itself."""
        server.add_unary(self.path, handler)


@dataclass(frozen=True, slots=True)
class StreamMethod(Generic[Request, Response]):
    """Any number of requests and responses on one stream; both sides read and write their bytes."""

    path: str
    request: type[Request]
    response: type[Response]
    max_request_bytes: int = SMALL_BYTES  # one message of the caller

    def open(self, channel: Channel, *, metadata: Mapping[str, str] | None = None) -> ByteStream:
        """Open a stream to the other end of ``channel``."""
        return channel.open(self.path, metadata=metadata)

    def parse_response(self, data: bytes, address: str) -> Response:
        """The response in ``data``; ``address`` is the sender.  UnreachableError when it is none."""
        return _parse_response(self.response, data, address)

    def serve(self, server: Server, handler: StreamHandler) -> None:
        """Run ``handler`` for every stream that is opened."""
        server.add_stream(self.path, handler)


# Service Broker

PRODUCE = StreamMethod("/dledger.v1.Broker/Produce", broker_pb2.ProduceRequest, broker_pb2.ProduceResponse, LARGE_BYTES)
FETCH = StreamMethod("/dledger.v1.Broker/Fetch", broker_pb2.FetchRequest, broker_pb2.FetchResponse)
METADATA = UnaryMethod("/dledger.v1.Broker/Metadata", broker_pb2.MetadataRequest, broker_pb2.MetadataResponse)
QUEUE_OFFSETS = UnaryMethod("/dledger.v1.Broker/Offsets", broker_pb2.OffsetsRequest, broker_pb2.OffsetsResponse)
COMMIT_OFFSETS = UnaryMethod(
    "/dledger.v1.Broker/CommitOffsets", broker_pb2.CommitOffsetsRequest, broker_pb2.CommitOffsetsResponse, LIST_BYTES
)
GROUP_OFFSETS = UnaryMethod("/dledger.v1.Broker/GroupOffsets", broker_pb2.GroupOffsetsRequest, broker_pb2.GroupOffsetsResponse)
RECALL_MESSAGE = UnaryMethod("/dledger.v1.Broker/RecallMessage", broker_pb2.RecallMessageRequest, broker_pb2.RecallMessageResponse)
INIT_PRODUCER = UnaryMethod("/dledger.v1.Broker/InitProducer", broker_pb2.InitProducerRequest, broker_pb2.InitProducerResponse)

# Service Admin

CREATE_TOPIC = UnaryMethod("/dledger.v1.Admin/CreateTopic", admin_pb2.TopicSpec, admin_pb2.TopicReply)
UPDATE_TOPIC = UnaryMethod("/dledger.v1.Admin/UpdateTopic", admin_pb2.TopicSpec, admin_pb2.TopicReply)
DELETE_TOPIC = UnaryMethod("/dledger.v1.Admin/DeleteTopic", admin_pb2.TopicSpec, admin_pb2.TopicReply)
LIST_TOPICS = UnaryMethod("/dledger.v1.Admin/ListTopics", admin_pb2.Empty, admin_pb2.TopicList)
NODE_STATUS = UnaryMethod("/dledger.v1.Admin/NodeStatus", admin_pb2.Empty, admin_pb2.NodeStatusReply)
TRANSFER_LEADER = UnaryMethod("/dledger.v1.Admin/TransferLeader", admin_pb2.TransferRequest, admin_pb2.TransferReply)
CHANGE_MEMBER = UnaryMethod("/dledger.v1.Admin/ChangeMember", admin_pb2.MemberRequest, admin_pb2.MemberReply)
SEGMENT_CHECKSUMS = UnaryMethod("/dledger.v1.Admin/SegmentChecksums", admin_pb2.ChecksumRequest, admin_pb2.ChecksumReply)
DESCRIBE_REPLICA_GROUP = UnaryMethod("/dledger.v1.Admin/DescribeReplicaGroup", admin_pb2.Empty, admin_pb2.ReplicaGroupReply)
SET_REPLICA_GROUP = UnaryMethod("/dledger.v1.Admin/SetReplicaGroup", admin_pb2.ReplicaGroupRequest, admin_pb2.ReplicaGroupReply)
TAKE_SPARE = UnaryMethod("/dledger.v1.Admin/TakeSpare", admin_pb2.TakeSpareRequest, admin_pb2.TakeSpareReply)
RAISE_FEATURE_LEVEL = UnaryMethod(
    "/dledger.v1.Admin/RaiseFeatureLevel", admin_pb2.RaiseFeatureLevelRequest, admin_pb2.RaiseFeatureLevelReply
)
SET_QUOTA = UnaryMethod("/dledger.v1.Admin/SetQuota", admin_pb2.QuotaRule, admin_pb2.QuotaReply)
DELETE_QUOTA = UnaryMethod("/dledger.v1.Admin/DeleteQuota", admin_pb2.QuotaRule, admin_pb2.QuotaReply)
LIST_QUOTAS = UnaryMethod("/dledger.v1.Admin/ListQuotas", admin_pb2.ListQuotasRequest, admin_pb2.QuotaList)
EXPIRE = UnaryMethod("/dledger.v1.Retention/Expire", retention_pb2.ExpireRequest, retention_pb2.ExpireReply)
AUTO_CREATE_TOPIC = UnaryMethod("/dledger.v1.Topics/AutoCreate", topics_pb2.AutoCreateRequest, topics_pb2.AutoCreateResponse)

# Service Diagnostics

TOPIC_TRAFFIC = UnaryMethod("/dledger.v1.Diagnostics/TopicTraffic", diagnostics_pb2.TopicTrafficRequest, diagnostics_pb2.TopicTrafficReply)
LEADER_HISTORY = UnaryMethod(
    "/dledger.v1.Diagnostics/LeaderHistory", diagnostics_pb2.LeaderHistoryRequest, diagnostics_pb2.LeaderHistoryReply
)
NODE_DETAILS = UnaryMethod("/dledger.v1.Diagnostics/NodeDetails", diagnostics_pb2.NodeDetailsRequest, diagnostics_pb2.NodeDetailsReply)
CONNECTIONS = UnaryMethod("/dledger.v1.Diagnostics/Connections", diagnostics_pb2.ConnectionsRequest, diagnostics_pb2.ConnectionsReply)
LOG_TAIL = UnaryMethod("/dledger.v1.Diagnostics/LogTail", diagnostics_pb2.LogTailRequest, diagnostics_pb2.LogTailReply)
WAITING_DELAYS = UnaryMethod(
    "/dledger.v1.Diagnostics/WaitingDelays", diagnostics_pb2.WaitingDelaysRequest, diagnostics_pb2.WaitingDelaysReply
)

# Consumer groups: services Sessions and Retry

JOIN_GROUP = StreamMethod("/dledger.v1.Sessions/Attend", sessions_pb2.MemberMessage, sessions_pb2.MasterMessage)
DESCRIBE_MEMBERS = UnaryMethod(
    "/dledger.v1.Sessions/DescribeMembers", sessions_pb2.DescribeMembersRequest, sessions_pb2.DescribeMembersResponse
)
SEND_BACK = UnaryMethod("/dledger.v1.Retry/SendBack", retry_pb2.SendBackRequest, retry_pb2.SendBackResponse, LIST_BYTES)
DEAD_LETTERS = UnaryMethod("/dledger.v1.Retry/DeadLetters", retry_pb2.DeadLettersRequest, retry_pb2.DeadLettersResponse)
REDRIVE = UnaryMethod("/dledger.v1.Retry/Redrive", retry_pb2.RedriveRequest, retry_pb2.RedriveResponse)
PUT_GROUP = UnaryMethod("/dledger.v1.Retry/PutGroup", retry_pb2.GroupSettings, retry_pb2.GroupSettings)
DELETE_GROUP = UnaryMethod("/dledger.v1.Retry/DeleteGroup", retry_pb2.GroupSettings, retry_pb2.GroupSettings)
LIST_GROUPS = UnaryMethod("/dledger.v1.Retry/ListGroups", retry_pb2.GroupSettings, retry_pb2.GroupSettingsList)

# Service Pop

RECEIVE = UnaryMethod("/dledger.v1.Pop/Receive", pop_pb2.ReceiveRequest, pop_pb2.ReceiveResponse)
ACKNOWLEDGE = UnaryMethod("/dledger.v1.Pop/Acknowledge", pop_pb2.ReceiptsRequest, pop_pb2.ReceiptsResponse)
CHANGE_INVISIBLE = UnaryMethod("/dledger.v1.Pop/ChangeInvisible", pop_pb2.ChangeInvisibleRequest, pop_pb2.ReceiptsResponse)
MOVE_TO_DEAD_LETTERS = UnaryMethod("/dledger.v1.Pop/MoveToDeadLetters", pop_pb2.ReceiptsRequest, pop_pb2.ReceiptsResponse)

# Service Transactions

JOIN_PRODUCER_GROUP = StreamMethod("/dledger.v1.Transactions/Attend", transaction_pb2.ProducerJoin, transaction_pb2.TransactionCheck)
END_TRANSACTIONS = UnaryMethod(
    "/dledger.v1.Transactions/EndTransactions",
    transaction_pb2.EndTransactionsRequest,
    transaction_pb2.EndTransactionsResponse,
    LIST_BYTES,
)
DESCRIBE_TRANSACTIONS = UnaryMethod(
    "/dledger.v1.Transactions/DescribeTransactions",
    transaction_pb2.DescribeTransactionsRequest,
    transaction_pb2.DescribeTransactionsResponse,
)

# Service Query

QUERY_MESSAGES = UnaryMethod("/dledger.v1.Query/QueryMessages", query_pb2.QueryMessagesRequest, query_pb2.QueryMessagesResponse)
CONSUMED = UnaryMethod("/dledger.v1.Query/Consumed", query_pb2.ConsumedRequest, query_pb2.ConsumedResponse)

# Name service

REGISTER = UnaryMethod("/dledger.v1.NameService/Register", routes_pb2.Registration, routes_pb2.RegisterReply, LIST_BYTES)
ROUTES = UnaryMethod("/dledger.v1.NameService/Routes", routes_pb2.RoutesRequest, routes_pb2.RoutesReply)
DIRECTORY = UnaryMethod("/dledger.v1.NameService/Directory", routes_pb2.DirectoryRequest, routes_pb2.DirectoryReply)

# Service Security

PUT_USER = UnaryMethod("/dledger.v1.Security/PutUser", security_pb2.PutUserRequest, security_pb2.SecurityChanged)
DELETE_USER = UnaryMethod("/dledger.v1.Security/DeleteUser", security_pb2.DeleteUserRequest, security_pb2.SecurityChanged)
SET_USER_SECRET = UnaryMethod("/dledger.v1.Security/SetUserSecret", security_pb2.SetUserSecretRequest, security_pb2.SecurityChanged)
LIST_USERS = UnaryMethod("/dledger.v1.Security/ListUsers", security_pb2.SecurityListRequest, security_pb2.SecurityUsers)
CHANGE_RULES = UnaryMethod("/dledger.v1.Security/ChangeRules", security_pb2.ChangeRulesRequest, security_pb2.SecurityChanged, LIST_BYTES)
LIST_RULES = UnaryMethod("/dledger.v1.Security/ListRules", security_pb2.SecurityListRequest, security_pb2.SecurityRules)
CHECK_ACCESS = UnaryMethod("/dledger.v1.Security/CheckAccess", security_pb2.CheckAccessRequest, security_pb2.CheckAccessReply)
WATCH_SECURITY = UnaryMethod("/dledger.v1.Security/WatchSecurity", security_pb2.WatchSecurityRequest, security_pb2.SecurityCopy)
AUDIT_TAIL = UnaryMethod("/dledger.v1.Security/AuditTail", security_pb2.AuditTailRequest, security_pb2.AuditTailReply)

# Between replicas: services Raft and Copy

RAFT_LINK = StreamMethod("/dledger.v1.Raft/Link", raft_pb2.RaftMessage, raft_pb2.LinkHello, LARGE_BYTES)
FETCH_ENTRY = UnaryMethod("/dledger.v1.Raft/FetchEntry", raft_pb2.EntryRequest, raft_pb2.CopyChunk)
COPY_PLAN = UnaryMethod("/dledger.v1.Copy/Plan", copy_pb2.CopyPlanRequest, copy_pb2.CopyPlan)
COPY_LOG = StreamMethod("/dledger.v1.Copy/Log", copy_pb2.CopyLogRequest, copy_pb2.CopyPiece)
COPY_STATE = UnaryMethod("/dledger.v1.Copy/State", copy_pb2.CopyStateRequest, copy_pb2.CopyPiece)

# The same for backups: service Backup

BACKUP_PLAN = UnaryMethod("/dledger.v1.Backup/Plan", copy_pb2.CopyPlanRequest, copy_pb2.CopyPlan)
BACKUP_LOG = StreamMethod("/dledger.v1.Backup/Log", copy_pb2.CopyLogRequest, copy_pb2.CopyPiece)
BACKUP_STATE = UnaryMethod("/dledger.v1.Backup/State", copy_pb2.CopyStateRequest, copy_pb2.CopyPiece)
BACKUP_END = UnaryMethod("/dledger.v1.Backup/End", copy_pb2.CopyEndRequest, copy_pb2.CopyEnded)

METHODS = {each.path: each for each in list(globals().values()) if isinstance(each, UnaryMethod | StreamMethod)}


def request_limit(path: str) -> int:
    """The most bytes that one message of a caller of ``path`` may have."""
    method = METHODS.get(path)
    if method is not None:
        return method.max_request_bytes
    return SMALL_BYTES if path.startswith(PACKAGE) else LARGE_BYTES


def is_raft(path: str) -> bool:
    """Whether replicas call ``path`` to stay a group: a server that is full keeps room for these."""
    return path.startswith(PACKAGE + "Raft/")
