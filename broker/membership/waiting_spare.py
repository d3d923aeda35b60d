"""A spare node while it belongs to no replica group: it registers, and waits for a group that takes it in.

Owns the first-come rule: the first group that asks has it, for good; every other one is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from broker.api.health import HealthService
from broker.api.log_tail import LogTailService
from broker.api.reflection import ReflectedServer
from broker.config.cluster_file import ClusterConfig
from broker.config.replicas import SpareConfig
from broker.config.values import split_address
from broker.membership.spare_binding import Binding, write_binding
from broker.process.log_ring import LogRing
from broker.security.audit_service import AuditService
from broker.security.setup import NO_SECURITY, ProcessSecurity
from broker.support.measures import MeasuredServer, ServiceMeasures
from broker.support.process_stats import ProcessStats
from dledger.runtime.env import Environment
from dledger_wire._pb import admin_pb2, routes_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotReadyError
from dledger_wire.names import is_node_name
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Channel, Server
from dledger_wire.tasks import BackgroundTasks
from store.state.security import SecurityState

CALL_TIMEOUT_S = 3.0
STOP_GRACE_S = 0.5
STATE = "spare: waits for a replica group"

_logger = logging.getLogger(__name__)


class WaitingSpare:
    """``open`` it once, ``stop`` it once; ``bound`` resolves when a replica group has taken it in."""

    def __init__(
        self,
        cluster: ClusterConfig,
        spare: SpareConfig,
        env: Environment,
        *,
        process: Callable[[], ProcessStats] = ProcessStats,
        security: ProcessSecurity = NO_SECURITY,
    ) -> None:
        self.log_ring: LogRing | None = None  # of the process, where it has one
        self._security = security
        self._cluster, self._spare, self._env, self._process = cluster, spare, env, process
        self._started_at_ms = env.clock.wall_ms()
        self.bound: asyncio.Future[Binding] | None = None
        self._binding: Binding | None = None
        self._taking = asyncio.Lock()
        self._failed: asyncio.Future[BaseException] | None = None
        self._tasks = BackgroundTasks(spare.id, self._fail)
        self._server: Server | None = None
        self._name_servers: set[str] = set()  # where it registers
        self._directory_version = 0
        self.measures = ServiceMeasures(env.stopwatch)
        self.access = security.access(SecurityState)
        self.certificate = security.certificate_watch(env.clock)

    @property
    def failed(self) -> asyncio.Future[BaseException]:
        """Resolves with the reason when it stopped working by itself."""
        if self._failed is None:
            raise NotReadyError("the node is not open yet")
        return self._failed

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._spare.addresses

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._failed, self.bound = loop.create_future(), loop.create_future()
        served = self._security.guarded(MeasuredServer(self._env.network.serve(self.addresses[0]), self.measures), self.access)
        server = ReflectedServer(served)
        methods.TAKE_SPARE.serve(server, self.take)
        methods.NODE_STATUS.serve(server, self._status)
        if self._security.audit is not None:
            AuditService(self._security.audit).register(server)
        LogTailService(self.log_ring, "", self._spare.id).register(server)
        HealthService(lambda name: not self.failed.done() if name == "" else None).register(server)
        await server.start()
        self._server = server
        self._register_with(self._cluster.registration_addresses)

    async def stop(self) -> None:
        """Idempotent."""
        await self._tasks.stop()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(STOP_GRACE_S)
        await self._security.close()

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    # A group takes it in

    async def take(self, request: admin_pb2.TakeSpareRequest, _caller: CallContext) -> admin_pb2.TakeSpareReply:
        """Belong to a replica group from now on; it is durable when the answer is sent."""
        if (request.cluster, request.node_id) != (self._cluster.cluster, self._spare.id):
            raise InvalidArgumentError(f"this is spare node {self._spare.id} of cluster {self._cluster.cluster}, not {request.node_id}")
        if not is_node_name(request.group) or not request.voters or not all(_is_voter(voter) for voter in request.voters):
            raise InvalidArgumentError("expected the name of a replica group and its voters with their addresses")
        async with self._taking:
            binding = Binding(request.group, tuple((voter.id, voter.address) for voter in request.voters))
            if self._binding is not None and self._binding.group != binding.group:
                raise InvalidArgumentError(f"spare node {self._spare.id} belongs to replica group {self._binding.group}")
            if self._binding is None:
                await write_binding(self._env.disk, binding)
                self._binding = binding
                _logger.info("%s belongs to replica group %s from now on", self._spare.id, binding.group)
            if self.bound is not None and not self.bound.done():
                self.bound.set_result(binding)
        return admin_pb2.TakeSpareReply(group=request.group)

    async def _status(self, _request: admin_pb2.Empty, _caller: CallContext) -> admin_pb2.NodeStatusReply:
        process = self._process()
        return admin_pb2.NodeStatusReply(
            cluster=self._cluster.cluster,
            id=self._spare.id,
            address=self._spare.address,
            role="spare",
            state=STATE,
            pid=process.pid,
            rss_bytes=process.rss_bytes,
            version=process.version,
            started_at_ms=self._started_at_ms,
        )

    # Name servers

    def _register_with(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            if address not in self._name_servers:
                self._name_servers.add(address)
                self._tasks.spawn(self._register_at(address), f"register at {address}")

    async def _learn(self, channel: Channel, version: int) -> None:
        """The nodes of the first group serve the names: those that it has now, whatever the cluster file says."""
        if version == self._directory_version or not self._cluster.nodes_serve_names:
            return
        reply = await methods.DIRECTORY.call(channel, routes_pb2.DirectoryRequest(), timeout_s=CALL_TIMEOUT_S)
        self._directory_version = reply.version
        first = self._cluster.groups[0].name
        self._register_with(node.address for group in reply.groups if group.name == first for node in group.nodes if node.address)

    async def _register_at(self, address: str) -> None:
        channel: Channel = self._env.network.connect(address)
        registration = routes_pb2.Registration(
            cluster=self._cluster.cluster,
            node_id=self._spare.id,
            address=self._spare.address,
            host=self._spare.host_label,
            rack=self._spare.rack,
            version=self._process().version,
            started_at_ms=self._started_at_ms,
            node_state=STATE,
        )
        try:
            while True:
                try:
                    registration.sequence += 1
                    reply = await methods.REGISTER.call(channel, registration, timeout_s=CALL_TIMEOUT_S)
                    await self._learn(channel, reply.directory_version)
                except DledgerError as error:
                    _logger.debug("registration at %s: %s", address, error.message)
                await asyncio.sleep(self._cluster.name_service.registerInterval / 1000)
        finally:
            await channel.close()


def _is_voter(voter: admin_pb2.SpareVoter) -> bool:
    try:
        split_address(voter.address)
    except ValueError:
        return False
    return is_node_name(voter.id)
