"""What must hold between the settings of a cluster file: unique names and addresses, odd groups, limits that fit each other."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from broker.config.placement import is_loopback
from broker.config.ports import Port, Use, ports_of, taken_ports
from broker.config.rocketmq import remoting_listens, remoting_name_servers
from broker.config.security import Step
from broker.config.values import MAX_NODES, split_address
from broker.config.yaml_marks import Problem
from dledger_wire.store_layout import QUEUE_UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.config.cluster_file import ClusterConfig, GroupConfig, StoreConfig
    from broker.config.replicas import ServerConfig


def problems_between(config: ClusterConfig) -> list[Problem]:
    """What must hold between settings."""
    problems = _unique_names(config) + _unique_addresses(config)
    for number, group in enumerate(config.groups):
        count = sum(not node.spare for node in group.nodes)
        if count % 2 == 0:
            text = f"{count} nodes; a group needs an odd number >= 1 (3 recommended)"
            if count:
                text += "; spare: true is for one that member add takes in, or has taken in"
            problems.append(Problem(("groups", number, "nodes"), text))
    problems += _name_servers(config)
    problems += _security(config)
    problems += _console(config) + _rocketmq_nodes(config)
    ports = list(ports_of(config))
    problems += taken_ports(ports) + _metrics(config, ports)
    if config.raft.maxAppendBytes > config.raft.maxInflightBytes:
        text = f"expected at most maxInflightBytes ({config.raft.maxInflightBytes}), got {config.raft.maxAppendBytes}"
        problems.append(Problem(("raft", "maxAppendBytes"), text))
    store = config.store
    warning = store.diskSpaceWarningLevelRatio
    for name in ("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio"):
        if (ratio := getattr(store, name)) < warning:
            continue
        if name in store.given_names:
            problems.append(Problem(("store", name), f"expected less than diskSpaceWarningLevelRatio ({warning}), got {ratio}"))
        else:
            problems.append(Problem(("store", "diskSpaceWarningLevelRatio"), f"expected more than {name} ({ratio}), got {warning}"))
    if config.store.mappedFileSizeConsumeQueue % QUEUE_UNIT_SIZE:
        problems.append(
            Problem(
                ("store", "mappedFileSizeConsumeQueue"),
                f"expected a multiple of {QUEUE_UNIT_SIZE}, the size of a queue unit, got {config.store.mappedFileSizeConsumeQueue}",
            )
        )
    if store.maxMessageSize * 2 > store.mappedFileSizeCommitLog:
        problems.append(_message_and_segment_size(store))
    return problems


def _name_servers(config: ClusterConfig) -> list[Problem]:
    """Either plain addresses, which nodes serve, or processes with ids."""
    problems: list[Problem] = []
    servers, first_count = config.name_servers, len(config.groups[0].nodes)
    processes = config.name_server_processes
    for number, server in enumerate(servers):
        if processes and not server.id:
            text = f"expected an id and an address as {processes[0].id} has, got {server.address}; plain addresses are served by nodes"
            problems.append(Problem(("name_servers", number), text))
    if not processes and len(servers) > first_count:
        text = f"expected at most {first_count} addresses (one for each node of the first group), got {len(servers)}"
        problems.append(Problem(("name_servers",), text))
    if len(processes) > MAX_NODES:
        problems.append(Problem(("name_servers",), f"expected at most {MAX_NODES}, got {len(processes)}"))
    service = config.name_service
    if service.expireAfter < 2 * service.registerInterval:
        given = "expireAfter" if "expireAfter" in service.given_names else "registerInterval"
        text = f"expected expireAfter at least twice registerInterval, got {service.expireAfter} ms and {service.registerInterval} ms"
        problems.append(Problem(("name_service", given), text))
    return problems


def _security(config: ClusterConfig) -> list[Problem]:
    """Parties that have to authenticate need credentials, and passwords and messages do not cross a network in the clear."""
    security = config.security
    if security is None:
        return []
    problems: list[Problem] = []
    if security.cluster_secret_file is None and (security.tls is None or security.tls.client_auth == "none"):
        text = "nodes cannot authenticate: expected cluster_secret_file, or tls with client_auth optional or required"
        problems.append(Problem(("security",), text))
    if security.users is not None and security.tls is not None and security.tls.step is not Step.ONLY:
        text = f"expected no users before tls.step is only, got step {security.tls.step}: passwords would cross the network in the clear"
        problems.append(Problem(("security", "users"), text))
    if security.users is not None and security.tls is None and not all(is_loopback(split_address(each)[0]) for each in _reached(config)):
        problems.append(Problem(("security", "users"), "users outside loopback need security.tls"))
    return problems


def _console(config: ClusterConfig) -> list[Problem]:
    """Nodes of the file start it, and passwords do not cross a network in the clear."""
    console, problems = config.console, []
    if console is None:
        return []
    known = {node.id for _, node in config.all_nodes()}
    for number, node_id in enumerate(console.nodes):
        if node_id not in known:
            problems.append(Problem(("console", "nodes", number), f"expected a node of the groups, got {node_id!r}"))
    security = config.security
    if security is not None and security.users is not None and security.tls is None and not is_loopback(split_address(console.address)[0]):
        problems.append(Problem(("console", "address"), "users log in here: outside loopback it needs security.tls"))
    return problems


def _rocketmq_nodes(config: ClusterConfig) -> list[Problem]:
    """Name servers send RocketMQ's clients to nodes: to whichever leads."""
    servers = [server for server in config.name_server_processes if remoting_listens(config, server.id)]
    silent = [node.id for _, node in config.all_nodes() if not remoting_listens(config, node.id)]
    if not silent or not servers:
        return []
    text = f"expected an address, or one of each node: name servers send RocketMQ's clients to nodes, and {silent[0]} has none for them"
    return [Problem(("rocketmq",), text)]


def _metrics(config: ClusterConfig, ports: list[Port]) -> list[Problem]:
    """Passwords of metrics readers do not cross a network in the clear."""
    security, metrics = config.security, config.metrics
    if security is None or security.users is None or metrics.anonymous or (security.tls is not None and metrics.tls):
        return []
    reached = [port for port in ports if port.use is Use.METRICS and not is_loopback(port.ip)]
    if not reached:
        return []
    if security.tls is None:
        return [Problem(reached[0].place, "users log in here: outside loopback it needs security.tls, or metrics.anonymous: true")]
    return [Problem(("metrics", "tls"), "expected true, or anonymous: true: passwords would cross the network in the clear")]


def _reached(config: ClusterConfig) -> list[str]:
    nodes = [node.address for _group, node in config.all_nodes()]
    others = [*(server.address for server in config.name_servers), *(spare.address for spare in config.spares)]
    return [*nodes, *others, *remoting_name_servers(config)]


def _message_and_segment_size(store: StoreConfig) -> Problem:
    """The setting that the file has is named, not the other one's default."""
    if "maxMessageSize" in store.given_names:
        text = f"expected at most half of mappedFileSizeCommitLog ({store.mappedFileSizeCommitLog}), got {store.maxMessageSize}"
        return Problem(("store", "maxMessageSize"), text)
    text = f"expected at least twice maxMessageSize ({store.maxMessageSize}), got {store.mappedFileSizeCommitLog}"
    return Problem(("store", "mappedFileSizeCommitLog"), text)


def _unique_names(config: ClusterConfig) -> list[Problem]:
    problems: list[Problem] = []
    for number, group in enumerate(config.groups):
        if any(group.name == each.name for each in config.groups[:number]):
            problems.append(Problem(("groups", number, "name"), f"expected a name no other group has, got {group.name!r} again"))
        problems += _wishes(number, group)
    ids: dict[str, str] = {}
    owners: list[tuple[tuple[str | int, ...], str, Sequence[ServerConfig]]] = [
        (("groups", number, "nodes"), f"replica group {group.name}", group.nodes) for number, group in enumerate(config.groups)
    ]
    for place, owner, nodes in [*owners, (("spares",), "spares", config.spares)]:
        for number, node in enumerate(nodes):
            if node.id in ids:
                text = f"expected an id no other node has, got {node.id!r} again (first in {ids[node.id]})"
                problems.append(Problem((*place, number, "id"), text))
            ids.setdefault(node.id, owner)
    for number, server in enumerate(config.name_servers):
        if server.id and server.id in ids:
            text = f"expected an id that no node and no other name server has, got {server.id!r} again"
            problems.append(Problem(("name_servers", number, "id"), text))
        ids.setdefault(server.id, "")
    return problems


def _wishes(number: int, group: GroupConfig) -> list[Problem]:
    """The wanted numbers of replicas against each other; 0 voters cannot be wished."""
    problems: list[Problem] = []
    if group.voters is not None and group.voters % 2 == 0:
        problems.append(Problem(("groups", number, "voters"), f"expected an odd number (3 recommended), got {group.voters}"))
    if group.wanted_voters + group.learners > MAX_NODES:
        text = f"expected at most {MAX_NODES} replicas together with {group.wanted_voters} voters, got {group.learners}"
        problems.append(Problem(("groups", number, "learners"), text))
    return problems


def _unique_addresses(config: ClusterConfig) -> list[Problem]:
    places: list[tuple[tuple[str | int, ...], str]] = []
    unreached: list[Problem] = []
    for number, server in enumerate(config.name_servers):
        here = ("name_servers", number)
        places.append(((*here, "address") if server.id else here, server.address))
        if server.id:
            places.append(((*here, "address" if server.quorum_address is None else "quorum_address"), server.quorum))
    for number, group in enumerate(config.groups):
        for place, node in enumerate(group.nodes):
            places.append((("groups", number, "nodes", place, "address"), node.address))
            if node.replica_address is not None:
                places.append((("groups", number, "nodes", place, "replica_address"), node.replica_address))
            elif node.replica_listen is not None:
                unreached.append(Problem(("groups", number, "nodes", place, "replica_listen"), "expected replica_address, too"))
    places += [(("spares", number, "address"), spare.address) for number, spare in enumerate(config.spares)]
    problems = unreached
    seen: dict[tuple[str, int], str] = {}
    for location, address in places:
        host, port = split_address(address)
        key = _one_spelling(host), port
        if key in seen:
            same = "" if seen[key] == address else f" (the same as {seen[key]})"
            problems.append(Problem(location, f"expected an address that no other node has, got {address} again{same}"))
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
