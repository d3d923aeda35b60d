"""What every service of a node shares: store, replicated log, role and settings.

Owns the answer to "may this request be served here", and the way a command goes through the log.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from broker.config.cluster_file import NodeSettings
from broker.leadership.role_manager import RoleManager
from broker.security.access import AccessControl
from dledger.core.types import Role
from dledger.node import RaftNode
from dledger.runtime.env import Environment
from dledger_wire.errors import NotLeaderError, NotReadyError, OutcomeUnknownError
from store.commands.command import Command
from store.store import MessageStore

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class WantedReplicas:
    """The mirroring policy of a replica group; ``replace_after_ms`` 0: a member that is away is never replaced."""

    voters: int
    learners: int
    replace_after_ms: int


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """Passed to each service's constructor."""

    settings: NodeSettings
    env: Environment
    store: MessageStore
    raft: RaftNode
    roles: RoleManager
    access: AccessControl = AccessControl(None)  # noqa: RUF009 - it has no state of its own

    def require_master(self) -> int:
        """The term in which this node is master; NotLeaderError with the leader's address, or NotReadyError, otherwise."""
        if self.roles.master_term:
            return self.roles.master_term
        self.require_leader()
        raise NotReadyError(f"{self.settings.node.id} leads, but its master services have not started yet ({self.roles.state.value})")

    def require_leader(self) -> None:
        """NotLeaderError with the leader's address unless this node leads, master or not yet."""
        if self.raft.role is Role.LEADER:
            return
        own, leader = self.settings.node.id, self.raft.leader
        if leader is None or leader == own:
            raise NotLeaderError(f"{own} is not the master and knows no leader", leader_address="", leader_id="")
        address = self.raft.address_of(leader)
        raise NotLeaderError(f"{own} is not the master; {leader} at {address} is", leader_address=address, leader_id=leader)

    def wanted_replicas(self) -> WantedReplicas:
        """How many replicas the group is to have: as it was set for the group, or else as this node's cluster file says."""
        now, cluster, group = self.store.replica_group.settings, self.settings.cluster, self.settings.group
        return WantedReplicas(
            now.voters or group.wanted_voters,
            group.learners if now.learners is None else now.learners,
            cluster.replace_after_ms(group) if now.replace_after_ms is None else now.replace_after_ms,
        )

    async def command(self, command: Command[ResultT], timeout_s: float) -> ResultT:
        """Send a command through the log and return what it did; its own refusal is raised as the typed error it is."""
        self.require_master()
        prepared = self.store.command(command)
        proposal = self.raft.propose(prepared)
        try:
            async with asyncio.timeout(timeout_s):
                await proposal
        except TimeoutError:
            raise OutcomeUnknownError(f"{command.KIND} was not committed within {timeout_s:g} s; it may still be") from None
        return prepared.result()
