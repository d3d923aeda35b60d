"""A name server that is a process of its own: the table, its service on one address, and the quorum of name servers.

Owns the order of starting and stopping.  Takes clock, disk and network from its environment, so that the same name server runs in the
simulator.  It keeps no file: what it knows comes back from the nodes within one interval of registration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from broker.api.health import HealthService
from broker.api.log_tail import LogTailService
from broker.api.reflection import ReflectedServer
from broker.config.name_servers import NameServerSettings
from broker.nameserver.gossip import Gossip
from broker.nameserver.quorum import Quorum
from broker.process.log_ring import LogRing
from broker.routes.directory import metadata_reply
from broker.routes.name_service import NameService, ServicePlace
from broker.routes.removed_groups import RemovedGroups
from broker.routes.route_table import RouteTable
from broker.security.audit_service import AuditService
from broker.security.setup import NO_SECURITY, ProcessSecurity
from broker.security.user_watch import Replica, SecurityWatch, home_of
from broker.support.measures import MeasuredServer, ServiceMeasures
from broker.support.process_stats import ProcessStats
from dledger.runtime.env import Environment
from dledger_wire._pb import broker_pb2, routes_pb2
from dledger_wire.errors import NotReadyError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.security import principal
from dledger_wire.status import REMOVED
from dledger_wire.tasks import BackgroundTasks
from store.commands.security import Action
from store.state.security import SecurityState

EXPIRE_CHECK_S = 1.0
STOP_GRACE_S = 0.5

_logger = logging.getLogger(__name__)


class NameServerNode:
    """One name server: ``open`` it once, ``stop`` it once."""

    def __init__(
        self,
        settings: NameServerSettings,
        env: Environment,
        quorum: Quorum,
        *,
        process: Callable[[], ProcessStats] = ProcessStats,
        security: ProcessSecurity = NO_SECURITY,
    ) -> None:
        self.log_ring: LogRing | None = None  # of the process, where it has one
        self._security = security
        self.settings = settings
        self._env = env
        self._quorum = quorum
        self._process = process
        cluster = settings.cluster
        service = cluster.name_service
        self.table = RouteTable([group.name for group in cluster.groups], expire_after_ms=service.expireAfter)
        size, own_id = cluster.store.maxMessageSize, settings.server.id
        place = ServicePlace(cluster.cluster, cluster.registration_addresses, size, own_id, configured=cluster.node_ids())
        self.service = NameService(self.table, place, env.clock, process=process)
        self.service.servers = self._rows
        self._gossip = Gossip(settings.server.id, self.service, quorum, env.clock, service.registerInterval)
        self._users = SecurityWatch(env.network, self._first_group)
        self._users.on_change(security.users_changed)
        if security.admission is not None:
            security.admission.is_current = lambda: self._users.is_current
        self._failed: asyncio.Future[BaseException] | None = None
        self._tasks = BackgroundTasks(settings.server.id, self.fail)
        self._removed_groups = RemovedGroups(env.disk, cluster.cluster)
        self._server: Server | None = None
        self.measures = ServiceMeasures(env.stopwatch)
        self.access = security.access(self.users)
        self.certificate = security.certificate_watch(env.clock)

    @property
    def is_open(self) -> bool:
        """Whether it answers."""
        return self._server is not None

    @property
    def failed(self) -> asyncio.Future[BaseException]:
        """Resolves with the reason when the name server stopped working by itself."""
        if self._failed is None:
            raise NotReadyError("the name server is not open yet")
        return self._failed

    async def open(self) -> None:
        """Listen and take part.  Raises what is wrong; then everything is stopped again."""
        self._failed = asyncio.get_running_loop().create_future()
        try:
            access = self.access
            await self._removed_groups.open(self._tasks)
            self._removed_groups.keep(self.table)
            self.service.sees = lambda caller, topic: access.may_topic(caller, Action.DESCRIBE, topic)
            server = ReflectedServer(
                self._security.guarded(MeasuredServer(self._env.network.serve(self.settings.server.listened), self.measures), access)
            )
            self.service.register(server)
            methods.METADATA.serve(server, self._metadata)
            if self._security.audit is not None:
                AuditService(self._security.audit).register(server)
            LogTailService(self.log_ring, "", self.settings.server.id).register(server)
            HealthService(lambda name: not self.failed.done() if name == "" else None).register(server)
            await server.start()
            self._server = server
            await self._quorum.start(self._gossip.deliver)
            self._tasks.spawn(self._gossip.run(), "gossip")
            self._tasks.spawn(self._expire(), "expiry")
            self._tasks.spawn(self.certificate.run(), "watch the certificate")
            self._tasks.spawn(self._security.sum_up(), "sum up refusals")
            if self._security.has_users:
                self._tasks.spawn(self._users.run(), "watch users")
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End every answer that waits, and listen no more.  Idempotent."""
        await self._tasks.stop()
        await self._removed_groups.close()
        self.service.stop()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(STOP_GRACE_S)
        await self._quorum.stop()
        await self._security.close()

    def users(self) -> SecurityState:
        """Users and rules as the first replica group reported them last; no users before that."""
        return self._users.newest()

    def known_users(self) -> SecurityState | None:
        """As ``users``; None before it has reported any."""
        return self._users.newest() if self._users.is_known else None

    def _first_group(self) -> list[Replica]:
        """Of the group where users are changed: the members that are known, and the nodes that the cluster file names."""
        groups = self.settings.cluster.groups
        removed = {each.name for each in groups if (known := self.table.group(each.name)) is not None and known.state == REMOVED}
        name = home_of((each.name for each in groups if each.name not in removed), groups[0].name)
        first = next(each for each in groups if each.name == name)
        found = self.table.group(name)
        members = [(member.id, member.address) for member in found.members] if found is not None else []
        named = dict.fromkeys([*members, *((node.id, node.address) for node in first.nodes)])
        return [(principal.node(self.settings.cluster.cluster, first.name, node_id), address) for node_id, address in named]

    @property
    def quorum(self) -> Quorum:
        """The channel between name servers."""
        return self._quorum

    def fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_CHECK_S)
            self.service.expire()

    async def _metadata(self, request: broker_pb2.MetadataRequest, caller: CallContext) -> broker_pb2.MetadataResponse:
        groups = self.settings.cluster.groups
        reply = metadata_reply(self.table, request, lambda topic: self.service.sees(caller.principal, topic), groups)
        reply.cluster = self.settings.cluster.cluster
        reply.max_message_bytes = self.settings.cluster.store.maxMessageSize
        return reply

    def _rows(self) -> list[routes_pb2.NameServerRow]:
        """All name servers as this one sees them."""
        state, own = self._quorum.state(), self.settings.server.id
        rows = []
        for server in self.settings.cluster.name_server_processes:
            row = routes_pb2.NameServerRow(id=server.id, address=server.address, reachable=server.id in state.reachable)
            if server.id == own:
                row.reachable, row.role, row.quorum, row.applied = True, state.role, state.has_majority, state.applied
                row.version = self._process().version
            rows.append(row)
        return rows
