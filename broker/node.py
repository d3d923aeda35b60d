"""One node: store, replicated log, role changes and services, wired together on the addresses it serves.

Owns the order of starting and stopping.  Takes clock,
random, disk and network from its environment, so that the same node runs in the simulator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from broker.api.connections import ConnectionsService
from broker.api.diagnostics import DiagnosticsService
from broker.api.fetch import FetchService
from broker.api.health import HealthService
from broker.api.log_segments import FoundDamage, LogSegmentService
from broker.api.log_tail import LogTailService
from broker.api.metadata import MetadataService
from broker.api.node_status import NodeStatusService
from broker.api.produce import ProduceService
from broker.api.producer_ids import ProducerIdService
from broker.api.query import QueryService
from broker.api.queue_offsets import QueueOffsetsService
from broker.api.quota_copies import QuotaCopies
from broker.api.quotas import QuotaService
from broker.api.read_advice import ReadAdvice
from broker.api.reflection import ReflectedServer
from broker.api.topics import TopicService
from broker.config.alarm_limits import disk_limit_of, with_limits
from broker.config.cluster_file import ClusterConfig, NodeSettings
from broker.config.layer_settings import raft_settings_of, store_settings_of
from broker.config.memory_shares import MemoryShares, watermark
from broker.context import ServiceContext
from broker.delivery.delay_levels import DelayLevelService
from broker.delivery.recalls import RecallService
from broker.delivery.timers import TimerService
from broker.groups.dead_letters import DeadLetterService
from broker.groups.group_offsets import GroupOffsetsService
from broker.groups.group_settings import GroupSettingsService
from broker.groups.pop import PopService
from broker.groups.send_back import SendBackService
from broker.groups.sessions import SessionService
from broker.leadership.leader_history import LeaderHistory
from broker.leadership.leader_spread import LeaderSpread
from broker.leadership.preferred_leader import PreferredLeader
from broker.leadership.role_manager import RoleManager
from broker.leadership.step_down import StepDown
from broker.leadership.transfer import TransferService
from broker.membership.feature_level import FeatureLevelService
from broker.membership.member_changes import MemberService
from broker.membership.replacement import SpareReplacement
from broker.membership.replica_group import ReplicaGroupService
from broker.membership.spare_binding import BoundService
from broker.process.folder_formats import refuse_newer_files
from broker.process.foreign_files import describe_foreign, foreign_files
from broker.process.identity import FolderIdentity, open_identity
from broker.process.level_stamp import LevelStamp
from broker.process.log_ring import LogRing
from broker.quotas.quotas import Quotas, shares_of
from broker.routes.name_service import NameService, ServicePlace
from broker.routes.registrar import Registrar
from broker.routes.removed_groups import RemovedGroups
from broker.routes.route_table import RouteTable
from broker.security.decommission_gate import DecommissionGate
from broker.security.replica_security import ReplicaSecurity
from broker.security.setup import NO_SECURITY, ProcessSecurity
from broker.support.measures import MeasuredServer, ServiceMeasures
from broker.support.memory_alarm import MemoryAlarm
from broker.support.process_stats import ProcessStats
from broker.transactions.api import TransactionService
from dledger.clock.group_time import GroupTime
from dledger.core.effects import RoleChanged
from dledger.core.types import NodeId
from dledger.log.config import LogConfig
from dledger.membership.feature_levels import FeatureLevels
from dledger.node import NodeIdentity, RaftNode
from dledger.runtime.env import Environment
from dledger_wire.errors import NotReadyError
from dledger_wire.rpc.local import LocalServer
from dledger_wire.rpc.transport import Server
from dledger_wire.status import REMOVED
from dledger_wire.tasks import BackgroundTasks
from dledger_wire.tcp.server import Accepted
from store.commands.security import Action
from store.durability.checkpoint import CHECKPOINT_PATH
from store.durability.persistence import ABORT_PATH
from store.durability.snapshots import CONFIG_FOLDER
from store.key_index.index_file import INDEX_FOLDER
from store.queues.queue_files import QUEUE_FOLDER
from store.settings import StoreSettings
from store.store import MessageStore

_logger = logging.getLogger(__name__)

TAIL_TIMEOUT_S = 5.0
STOP_GRACE_S = 0.5
APPLIED_SOON = 1_000  # entries: a node at work is always some behind what is committed
# What of the data folder is derived from the log.
STATE_PATHS = (QUEUE_FOLDER, INDEX_FOLDER, CONFIG_FOLDER, CHECKPOINT_PATH, ABORT_PATH)


T = TypeVar("T")


class RpcService(Protocol):
    """A service that adds its methods to a server."""

    def register(self, server: Server) -> None: ...


class BrokerNode:
    """One replica: ``open`` it once, ``stop`` it once.  Implements ``broker.leadership.role_manager.RoleTarget``.

    Until ``open`` has opened the data folder only ``settings``, ``store`` and ``roles`` can be used.
    """

    def __init__(
        self,
        settings: NodeSettings,
        env: Environment,
        *,
        process: Callable[[], ProcessStats] = ProcessStats,
        utc_offset_ms: Callable[[], int] = lambda: 0,
        log_config: LogConfig | None = None,
        store_settings: StoreSettings | None = None,
        security: ProcessSecurity = NO_SECURITY,
    ) -> None:
        self.settings = settings
        self.log_ring: LogRing | None = None  # of the process, where it has one
        self.connections: Callable[[], Sequence[Accepted]] = lambda: ()  # of the process, where they are known
        self.added_name_servers: Callable[[], Awaitable[Sequence[str]]] | None = None  # since its start, where that is known
        self._env = env
        self._time = GroupTime(env.clock, settings.cluster.raft.maxClockSkewMs)
        # What stores and serves lives by the group's time; the log below by this machine's.
        self._group_env = replace(env, clock=self._time)
        self._process = process
        self._utc_offset_ms = utc_offset_ms
        self._log_config = log_config
        self._servers: list[Server] = []
        self.local = LocalServer()  # the services, for what runs beside them in this process
        self.measures = ServiceMeasures(env.stopwatch)
        node_id = settings.node.id
        lease_ms = settings.cluster.raft.election_timeout_ms  # an unconfirmed leader steps down after that time, too
        self.roles = RoleManager(env.clock, self, lambda step: _logger.info("%s: %s", node_id, step), lease_ms=lease_ms)
        self.store = MessageStore(
            store_settings or store_settings_of(settings),
            self._group_env,
            role_changed=self._role_changed,
            failed=self.fail,
        )
        self.leader_history = LeaderHistory(node_id, env.clock, env.disk, lambda: self.store.recovery.clean, self._disk_held_s)
        self._removed_groups = RemovedGroups(env.disk, settings.cluster.cluster)
        self.security = ReplicaSecurity(security, settings, env, self.store)
        self.damage = FoundDamage()
        self.memory_alarm = MemoryAlarm()
        self._stopping = False
        self._context: ServiceContext | None = None
        self._failed: asyncio.Future[BaseException] | None = None
        self._stamp: LevelStamp | None = None
        self._raft: RaftNode | None = None
        self._registrar: Registrar | None = None
        self._names: NameService | None = None
        self._tasks = BackgroundTasks(node_id, self.fail)
        self.looks = BackgroundTasks(node_id)  # at figures of its own, while it is open: a crash of one does not stop the node

    # Life

    @property
    def is_open(self) -> bool:
        """Whether the data folder is open and the replica takes part in its group, until the node is stopped."""
        return self._raft is not None and not self._stopping

    @property
    def raft(self) -> RaftNode:
        return _opened(self._raft)

    @property
    def context(self) -> ServiceContext:
        """What its services share."""
        return _opened(self._context)

    @property
    def identity(self) -> FolderIdentity:
        return _opened(self._stamp).identity

    @property
    def name_service(self) -> NameService:
        """This node's own answers to requests for routes."""
        return _opened(self._names)

    @property
    def failed(self) -> asyncio.Future[BaseException]:
        """Resolves with the reason when the node stopped working by itself."""
        return _opened(self._failed)

    async def open(self) -> None:
        """Open the data folder, recover, listen and take part.  Raises what is wrong; then everything is stopped again."""
        self._failed = asyncio.get_running_loop().create_future()
        settings, env = self.settings, self._env
        cluster, group = settings.cluster.cluster, settings.group.name
        await refuse_newer_files(env.disk)
        build = self.store.feature_level.build
        identity = await open_identity(env, cluster, group, settings.node.id, build)
        self._stamp = LevelStamp(env.disk, identity, self.store.feature_level, self._tasks)
        foreign = await foreign_files(env.disk, thorough=False)
        if foreign:
            _logger.warning("%s", describe_foreign(env.disk, foreign), extra={"event": "foreign_files"})
        node = settings.node
        process = self._process()
        levels = FeatureLevels(build, process.version, lambda: self.store.feature_level.now)
        raft_identity = NodeIdentity(cluster, group, NodeId(node.id), identity.store_id, node.address, levels)
        shares = MemoryShares.of(settings.cluster, process.memory_bytes)
        self.memory_alarm = MemoryAlarm(shares.mark)
        self.store.disk_limit = lambda: disk_limit_of(self._with_limits(), process.memory_bytes)
        raft_settings = shares.bound(raft_settings_of(settings, self._log_config), settings.cluster.raft)
        self.roles.start()
        await self.leader_history.open(self._tasks)
        if settings.runs_name_service:
            await self._removed_groups.open(self._tasks)
        try:
            self._raft = await RaftNode.open(
                raft_identity,
                raft_settings,
                env,
                self.store,
                log_opened=self.store.recover,
                state_paths=STATE_PATHS,
                time=self._time,
            )
            self._stamp.start()
            # Nothing is awaited between the end of ``RaftNode.open`` and here: services are registered before the first change of role.
            self.store.repair_with(self.raft.repair_damage, self.raft.bulk.take)
            self.store.expire_with(self.raft, self._utc_offset_ms, lambda: self._time.is_known)
            self.security.open(self.raft)
            context = self._context = self._context_of(self.raft)
            if process.anonymous_bytes:
                mark = partial(self._memory_mark, process.memory_bytes)
                self.looks.spawn(self.memory_alarm.watch(lambda: self._process().anonymous_bytes, mark), "look at memory")
            await self._listen(self._services(context))
        except BaseException:
            await self.stop(hand_over=False)
            raise
        self.raft.failed.add_done_callback(self._raft_failed)
        if self._registrar is not None:
            self._registrar.start()
        self.security.start(self._tasks)

    def _context_of(self, raft: RaftNode) -> ServiceContext:
        clock = self._env.clock
        return ServiceContext(
            self.settings,
            self._group_env,
            self.store,
            raft,
            self.roles,
            self.security.access,
            Quotas(self.store.quotas, lambda: clock.monotonic_ms() / 1000),
            self.measures,
            self.memory_alarm,
        )

    def _with_limits(self) -> ClusterConfig:
        return with_limits(self.settings.cluster, self.store.replica_group.settings.limits)

    def _memory_mark(self, memory_bytes: int) -> int:
        return watermark(self._with_limits().broker.memoryHighWatermark, memory_bytes)

    def _disk_held_s(self, within_s: float) -> float:
        return self._raft.measures.slowest_flush.held_loop_s(within_s) if self._raft is not None else 0.0

    def _services(self, context: ServiceContext) -> Sequence[RpcService]:
        """The services that clients call; those that run on the master only are registered with the role manager."""
        sessions, transactions = SessionService(context), TransactionService(context)
        timers, pop = TimerService(context), PopService(context)
        background = (DelayLevelService(context), timers, pop, PreferredLeader(context), StepDown(context))
        for service in (*background, sessions, transactions):
            self.roles.register(service)
        names = self._names = self._name_service()
        registrar = self._registrar = Registrar(context, self._env, self._process, names, self.fail, self.added_name_servers)
        context.quotas.shares = shares_of(self.store.topics, registrar.groups)
        self.roles.register(LeaderSpread(context, registrar.directory))
        self.roles.register(QuotaCopies(context, registrar.groups, self._env.network))
        self.roles.register(SpareReplacement(context, registrar, self._env.network))
        names.sees = lambda caller, topic: context.access.may_topic(caller, Action.DESCRIBE, topic)
        names.before_answer, names.name_servers = registrar.refresh, registrar.name_servers
        return (
            names,
            ProduceService(context),
            FetchService(context, ReadAdvice(context, self._process().memory_bytes), self.identity.store_id),
            MetadataService(context, registrar.groups),
            QueueOffsetsService(context),
            ProducerIdService(context),
            GroupOffsetsService(context, sessions.offsets_reset),
            sessions,
            transactions,
            SendBackService(context),
            pop,
            RecallService(context, timers.lock),
            DeadLetterService(context),
            QueryService(context),
            GroupSettingsService(context),
            TopicService(context, registrar.topics_registered),
            NodeStatusService(
                context, self._process, self.identity.store_id, self.security.certificate, self.damage, lambda: self.connections()
            ),
            QuotaService(context),
            TransferService(context),
            MemberService(context, registrar),
            DiagnosticsService(context, self._process, self.leader_history),
            ConnectionsService(context, lambda: self.connections()),
            LogTailService(self.log_ring, self.settings.group.name, self.settings.node.id),
            ReplicaGroupService(context),
            FeatureLevelService(context),
            LogSegmentService(context, self.damage),
            BoundService(self.settings),
            *self.security.services(context, registrar.groups),
            HealthService(self._serving),
        )

    def _name_service(self) -> NameService:
        """For all groups in the first group of a cluster without name servers, else for the node's own group."""
        cluster, everything = self.settings.cluster, self.settings.runs_name_service
        names = [group.name for group in cluster.groups] if everything else [self.settings.group.name]
        table = RouteTable(names, expire_after_ms=cluster.name_service.expireAfter)
        if everything:
            self._removed_groups.keep(table)
        size = cluster.store.maxMessageSize
        place = ServicePlace(cluster.cluster, (), size, is_name_server=everything, configured=cluster.node_ids())
        return NameService(table, place, self._env.clock, process=self._process)

    async def _listen(self, services: Sequence[RpcService]) -> None:
        """Serve the same on every address, and within the process."""
        for served_by in (self.local, *map(self._env.network.serve, self.settings.addresses)):
            served = self.security.guarded(MeasuredServer(served_by, self.measures))
            gate = DecommissionGate(served, lambda: self.store.replica_group.state == REMOVED, self.settings.group.name)
            server = ReflectedServer(gate)
            self.raft.register(server)
            for service in services:
                service.register(server)
            self._servers.append(server)
            await server.start()

    async def stop(self, *, hand_over: bool = True) -> None:
        """Stop in order: leadership goes to a caught-up follower, services end, everything derived becomes durable."""
        self._stopping = True
        if self._raft is not None:
            await self._raft.stop(hand_over=hand_over)
        await self.roles.stop()
        await self._tasks.stop()
        await self.looks.stop()
        await self.leader_history.close()
        await self._removed_groups.close()
        if self._registrar is not None:
            await self._registrar.stop()
        if self._names is not None:
            self._names.stop()
        for server in self._servers:
            await server.stop(STOP_GRACE_S)
        self._servers.clear()
        await self.security.close()
        await self.store.close()

    def fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    def _raft_failed(self, failed: asyncio.Future[BaseException]) -> None:
        if not failed.cancelled():
            self.fail(failed.result())

    # Role changes

    def _role_changed(self, event: RoleChanged) -> None:
        self.leader_history.role_changed(event)
        self.roles.role_changed(event)
        self._register_again()

    def _register_again(self) -> None:
        """What name servers know of this node's role is not true any more."""
        if self._registrar is not None:
            self._registrar.touch()

    async def wait_tail_applied(self, term: int) -> None:
        await self.raft.apply_all(TAIL_TIMEOUT_S)
        await self.raft.clocks.wait_for_time(self.store.applied.store_ms)

    async def confirm_leader(self) -> None:
        await self.raft.read_barrier(TAIL_TIMEOUT_S)

    def become_master(self, term: int) -> None:
        self.store.become_master(term)
        self._register_again()

    def resign(self) -> None:
        self.store.resign()
        self._register_again()

    # Health

    def _serving(self, service: str) -> bool | None:
        group = self.settings.group.name
        if service == "":
            return not self.failed.done()
        if service == f"dledger.raft.{group}":
            return self.raft.leader is not None
        if service == f"dledger.master.{group}":
            return bool(self.roles.master_term)
        return None


def _opened(part: T | None) -> T:
    if part is None:
        raise NotReadyError("the node is not open yet")
    return part
