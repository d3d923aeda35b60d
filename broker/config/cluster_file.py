"""The cluster file: its settings as typed, checked models, and what one node takes from it.

Owns names, defaults, ranges and the rules between settings.  Every mistake becomes ``file:line: setting: expected ..., got ...``;
all mistakes of a file are told at once, a line each.  Settings that exist in RocketMQ keep RocketMQ's names and units.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from broker.config.units import parse_duration_ms, parse_size
from broker.config.yaml_marks import MarkedYaml, Problem
from dledger_wire.errors import ConfigError
from dledger_wire.names import is_node_name

DEFAULT_MESSAGE_DELAY_LEVEL = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_NODES = 9
MAX_FILE_BYTES = 1 << 20  # reading YAML takes a second or two for that much

_HOST_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``.  ValueError says what was expected."""
    host, separator, port_text = address.rpartition(":")
    if not separator or not host or not port_text.isascii() or not port_text.isdigit():
        raise ValueError(f"expected host:port, got {address!r}")
    if not 1 <= int(port_text) <= 65535:
        raise ValueError(f"expected a port from 1 to 65535, got {port_text}")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _is_host(bare, bracketed=bare != host):
        raise ValueError(f"expected host:port with a host name, an IPv4 address or an [IPv6] address, got {address!r}")
    return bare, int(port_text)


def _is_host(host: str, *, bracketed: bool) -> bool:
    try:
        return bracketed == (ipaddress.ip_address(host).version == 6)
    except ValueError:
        last_label = host.rsplit(".", 1)[-1]
        return not bracketed and not last_label.isdigit() and all(_HOST_LABEL.fullmatch(label) for label in host.split("."))


def _is_any_host(host: str) -> bool:
    """0.0.0.0 or ::, every address of a machine: to listen on, not to be reached at."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _listen_address(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected host:port, got {value!r}")
    split_address(value)
    return value


def _address(value: object) -> str:
    address = _listen_address(value)
    if _is_any_host(split_address(address)[0]):
        raise ValueError(f"expected an address that others can reach, got {address}; where a node listens is its setting listen")
    return address


def _name(value: object) -> str:
    if not isinstance(value, str) or not is_node_name(value):
        raise ValueError(f"expected a name of letters, digits, _ and -, at most 64 long, got {value!r}")
    return value


def _hours(value: object) -> str:
    """``deleteWhen``: hours of the day, ``04`` or ``04;16``.  YAML reads an unquoted 04 as the number 4."""
    parts = str(value).split(";") if isinstance(value, (str, int)) and not isinstance(value, bool) else []
    if not parts or not all(part.strip().isdigit() and int(part) <= 23 for part in parts):
        raise ValueError(f'expected hours of the day such as "04" or "04;16", got {value!r}')
    return ";".join(f"{int(part):02d}" for part in parts)


def _delay_levels(value: object) -> str:
    if not isinstance(value, str) or not value.split():
        raise ValueError(f'expected durations such as "1s 5s 10s", got {value!r}')
    for part in value.split():
        parse_duration_ms(part)
    return " ".join(value.split())


def _size(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        size = parse_size(value)
        if not low <= size <= high:
            raise ValueError(f"expected {low} to {high} bytes, got {value!r}")
        return size

    return check


def _duration(low_ms: int, high_ms: int, bare_unit: str = "ms") -> Callable[[object], int]:
    def check(value: object) -> int:
        duration_ms = parse_duration_ms(value, bare_unit)
        if not low_ms <= duration_ms <= high_ms:
            raise ValueError(f"expected {low_ms} ms to {high_ms} ms, got {value!r}")
        return duration_ms

    return check


Address = Annotated[str, BeforeValidator(_address)]
ListenAddress = Annotated[str, BeforeValidator(_listen_address)]
Name = Annotated[str, BeforeValidator(_name)]
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NodeConfig(_Model):
    """One replica: its id, the address it is reached at, where it listens when that is another (a container, NAT), and the address the
    other replicas use when theirs is a network of its own.

    ``advertised_address`` beside ``address`` says the same the other way round: ``address`` is then where the node listens.
    """

    id: Name
    address: Address
    listen: ListenAddress | None = None
    replica_address: Address | None = None
    # Not among the voters that a new group begins with: it waits to be added.  Of a group that exists its own configuration counts.
    spare: bool = False
    priority: Annotated[int, Field(ge=-1, le=100)] = 0

    @model_validator(mode="before")
    @classmethod
    def _advertised(cls, given: object) -> object:
        if not isinstance(given, dict) or "advertised_address" not in given:
            return given
        if "listen" in given:
            raise ValueError("listen and advertised_address say the same; expected one of them")
        rest = {key: value for key, value in given.items() if key != "advertised_address"}
        return rest | {"address": given["advertised_address"], "listen": given.get("address")}


class GroupConfig(_Model):
    """One replica group."""

    name: Name
    nodes: Annotated[list[NodeConfig], Field(min_length=1, max_length=MAX_NODES)]


class RaftConfig(_Model):
    """Timers and windows of the replicated log.  A follower misses ``maxHeartBeatLeak`` heartbeats before it campaigns."""

    # A node whose clock is further off from those of a majority does not lead.
    maxClockSkewMs: Annotated[int, BeforeValidator(_duration(1_000, 3_600_000))] = 10_000
    heartBeatTimeIntervalMs: Annotated[int, BeforeValidator(_duration(5, 60_000))] = 100
    maxHeartBeatLeak: Annotated[int, Field(ge=3, le=100)] = 6
    maxInflightMessages: Annotated[int, Field(ge=1, le=4096)] = 64
    maxInflightBytes: Annotated[int, BeforeValidator(_size(1 << 16, 1 << 30))] = 32 << 20
    maxAppendBytes: Annotated[int, BeforeValidator(_size(1 << 12, 256 << 20))] = 4 << 20
    maxUncommittedBytes: Annotated[int, BeforeValidator(_size(1 << 16, 4 << 30))] = 64 << 20
    # Bytes a second that replicas which catch up by copy may take from one node; 0: as many as there are.
    peerPushQuota: Annotated[int, BeforeValidator(_size(0, 64 << 30))] = 100 << 20

    @property
    def election_timeout_ms(self) -> int:
        return self.heartBeatTimeIntervalMs * self.maxHeartBeatLeak


class StoreConfig(_Model):
    """Files of the message store."""

    flushDiskType: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = "SYNC_FLUSH"
    mappedFileSizeCommitLog: Annotated[int, BeforeValidator(_size(1 << 16, 2 << 30))] = 1 << 30
    mappedFileSizeConsumeQueue: Annotated[int, BeforeValidator(_size(20, 1 << 30))] = 300_000 * 20
    flushIntervalCommitLog: Annotated[int, BeforeValidator(_duration(1, 60_000))] = 500
    syncFlushTimeout: Annotated[int, BeforeValidator(_duration(10, 600_000))] = 1_000
    flushCommitLogLeastPages: Annotated[int, Field(ge=0, le=1 << 18)] = 4
    flushCommitLogThoroughInterval: Annotated[int, BeforeValidator(_duration(1, 600_000))] = 10_000
    flushIntervalConsumeQueue: Annotated[int, BeforeValidator(_duration(1, 600_000))] = 1_000
    flushConsumeQueueLeastPages: Annotated[int, Field(ge=0, le=1 << 18)] = 2
    flushConsumeQueueThoroughInterval: Annotated[int, BeforeValidator(_duration(1, 3_600_000))] = 60_000
    maxMessageSize: Annotated[int, BeforeValidator(_size(1, 64 << 20))] = 4 << 20
    messageIndexEnable: bool = True
    maxHashSlotNum: Annotated[int, Field(ge=1, le=100_000_000)] = 5_000_000
    maxIndexNum: Annotated[int, Field(ge=2, le=100_000_000)] = 20_000_000
    defaultQueryMaxNum: Annotated[int, Field(ge=1, le=1024)] = 32
    fileReservedTime: Annotated[int, BeforeValidator(_duration(_HOUR_MS, 3650 * _DAY_MS, "h"))] = 48 * _HOUR_MS
    deleteWhen: Annotated[str, BeforeValidator(_hours)] = "04"
    diskMaxUsedSpaceRatio: Annotated[int, Field(ge=10, le=95)] = 75
    diskSpaceCleanForciblyRatio: Annotated[int, Field(ge=30, le=99)] = 85
    diskSpaceWarningLevelRatio: Annotated[int, Field(ge=35, le=99)] = 90
    # With so much free a disk never counts as too full, whatever its ratio; 0: the ratio alone counts.
    diskSpaceEnoughFree: Annotated[int, BeforeValidator(_size(0, 1 << 50))] = 16 << 30
    cleanFileForciblyEnable: bool = True
    cleanResourceInterval: Annotated[int, BeforeValidator(_duration(100, 3_600_000))] = 10_000
    deleteFileBatchMax: Annotated[int, Field(ge=1, le=10_000)] = 10


class ServiceConfig(_Model):
    """What a broker offers its clients."""

    autoCreateTopicEnable: bool = False
    defaultTopicQueueNums: Annotated[int, Field(ge=1, le=1024)] = 4
    messageDelayLevel: Annotated[str, BeforeValidator(_delay_levels)] = DEFAULT_MESSAGE_DELAY_LEVEL
    transactionTimeOut: Annotated[int, BeforeValidator(_duration(10, _DAY_MS))] = 6_000
    transactionCheckInterval: Annotated[int, BeforeValidator(_duration(10, _DAY_MS))] = 30_000
    transactionCheckMax: Annotated[int, Field(ge=1, le=1000)] = 15
    slaveReadEnable: bool = True
    accessMessageInMemoryMaxRatio: Annotated[float, Field(gt=0, le=95)] = 40


class ClusterConfig(_Model):
    """A whole cluster file."""

    cluster: Name
    name_servers: list[Address] = Field(default_factory=list)
    groups: Annotated[list[GroupConfig], Field(min_length=1)]
    raft: RaftConfig = Field(default_factory=RaftConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)
    broker: ServiceConfig = Field(default_factory=ServiceConfig)
    security: Any = None

    @classmethod
    def load(cls, path: str) -> Self:
        """Read and check a cluster file.  ConfigError tells every mistake with its line."""
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(MAX_FILE_BYTES + 1)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(f"{path}: cannot read the cluster file: {reason}") from error
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, file: str) -> Self:
        """Check a cluster file's text; ``file`` names it in errors."""
        if len(text) > MAX_FILE_BYTES:
            raise ConfigError(f"{file}: more than {MAX_FILE_BYTES} characters; expected a cluster file")
        marked = MarkedYaml(text, file)
        if not isinstance(marked.data, dict):
            raise ConfigError(f"{file}:1: expected a cluster file with the settings cluster and groups, got {_kind(marked.data)}")
        problems = marked.repeated_keys()
        try:
            config = cls.model_validate(marked.data)
        except ValidationError as error:
            problems += [_problem_of(detail, marked.data) for detail in error.errors()]
        else:
            problems += _rules(config)
            if not problems:
                return config
        raise marked.error(problems)

    def node(self, node_id: str) -> NodeSettings:
        """What node ``node_id`` takes from this file."""
        for group in self.groups:
            for node in group.nodes:
                if node.id == node_id:
                    return NodeSettings(self, group, node)
        known = ", ".join(node.id for group in self.groups for node in group.nodes)
        raise ConfigError(f"no node {node_id!r} in this cluster file; it has {known}", known=known)

    def all_nodes(self) -> list[tuple[GroupConfig, NodeConfig]]:
        return [(group, node) for group in self.groups for node in group.nodes]

    def bootstrap(self) -> str:
        """Addresses a client may start from."""
        return ",".join([*self.name_servers, *(node.address for _, node in self.all_nodes())])


@dataclass(frozen=True)
class NodeSettings:
    """One node's view of the cluster file."""

    cluster: ClusterConfig
    group: GroupConfig
    node: NodeConfig

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the node listens: its own address first.  Until there is a name service of its own, the k-th name server address is
        served by the k-th node of the first group, with the same Metadata service, so that it works as a bootstrap address.  With
        ``listen`` the ports of the others are listened on at its host, too."""
        place = self.group.nodes.index(self.node)
        found = [self.node.address]
        if self.node.replica_address is not None:
            found.append(self.node.replica_address)
        if self.group is self.cluster.groups[0] and place < len(self.cluster.name_servers):
            found.append(self.cluster.name_servers[place])
        if self.node.listen is not None:
            host = self.node.listen.rpartition(":")[0]
            found = [self.node.listen, *(f"{host}:{split_address(address)[1]}" for address in found[1:])]
        return tuple(dict.fromkeys(found))

    @property
    def peers(self) -> dict[str, str]:
        """Address of every configured node of the group by id, this one included."""
        return {node.id: node.address for node in self.group.nodes}

    @property
    def links(self) -> dict[str, str]:
        """Where replicas reach those nodes of the group that have an address of their own for that."""
        return {node.id: node.replica_address for node in self.group.nodes if node.replica_address is not None}


def _rules(config: ClusterConfig) -> list[Problem]:
    """What must hold between settings."""
    problems = _unique_names(config) + _unique_addresses(config)
    for number, group in enumerate(config.groups):
        count = sum(not node.spare for node in group.nodes)
        if count % 2 == 0:
            text = f"{count} nodes; a group needs an odd number >= 1 (3 recommended)"
            if count:
                text += "; spare: true is for one that member add takes in, or has taken in"
            problems.append(Problem(("groups", number, "nodes"), text))
    first_count = len(config.groups[0].nodes)
    if len(config.name_servers) > first_count:
        text = f"expected at most {first_count} addresses (one for each node of the first group), got {len(config.name_servers)}"
        problems.append(Problem(("name_servers",), text))
    if config.security is not None:
        problems.append(Problem(("security",), "TLS and access control are not available in this version; remove this section"))
    if config.raft.maxAppendBytes > config.raft.maxInflightBytes:
        text = f"expected at most maxInflightBytes ({config.raft.maxInflightBytes}), got {config.raft.maxAppendBytes}"
        problems.append(Problem(("raft", "maxAppendBytes"), text))
    store = config.store
    warning = store.diskSpaceWarningLevelRatio
    for name in ("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio"):
        if (ratio := getattr(store, name)) < warning:
            continue
        if name in store.model_fields_set:
            problems.append(Problem(("store", name), f"expected less than diskSpaceWarningLevelRatio ({warning}), got {ratio}"))
        else:
            problems.append(Problem(("store", "diskSpaceWarningLevelRatio"), f"expected more than {name} ({ratio}), got {warning}"))
    if config.store.mappedFileSizeConsumeQueue % 20:
        problems.append(
            Problem(
                ("store", "mappedFileSizeConsumeQueue"),
                f"expected a multiple of 20, the size of a queue unit, got {config.store.mappedFileSizeConsumeQueue}",
            )
        )
    if config.store.maxMessageSize * 2 > config.store.mappedFileSizeCommitLog:
        text = (
            f"expected at most half of mappedFileSizeCommitLog ({config.store.mappedFileSizeCommitLog}), got {config.store.maxMessageSize}"
        )
        problems.append(Problem(("store", "maxMessageSize"), text))
    return problems


def _unique_names(config: ClusterConfig) -> list[Problem]:
    problems: list[Problem] = []
    groups: set[str] = set()
    ids: dict[str, str] = {}
    for number, group in enumerate(config.groups):
        if group.name in groups:
            problems.append(Problem(("groups", number, "name"), f"expected a name no other group has, got {group.name!r} again"))
        groups.add(group.name)
        for place, node in enumerate(group.nodes):
            if node.id in ids:
                text = f"expected an id no other node has, got {node.id!r} again (first in group {ids[node.id]})"
                problems.append(Problem(("groups", number, "nodes", place, "id"), text))
            ids.setdefault(node.id, group.name)
    return problems


def _unique_addresses(config: ClusterConfig) -> list[Problem]:
    places: list[tuple[tuple[str | int, ...], str]] = [(("name_servers", n), address) for n, address in enumerate(config.name_servers)]
    for number, group in enumerate(config.groups):
        for place, node in enumerate(group.nodes):
            places.append((("groups", number, "nodes", place, "address"), node.address))
            if node.replica_address is not None:
                places.append((("groups", number, "nodes", place, "replica_address"), node.replica_address))
    problems: list[Problem] = []
    seen: dict[tuple[str, int], str] = {}
    for location, address in places:
        host, port = split_address(address)
        key = _one_spelling(host), port
        if key in seen:
            same = "" if seen[key] == address else f" (the same as {seen[key]})"
            problems.append(Problem(location, f"expected an address nobody else has, got {address} again{same}"))
        seen.setdefault(key, address)
    return problems


def _one_spelling(host: str) -> str:
    """Hosts that are certainly the same get the same text; names are not looked up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.lower()
        return "127.0.0.1" if name == "localhost" else name
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _problem_of(detail: Any, data: object) -> Problem:
    location = tuple(detail["loc"])
    kind, value = detail["type"], detail.get("input")
    if kind == "extra_forbidden":
        return Problem(location, _unknown_setting(location))
    if kind == "missing":
        return Problem(location, "required setting is missing")
    if kind == "value_error":
        return Problem(location, str(detail["ctx"]["error"]))
    if kind in ("too_short", "too_long"):
        context = detail["ctx"]
        bound = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        return Problem(location, f"expected {bound}, got {context['actual_length']}")
    return Problem(
        location,
        f"{_expected(kind, detail)}, got {value!r}"
        if not isinstance(value, (dict, list))
        else f"{_expected(kind, detail)}, got {_kind(value)}",
    )


def _expected(kind: str, detail: Any) -> str:
    context = detail.get("ctx", {})
    words = {
        "int_type": "expected a whole number",
        "string_type": "expected text",
        "bool_type": "expected true or false",
        "list_type": "expected a list",
        "model_type": "expected a mapping of settings",
        "dict_type": "expected a mapping of settings",
        "literal_error": f"expected {context.get('expected', '')}",
        "greater_than_equal": f"expected {context.get('ge')} or more",
        "less_than_equal": f"expected {context.get('le')} or less",
    }
    return words.get(kind, f"expected a valid value ({detail['msg']})")


def _unknown_setting(location: Sequence[str | int]) -> str:
    """``unknown setting``, with the nearest name that exists at that place."""
    model: type[BaseModel] = ClusterConfig
    for part in location[:-1]:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_of(model.model_fields[part].annotation) or model
    known = list(model.model_fields)
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(location[-1]).lower(), list(by_lower), n=1, cutoff=0.6)
    return f"unknown setting; did you mean {by_lower[near[0]]}?" if near else f"unknown setting; expected one of {', '.join(known)}"


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is not None:
        return next((found for argument in get_args(annotation) if (found := _model_of(argument))), None)
    return None


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return {"dict": "a mapping", "list": "a list", "str": "text"}.get(type(value).__name__, repr(value))
