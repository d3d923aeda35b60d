"""The Admin service: topics, node status, leadership, membership, segment checksums.

Owns what only an operator calls.  Every node answers for its own group; what changes the group goes through its master's log, and a
replica that is not the master answers NOT_LEADER with the master's address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dledger.core.types import Role
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError, NotLeaderError

from broker.services.decode import decoded
from broker.services.face import ServiceFace

if TYPE_CHECKING:
    from dledger_wire.rpc import CallContext, Server

TRANSFER_TIMEOUT_S = 5.0
CHANGE_TIMEOUT_S = 10.0
PREFIX = "/dledger.v1.Admin/"


class AdminService:
    """Operators' calls."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face

    def register(self, server: Server) -> None:
        server.add_unary(PREFIX + "CreateTopic", self.create_topic)
        server.add_unary(PREFIX + "UpdateTopic", self.update_topic)
        server.add_unary(PREFIX + "DeleteTopic", self.delete_topic)
        server.add_unary(PREFIX + "ListTopics", self.list_topics)
        server.add_unary(PREFIX + "NodeStatus", self.node_status)
        server.add_unary(PREFIX + "TransferLeader", self.transfer_leader)
        server.add_unary(PREFIX + "ChangeMember", self.change_member)
        server.add_unary(PREFIX + "SegmentChecksums", self.segment_checksums)
