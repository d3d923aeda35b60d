"""What every service of a node shares: store, replicated log, role, rights and settings.

Owns the answer to "may this request be served here", the way a command goes through the log, and the interfaces of what runs the
services of a master (``Roles``) and of what decides about callers (``Access``).  The node hands in the implementations:
``leadership/role_manager.py`` and ``security/access.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeVar

from broker.config.cluster_file import NodeSettings
from broker.quotas.quotas import Quotas
from broker.support.measures import ServiceMeasures
from broker.support.memory_alarm import MemoryAlarm, blocked
from dledger.core.types import Role
from dledger.node import RaftNode
from dledger.runtime.env import Environment
from dledger_wire._pb import broker_pb2, types_pb2
from dledger_wire.errors import NotLeaderError, NotReadyError, OutcomeUnknownError, ReadOnlyError
from dledger_wire.security.principal import Principal
from dledger_wire.tasks import BackgroundTasks
from store.commands.command import Command
from store.commands.security import Action, Resource
from store.store import MessageStore

HAND_OVER_MS = 1_000

ResultT = TypeVar("ResultT")


class RoleState(Enum):
    REPLICA = "replica"
    CATCHING_UP = "catching up"
    WAITING = "waiting for the lease"
    STARTING = "starting services"
    MASTER = "master"
    STOPPING = "stopping services"


class MasterService(Protocol):
    """A service that runs on the master only.

    Its background work runs as ``tasks``, which are cancelled for it; ``stop`` is called after that, to release the rest.
    """

    name: str

    async def start(self, term: int, tasks: BackgroundTasks) -> None: ...
    async def stop(self) -> None: ...


class Roles(Protocol):
    """The role of this replica, and the services that run while it is master."""

    @property
    def state(self) -> RoleState: ...
    @property
    def master_term(self) -> int:
        """The term in which this node is master; 0 while it is not."""

    @property
    def services_term(self) -> int:
        """The term whose master services run here now; 0 when none may."""

    @property
    def steps(self) -> Sequence[str]:
        """The newest changes of role, for operators."""

    def register(self, service: MasterService) -> None:
        """Run ``service`` on the master only."""


class Access(Protocol):
    """Decides what a caller may do.  ``require*`` raise PermissionDeniedError and record the refusal."""

    @property
    def refusals(self) -> Mapping[str, int]:
        """Refused requests since the start, by reason."""

    def may(self, principal: Principal, action: Action, resource: Resource, name: str) -> bool: ...
    def may_topic(self, principal: Principal, action: Action, topic: str) -> bool: ...
    def require(self, principal: Principal, action: Action, resource: Resource, name: str) -> None: ...
    def require_topic(self, principal: Principal, action: Action, topic: str) -> None: ...
    def require_producer(self, principal: Principal, name: str, owner: str) -> None:
        """``principal`` may send under a producer id with this ``name`` or, without one, of this ``owner``."""

    def seen_groups(self, principal: Principal, groups: Iterable[str]) -> list[str]:
        """Those groups that ``principal`` may know of."""

    def on_change(self, listener: Callable[[], object]) -> Callable[[], object]:
        """Call ``listener`` after every change of users and rules, until what is returned is called."""


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
    roles: Roles
    access: Access
    quotas: Quotas
    measures: ServiceMeasures = field(default_factory=ServiceMeasures)
    memory_alarm: MemoryAlarm = field(default_factory=MemoryAlarm)

    def require_master(self) -> int:
        """The term in which this node is master; NotLeaderError with the leader's address, or NotReadyError, otherwise."""
        if self.roles.master_term:
            return self.roles.master_term
        self.require_leader()
        raise NotReadyError(f"{self.settings.node.id} leads, but its master services have not started yet ({self.roles.state.value})")

    @property
    def is_out_of_disk(self) -> bool:
        """Whether the disk is full and that stays so: a leader whose disk fills hands leadership over, and what waits goes on there; one
        that leads still after ``HAND_OVER_MS`` has no node to hand it to."""
        return self.raft.disk_full_ms > HAND_OVER_MS

    def require_room(self, *, in_memory: bool = True) -> None:
        """ReadOnlyError while an alarm keeps new messages out: of this node's memory, which new producers may pass, or of its disk.

        Senders get the reason in place of a timeout.
        """
        if in_memory and self.memory_alarm.is_set:
            raise blocked(self.memory_alarm.text, "memory", self.settings.node.id)
        try:
            self.store.require_disk_room()
        except ReadOnlyError as error:
            raise blocked(error.message.partition("; ")[0], "disk", self.settings.node.id) from None
        if self.is_out_of_disk:
            raise blocked("the leader's disk is full", "disk", self.settings.node.id)

    def require_leader(self) -> None:
        """NotLeaderError with the leader's address unless this node leads, master or not yet."""
        if self.raft.role is Role.LEADER:
            return
        own, leader = self.settings.node.id, self.raft.leader
        if leader is None or leader == own:
            raise NotLeaderError(f"{own} is not the master and knows no leader", leader_address="", leader_id="")
        address = self.raft.address_of(leader)
        raise NotLeaderError(f"{own} is not the master; {leader} at {address} is", leader_address=address, leader_id=leader)

    def require_reader(self, *, any_replica: bool) -> None:
        """NotLeaderError or NotReadyError unless this node is master, or the caller also takes what a follower has applied."""
        if not any_replica:
            self.require_master()

    def answering_replica(self) -> types_pb2.AnsweringReplica:
        """The answering node, and how old its state may be: callers that read at followers decide whether that will do."""
        found = types_pb2.AnsweringReplica(node=self.settings.node.id)
        self.set_age(found)
        return found

    def set_age(self, answer: types_pb2.AnsweringReplica | broker_pb2.FetchResponse) -> None:
        """Set in ``answer`` whether this replica is master, and how old its state may be."""
        answer.master = bool(self.roles.master_term)
        answer.lag_entries, silent_ms = self.raft.behind()
        if silent_ms is not None:
            answer.leader_silent_ms = silent_ms

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
