"""What every service of a node shares: the store, the log's node, the role, the settings.

Owns the one answer to "may this request be served here": only by the master, or by any replica.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.config import NodeSettings
from broker.role_change import RoleChanges
from dledger.core.types import Role
from dledger.env import Environment
from dledger.node import RaftNode
from dledger_wire.errors import NotLeaderError, NotReadyError
from store.store import MessageStore


@dataclass(frozen=True, slots=True)
class ServiceFace:
    """Handed to each service when it is made."""

    settings: NodeSettings
    env: Environment
    store: MessageStore
    raft: RaftNode
    roles: RoleChanges

    def require_master(self) -> int:
        """The term in which this node is master; NotLeaderError with the leader's address, or NotReadyError, otherwise."""
        if self.roles.master_term:
            return self.roles.master_term
        if self.raft.role is Role.LEADER:
            raise NotReadyError(f"{self.settings.node.id} leads but its master services are not on yet ({self.roles.state.value})")
        leader = self.raft.leader
        if leader is None:
            raise NotLeaderError(f"{self.settings.node.id} is not the master and knows no leader", leader_address="", leader_id="")
        address = self.address_of(leader)
        raise NotLeaderError(
            f"{self.settings.node.id} is not the master; {leader} at {address} is", leader_address=address, leader_id=leader
        )

    def address_of(self, node_id: str) -> str:
        return self.settings.peers.get(node_id, "")
