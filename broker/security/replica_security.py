"""Security of one replica: users and rules as it knows them, what callers may do by these, and the gates in front of its services.

Owns which users and rules count.  They are changed in one replica group of the cluster, whose replicas have them in their log; replicas of
other groups watch that group, and have a copy in theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from google.protobuf.message import Message

from broker.config.cluster_file import NodeSettings
from broker.context import ServiceContext
from broker.routes.known_groups import KnownGroups
from broker.security.access import AccessControl
from broker.security.audit_service import AuditService
from broker.security.audited import AuditGate, Inside
from broker.security.gate import AccessGate
from broker.security.replicas import OtherMembers, ReplicaCheck
from broker.security.setup import ProcessSecurity
from broker.security.user_service import SecurityService
from broker.security.user_watch import Replica, SecurityCopies, SecurityWatch, home_of
from dledger.core.causes import Cause
from dledger.node import RaftNode
from dledger.runtime.env import Environment
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.security import principal
from dledger_wire.tasks import BackgroundTasks
from store.commands.quotas import Limit, Subject
from store.state.security import SecurityState
from store.store import MessageStore

APPLIED_SOON = 1_000  # entries: a node at work is always some behind what is committed


class ReplicaSecurity:
    """Of one node: ``open`` it when the replica takes part, ``start`` it when its services do."""

    def __init__(self, process: ProcessSecurity, settings: NodeSettings, env: Environment, store: MessageStore) -> None:
        self._process, self._settings, self._env, self._store = process, settings, env, store
        self.certificate = process.certificate_watch(env.clock)
        self.access = AccessControl(None)
        self._raft: RaftNode | None = None
        self._watch: SecurityWatch | None = None  # of a cluster with users
        self._is_home: Callable[[], bool] = lambda: True  # whether users are changed in the own replica group, so that none is watched
        self._replicas: ReplicaCheck | None = None
        if process.admission is not None:
            process.admission.is_current = self._is_current
            process.admission.most_connections = lambda name: store.quotas.limit_for(Subject.USER, name, Limit.CONNECTIONS)

    def open(self, raft: RaftNode) -> None:
        """From now on ``access`` decides by the users and rules of this replica."""
        self._raft = raft
        self.access = self._process.access(self.users)
        if self._process.audit is not None:
            self._process.audit.position = lambda: (raft.term, self._store.applied_index)
        self._store.security.on_change(self._changed)
        own = self._settings.node.id

        def is_replica(node_id: str) -> bool:
            return node_id in raft.membership or node_id in raft.committed_members()[1]

        def others() -> list[str]:
            return [address for node in raft.membership.members if node != own and (address := raft.address_of(node))]

        group = self._settings.group.name
        self._replicas = ReplicaCheck(group, is_replica, OtherMembers(self._env.network, group, others).name)

    def start(self, tasks: BackgroundTasks) -> None:
        """Watch users, the certificate and what is refused."""
        if self._watch is not None:
            tasks.spawn(self._watch.run(), "watch users")
        raft = self._raft
        if raft is not None:
            self.certificate.expired = lambda why: raft.yield_lead(Cause.CERTIFICATE, why)
        tasks.spawn(self.certificate.run(), "watch the certificate")
        tasks.spawn(self._process.sum_up(), "sum up refusals")

    async def close(self) -> None:
        """Everything of the audit log is written when this returns."""
        await self._process.close()

    # What it knows

    def users(self) -> SecurityState:
        """Users and rules as this node knows them now."""
        return self._store.security if self._watch is None else self._watch.newest()

    def known_users(self) -> SecurityState | None:
        """As ``users``; None while this node knows of none, and cannot say that there are none."""
        state = self.users()
        known = self._has_caught_up() if self._watch is None or self._is_home() else self._watch.is_known
        return state if state.version or known else None

    def _is_current(self) -> bool:
        if self._watch is not None and self._watch.is_known and not self._is_home():
            return self._watch.is_current
        raft = self._raft
        return raft is not None and raft.leader is not None and raft.commit_index - self._store.applied_index < APPLIED_SOON

    def _has_caught_up(self) -> bool:
        raft = self._raft
        return raft is not None and raft.leader is not None and 0 < raft.commit_index <= self._store.applied_index

    def _changed(self) -> None:
        """What was open for users that lost it ends."""
        self._process.users_changed()
        self.access.users_changed()

    # What it serves

    def services(
        self, context: ServiceContext, groups: KnownGroups
    ) -> Sequence[AuditService | SecurityService | WithoutAudit | WithoutUsers]:
        """Users are changed in the first replica group; the other groups watch it.

        One that was put first in the cluster file when there were users already takes them from the others.
        """
        audit = AuditService(self._process.audit) if self._process.audit is not None else WithoutAudit()
        if not self._process.has_users:
            return audit, WithoutUsers()
        cluster, own, state = self._settings.cluster, self._settings.group.name, self._store.security

        def home() -> str:
            return home_of(groups, cluster.groups[0].name)

        def watched() -> list[Replica]:
            first = home()
            sources = [first] if first != own else [name for name in groups if name != own and not state.version]
            return [(principal.node(cluster.cluster, name, node.id), node.address) for name in sources for node in groups.members_of(name)]

        self._is_home = lambda: home() == own
        self._watch = SecurityWatch(self._env.network, watched, state)
        self._watch.on_change(self._changed)
        context.roles.register(SecurityCopies(context, self._watch))
        return audit, SecurityService(context, self._process.administrators, home, lambda: self.users().version)

    def guarded(self, server: Server) -> Server:
        """The server behind the gates, where there are any."""
        if self._process.admission is not None:
            server = AccessGate(server, self.access, self._replicas)
        if self._process.audit is not None:
            server = AuditGate(server, self._process.audit, Inside(self._store, self.users, self._members))
        return server

    def _members(self) -> dict[str, object]:
        raft = self._raft
        if raft is None:
            return {}
        return {"voters": sorted(raft.membership.voters), "learners": sorted(raft.membership.learners), "leader": raft.leader or ""}


class WithoutUsers:
    """Of a node of a cluster without users."""

    def register(self, server: Server) -> None:
        users = (methods.PUT_USER, methods.DELETE_USER, methods.SET_USER_SECRET, methods.LIST_USERS)
        for method in (*users, methods.CHANGE_RULES, methods.LIST_RULES, methods.CHECK_ACCESS):
            method.serve(server, self._refuse)

    async def _refuse(self, _request: Message, _caller: CallContext) -> NoReturn:
        raise DledgerError("this cluster has no users and rules: every caller may do everything (security.users of the cluster file)")


class WithoutAudit:
    """Of a process that writes no audit log."""

    def register(self, server: Server) -> None:
        methods.AUDIT_TAIL.serve(server, self._refuse)

    async def _refuse(self, _request: Message, _caller: CallContext) -> NoReturn:
        raise DledgerError("no audit log is written (block security of the cluster file)")
