"""Everything that RocketMQ's gRPC clients are served with, over the same services as its other clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.node import BrokerNode
from broker.remoting.checks import Checks
from broker.remoting.leader import Leader
from broker.remoting.routes import Routes
from broker.remoting.send import Senders
from broker.rocketmq_grpc._pb import service_pb2
from broker.rocketmq_grpc.acks import GrpcAcks
from broker.rocketmq_grpc.leases import Leases
from broker.rocketmq_grpc.receives import GrpcReceives
from broker.rocketmq_grpc.routes import GrpcRoutes
from broker.rocketmq_grpc.sends import GrpcSends
from broker.rocketmq_grpc.service import MessagingService
from broker.rocketmq_grpc.sessions import Sessions
from broker.rocketmq_grpc.transactions import GrpcTransactions
from broker.rocketmq_grpc.users import GrpcUsers
from dledger_wire.rpc.transport import Server


class Work(Protocol):
    async def run(self) -> None: ...


def serve(server: Server, node: BrokerNode, leader: Leader, routes: Routes, senders: Senders, users: GrpcUsers | None) -> Sequence[Work]:
    """Register it; what is returned is to be run while it is served.  ``users``: of a cluster that has users."""
    service, leases = MessagingService(server, users), Leases(leader)
    sessions = Sessions(node, leases)
    receives, acks = GrpcReceives(node, leader, leases), GrpcAcks(leader, leases)
    found = GrpcRoutes(routes, node.security.access, only_leaders=users is not None)
    sends, transactions = GrpcSends(node, leader, senders, sessions), GrpcTransactions(node, leader, sessions)
    pb = service_pb2
    service.unary("QueryRoute", pb.QueryRouteRequest, pb.QueryRouteResponse, found.query_route)
    service.unary("QueryAssignment", pb.QueryAssignmentRequest, pb.QueryAssignmentResponse, found.query_assignment)
    service.unary("SendMessage", pb.SendMessageRequest, pb.SendMessageResponse, sends.send, led=True)
    service.unary("RecallMessage", pb.RecallMessageRequest, pb.RecallMessageResponse, sends.recall, led=True)
    service.unary("EndTransaction", pb.EndTransactionRequest, pb.EndTransactionResponse, transactions.end, led=True)
    service.answers("ReceiveMessage", pb.ReceiveMessageRequest, pb.ReceiveMessageResponse, receives.receive, receives.undo)
    service.unary("AckMessage", pb.AckMessageRequest, pb.AckMessageResponse, acks.ack, led=True)
    service.unary("ChangeInvisibleDuration", pb.ChangeInvisibleDurationRequest, pb.ChangeInvisibleDurationResponse, acks.change, led=True)
    service.unary(
        "ForwardMessageToDeadLetterQueue",
        pb.ForwardMessageToDeadLetterQueueRequest,
        pb.ForwardMessageToDeadLetterQueueResponse,
        acks.forward,
        led=True,
    )
    service.stream("Telemetry", pb.TelemetryCommand, sessions.telemetry)
    service.unary("Heartbeat", pb.HeartbeatRequest, pb.HeartbeatResponse, sessions.heartbeat)
    service.unary("NotifyClientTermination", pb.NotifyClientTerminationRequest, pb.NotifyClientTerminationResponse, sessions.terminate)
    service.refused("SyncLiteSubscription", pb.SyncLiteSubscriptionRequest, pb.SyncLiteSubscriptionResponse)
    return Checks(leader, f"grpc@{node.settings.node.id}", transactions), leases
