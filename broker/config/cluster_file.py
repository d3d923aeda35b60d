"""The cluster file: its settings as typed, checked models, and what one node takes from it.

Owns names, ranges and defaults.  Every mistake becomes ``file:line: setting: expected ..., got ...``, and all mistakes of a file are
reported at once.  Settings that exist in RocketMQ keep its names and units.  A default of the store, the log or Raft is taken from that
layer's own settings, so it stands once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Self

from broker.config.console import ConsoleConfig
from broker.config.metrics import MetricsConfig
from broker.config.model import ConfigModel, Mistakes, kind_of
from broker.config.name_servers import NameServerConfig, NameServerSettings, NameServiceConfig
from broker.config.replicas import ReplaceAfter, ReplicasConfig, ServerConfig, SpareConfig
from broker.config.rocketmq import RocketmqConfig, remoting_listens
from broker.config.rules import problems_between
from broker.config.security import SecurityConfig
from broker.config.values import (
    DAY_MS,
    HOUR_MS,
    MAX_NODES,
    Address,
    ListenAddress,
    Name,
    delay_levels,
    disk_limit,
    duration,
    hours_of_day,
    length,
    memory_mark,
    memory_ratio,
    number,
    size,
    split_address,
)
from broker.config.yaml_marks import MarkedYaml
from dledger.core.config import CoreConfig
from dledger.core.types import Membership
from dledger.log.config import LogConfig
from dledger.settings import RaftSettings
from dledger_wire.addresses import host_of
from dledger_wire.errors import ConfigError
from dledger_wire.store_layout import QUEUE_UNIT_SIZE
from store.settings import StoreSettings

DEFAULT_MESSAGE_DELAY_LEVEL = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_FILE_BYTES = 1 << 20  # reading YAML takes a second or two for that much

# The layers below, with their defaults.
_CORE, _LOG, _STORE = CoreConfig(), LogConfig(), StoreSettings()
_RAFT = RaftSettings(peers={}, membership=Membership((), ()))


def read_cluster_text(path: str) -> str:
    """The text of a cluster file, not checked any further.  ConfigError when it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the cluster file: {reason}") from error
    _check_length(text, path)
    return text


def _check_length(text: str, file: str) -> None:
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{file}: more than {MAX_FILE_BYTES} characters; expected a cluster file")


class NodeConfig(ServerConfig):
    """One replica: its id, the address it is reached at, the address the other replicas use when theirs is a network of its own, and
    where the node listens for either when that is elsewhere (a container, NAT).

    ``advertised_address`` beside ``address`` says the same the other way round: ``address`` is then where the node listens.
    """

    replica_address: Address | None = None
    replica_listen: ListenAddress | None = None
    rocketmq: ListenAddress | None = None
    # Not among the voters that a new group begins with: it waits to be added.  Of a group that exists its own configuration counts.
    spare: bool = False
    priority: Annotated[int, number(-1, 100)] = 0

    @classmethod
    def prepared(cls, given: object) -> object:
        if not isinstance(given, dict) or "advertised_address" not in given:
            return given
        if "listen" in given:
            raise ValueError("listen and advertised_address are mutually exclusive")
        rest = {key: value for key, value in given.items() if key != "advertised_address"}
        return rest | {"address": given["advertised_address"], "listen": given.get("address")}


class GroupConfig(ConfigModel):
    """One replica group."""

    name: Name
    nodes: Annotated[list[NodeConfig], length(1, MAX_NODES)]
    # How many of each the group is to have; `dledger cluster apply` takes a change over to a running group.
    voters: Annotated[int, number(1, MAX_NODES)] | None = None
    learners: Annotated[int, number(0, MAX_NODES)] = 0
    replaceAfter: ReplaceAfter | None = None

    @property
    def wanted_voters(self) -> int:
        return self.voters or sum(not node.spare for node in self.nodes)


class RaftConfig(ConfigModel):
    """Timers and windows of the replicated log.  A follower misses ``maxHeartBeatLeak`` heartbeats before it campaigns."""

    # A node whose clock is further off from those of a majority does not lead.
    maxClockSkewMs: Annotated[int, duration(1_000, 3_600_000)] = 10_000
    heartBeatTimeIntervalMs: Annotated[int, duration(5, 60_000)] = _CORE.heartbeat_interval_ms
    maxHeartBeatLeak: Annotated[int, number(3, 100)] = _CORE.election_timeout_ms // _CORE.heartbeat_interval_ms
    maxInflightMessages: Annotated[int, number(1, 4096)] = _CORE.max_inflight_messages
    maxInflightBytes: Annotated[int, size(1 << 16, 1 << 30)] = _CORE.max_inflight_bytes
    maxAppendBytes: Annotated[int, size(1 << 12, 256 << 20)] = _CORE.max_append_bytes
    maxUncommittedBytes: Annotated[int, size(1 << 16, 4 << 30)] = _CORE.max_uncommitted_bytes
    # Bytes a second that replicas which catch up by copy may take from one node; 0: as many as there are.
    peerPushQuota: Annotated[int, size(0, 64 << 30)] = _RAFT.snapshot_bytes_per_s

    @property
    def election_timeout_ms(self) -> int:
        return self.heartBeatTimeIntervalMs * self.maxHeartBeatLeak


class StoreConfig(ConfigModel):
    """Files of the message store."""

    flushDiskType: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = "SYNC_FLUSH"
    mappedFileSizeCommitLog: Annotated[int, size(1 << 16, 2 << 30)] = _LOG.segment_bytes
    mappedFileSizeConsumeQueue: Annotated[int, size(QUEUE_UNIT_SIZE, 1 << 30)] = _STORE.mappedFileSizeConsumeQueue
    flushIntervalCommitLog: Annotated[int, duration(1, 60_000)] = _RAFT.flush_interval_ms
    syncFlushTimeout: Annotated[int, duration(10, 600_000)] = 1_000
    flushCommitLogLeastPages: Annotated[int, number(0, 1 << 18)] = 4
    flushCommitLogThoroughInterval: Annotated[int, duration(1, 600_000)] = _RAFT.flush_thorough_interval_ms
    flushIntervalConsumeQueue: Annotated[int, duration(1, 600_000)] = _STORE.flushIntervalConsumeQueue
    flushConsumeQueueLeastPages: Annotated[int, number(0, 1 << 18)] = _STORE.flushConsumeQueueLeastPages
    flushConsumeQueueThoroughInterval: Annotated[int, duration(1, 3_600_000)] = _STORE.flushConsumeQueueThoroughInterval
    maxMessageSize: Annotated[int, size(1, 64 << 20)] = _STORE.maxMessageSize
    messageIndexEnable: bool = _STORE.messageIndexEnable
    maxHashSlotNum: Annotated[int, number(1, 100_000_000)] = _STORE.maxHashSlotNum
    maxIndexNum: Annotated[int, number(2, 100_000_000)] = _STORE.maxIndexNum
    defaultQueryMaxNum: Annotated[int, number(1, 1024)] = _STORE.defaultQueryMaxNum
    fileReservedTime: Annotated[int, duration(HOUR_MS, 3650 * DAY_MS, "h")] = _STORE.fileReservedTime
    deleteWhen: Annotated[str, hours_of_day] = _STORE.deleteWhen
    diskMaxUsedSpaceRatio: Annotated[int, number(10, 95)] = _STORE.diskMaxUsedSpaceRatio
    diskSpaceCleanForciblyRatio: Annotated[int, number(30, 99)] = _STORE.diskSpaceCleanForciblyRatio
    diskSpaceWarningLevelRatio: Annotated[int, number(35, 99)] = _STORE.diskSpaceWarningLevelRatio
    # With so much free a disk never counts as too full, whatever its ratio; 0: the ratio alone counts.
    diskSpaceEnoughFree: Annotated[int, size(0, 1 << 50)] = _STORE.diskSpaceEnoughFree
    # With less free there are no new messages; in place of the two above.  Empty: they count.
    diskFreeLimit: Annotated[str, disk_limit] = ""
    cleanFileForciblyEnable: bool = _STORE.cleanFileForciblyEnable
    cleanFileForciblyAfter: Annotated[int, duration(10_000, 7 * 86_400_000)] = _STORE.cleanFileForciblyAfter
    cleanResourceInterval: Annotated[int, duration(100, 3_600_000)] = _STORE.cleanResourceInterval
    deleteFileBatchMax: Annotated[int, number(1, 10_000)] = _STORE.deleteFileBatchMax


class ServiceConfig(ConfigModel):
    """What a broker offers its clients."""

    autoCreateTopicEnable: bool = False
    defaultTopicQueueNums: Annotated[int, number(1, 1024)] = 4
    messageDelayLevel: Annotated[str, delay_levels] = DEFAULT_MESSAGE_DELAY_LEVEL
    transactionTimeOut: Annotated[int, duration(10, DAY_MS)] = 6_000
    transactionCheckInterval: Annotated[int, duration(10, DAY_MS)] = 30_000
    transactionCheckMax: Annotated[int, number(1, 1000)] = 15
    # False: a fetch with nothing to return waits at most shortPollingTimeMills at the broker, however long the client would wait.
    longPollingEnable: bool = True
    shortPollingTimeMills: Annotated[int, duration(1, 60_000)] = 1_000
    slaveReadEnable: bool = True
    accessMessageInMemoryMaxRatio: Annotated[float, memory_ratio] = 40
    # What a node may take of the machine's memory, or of its cgroup's limit: what it holds of messages is bounded so that it stays below.
    memoryHighWatermark: Annotated[str, memory_mark] = "40%"


class ClusterConfig(ConfigModel):
    """A whole cluster file."""

    cluster: Name
    name_servers: list[NameServerConfig] = field(default_factory=list)
    name_service: NameServiceConfig = field(default_factory=NameServiceConfig)
    groups: Annotated[list[GroupConfig], length(1)]
    spares: list[SpareConfig] = field(default_factory=list)
    replicas: ReplicasConfig = field(default_factory=ReplicasConfig)
    raft: RaftConfig = field(default_factory=RaftConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    broker: ServiceConfig = field(default_factory=ServiceConfig)
    security: SecurityConfig | None = None
    console: ConsoleConfig | None = None
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    rocketmq: RocketmqConfig = field(default_factory=RocketmqConfig)
    _file: ClassVar[str] = ""  # of each one by ``read_from``

    @property
    def file(self) -> str:
        """Its absolute path; empty for one that was not made by ``load`` or ``parse``."""
        return self._file

    @property
    def folder(self) -> str:
        """Where relative paths of the block ``security`` begin."""
        own = self.security.folder if self.security is not None else None
        place = os.path.dirname(self._file)
        return os.path.join(place, own) if own is not None else place

    @classmethod
    def load(cls, path: str) -> Self:
        """Read and check a cluster file.  ConfigError lists every mistake with its line."""
        return cls.parse(read_cluster_text(path), path)

    @classmethod
    def parse(cls, text: str, file: str) -> Self:
        """Check a cluster file's text; ``file`` names it in errors."""
        _check_length(text, file)
        marked = MarkedYaml(text, file)
        if not isinstance(marked.data, dict):
            raise ConfigError(f"{file}:1: expected a cluster file with the settings cluster and groups, got {kind_of(marked.data)}")
        problems = marked.repeated_keys()
        try:
            config = cls.made(marked.data).read_from(file)
        except Mistakes as error:
            problems += error.problems
        else:
            problems += problems_between(config)
            if not problems:
                return config
        raise marked.error(problems)

    def read_from(self, file: str) -> Self:
        """The same, as that of ``file``: paths in it count from its folder."""
        return self.changed(_file=os.path.abspath(file))

    def node(self, node_id: str) -> NodeSettings:
        """What node ``node_id`` takes from this file."""
        for group in self.groups:
            for node in group.nodes:
                if node.id == node_id:
                    return NodeSettings(self, group, node)
        known = ", ".join([*(node.id for group in self.groups for node in group.nodes), *(spare.id for spare in self.spares)])
        raise ConfigError(f"no node {node_id!r} in this cluster file; it has {known}", known=known)

    @property
    def nodes_serve_names(self) -> bool:
        """Whether the nodes of the first group serve the names, since there are no processes of their own for that."""
        return not self.name_server_processes

    def replace_after_ms(self, group: GroupConfig) -> int:
        """How long a member of ``group`` may be away before a spare node takes its place; 0: for ever."""
        return self.replicas.replaceAfter if group.replaceAfter is None else group.replaceAfter

    def spare(self, node_id: str) -> SpareConfig | None:
        """The spare node of that id."""
        return next((spare for spare in self.spares if spare.id == node_id), None)

    def addresses_of(self, name: str) -> tuple[str, ...]:
        """Where a node, a spare node or a name server listens, its port of metrics last.  ConfigError unless the file has it."""
        spare = self.spare(name)
        if spare is not None:
            addresses, metrics = spare.addresses, spare.metrics
        elif any(server.id == name for server in self.name_server_processes):
            server = self.name_server(name)
            addresses, metrics = server.addresses, server.server.metrics
        else:
            node = self.node(name)
            addresses, metrics = node.addresses, node.node.metrics
        addresses += remoting_listens(self, name)
        metrics = metrics or self.metrics.address
        return addresses if metrics is None else (*addresses, metrics)

    def reached_at(self, name: str) -> tuple[str, ...]:
        """Where others reach a node, a spare node or a name server.  ConfigError unless the file has it."""
        spare = self.spare(name)
        if spare is not None:
            return (spare.address,)
        server = next((server for server in self.name_server_processes if server.id == name), None)
        return self.node(name).reached_at if server is None else (server.address,)

    def node_ids(self) -> dict[str, frozenset[str]]:
        """The ids of the nodes of each replica group."""
        return {group.name: frozenset(node.id for node in group.nodes) for group in self.groups}

    def all_nodes(self) -> list[tuple[GroupConfig, NodeConfig]]:
        return [(group, node) for group in self.groups for node in group.nodes]

    def bootstrap(self) -> str:
        """Addresses a client may start from."""
        return ",".join([*(server.address for server in self.name_servers), *(node.address for _, node in self.all_nodes())])

    @property
    def name_server_processes(self) -> list[NameServerConfig]:
        """The name servers with ids; without any the nodes of the first group run the name service."""
        return [server for server in self.name_servers if server.id]

    @property
    def registration_addresses(self) -> list[str]:
        """Where nodes register and clients ask for routes."""
        return [server.address for server in self.name_server_processes] or [node.address for node in self.groups[0].nodes]

    def name_server(self, server_id: str) -> NameServerSettings:
        """What name server ``server_id`` takes from this file."""
        for server in self.name_server_processes:
            if server.id == server_id:
                return NameServerSettings(self, server)
        known = ", ".join(server.id for server in self.name_server_processes)
        if not known:
            raise ConfigError("no name server with an id in this cluster file: the nodes of its first group run the name service", known="")
        raise ConfigError(f"no name server {server_id!r} in this cluster file; it has {known}", known=known)


@dataclass(frozen=True)
class NodeSettings:
    """One node's view of the cluster file."""

    cluster: ClusterConfig
    group: GroupConfig
    node: NodeConfig

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the node listens: its own address first.  The k-th name server without an id is an address of the k-th node of the first
        group.  With ``listen`` the ports of the others are listened on at its host, too."""
        found = [address for address in self.reached_at if address != self.node.replica_address or self.node.replica_listen is None]
        if self.node.listen is not None:
            host = host_of(self.node.listen)
            found = [self.node.listen, *(f"{host}:{split_address(address)[1]}" for address in found[1:])]
        if self.node.replica_listen is not None:
            found.append(self.node.replica_listen)
        return tuple(dict.fromkeys(found))

    @property
    def reached_at(self) -> tuple[str, ...]:
        """Where others reach the node: its own address first."""
        plain = [server.address for server in self.cluster.name_servers if not server.id]
        place = self.group.nodes.index(self.node) if self.group is self.cluster.groups[0] else len(plain)
        found = [self.node.address, self.node.replica_address, *plain[place : place + 1]]
        return tuple(address for address in found if address is not None)

    @property
    def runs_name_service(self) -> bool:
        """No process of its own does, and the node belongs to the first group."""
        return self.group.name == self.cluster.groups[0].name and self.cluster.nodes_serve_names

    @property
    def peers(self) -> dict[str, str]:
        """Address of every configured node of the group by id, this one included."""
        return {node.id: node.address for node in self.group.nodes}

    @property
    def links(self) -> dict[str, str]:
        """Where replicas reach those nodes of the group that have an address of their own for that."""
        return {node.id: node.replica_address for node in self.group.nodes if node.replica_address is not None}
