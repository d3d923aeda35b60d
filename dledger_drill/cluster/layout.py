"""Names and cluster files of a private cluster: that of a drill, and those of benches and tests."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from broker.config.cluster_file import ClusterConfig
from broker.config.yaml_marks import MarkedYaml
from dledger_drill.hosts.cables import Cables
from dledger_wire.errors import ConfigError

CLUSTER = "drill"
PORT, NAME_PORT, QUORUM_PORT = 10911, 9876, 9877
NAME_SERVERS = 3
OWN = frozenset({"cluster", "name_servers", "groups"})
EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))
# Small segments: some are sealed soon, and a full disk is felt when the next one is made.  Nothing deletes messages for want of space,
# which would look like a loss; what is older than an hour was judged long ago.
SETTINGS: dict[str, Any] = {
    "store": {
        "mappedFileSizeCommitLog": "512KiB",
        "maxMessageSize": "128KiB",
        "cleanFileForciblyEnable": False,
        "fileReservedTime": "1h",
        "deleteWhen": EVERY_HOUR,
    },
    "broker": {"transactionTimeOut": "1s", "transactionCheckInterval": "1s"},
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of a cluster and its processes."""

    cluster: str
    groups: dict[str, list[str]]
    name_servers: list[str]

    @property
    def nodes(self) -> list[str]:
        return [node for nodes in self.groups.values() for node in nodes]


def layout_of(cluster: str, groups: int, nodes: int, name_servers: int) -> Layout:
    """``nodes``: of each group."""
    names = {f"g{group}": [f"n{group * nodes + number}" for number in range(nodes)] for group in range(groups)}
    return Layout(cluster, names, [f"ns{number}" for number in range(name_servers)])


def dialled_by(node: str, layout: Layout, cables: Cables | None) -> dict[str, str]:
    """Where ``node`` reaches the other nodes of its group, when that is not their own address."""
    nodes = next(nodes for nodes in layout.groups.values() if node in nodes)
    return {} if cables is None else {other: cables.address(node, other) for other in nodes if other != node}


def write_files(
    folder: Path,
    layout: Layout,
    addresses: Mapping[str, str],
    quorum_addresses: Mapping[str, str],
    settings: Mapping[str, Any],
    cables: Cables | None,
) -> tuple[Path, dict[str, Path]]:
    """Write ``cluster.yaml``, and a file for each node that dials others through ``cables``; returns their paths.

    ``settings`` are laid over what the layout says.
    """

    def write(name: str, dialled: Mapping[str, str]) -> Path:
        content = merged(_content(layout, addresses, quorum_addresses, dialled), settings)
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return folder / name

    with_own = layout.nodes if cables is not None else []
    return write("cluster.yaml", {}), {node: write(f"cluster-{node}.yaml", dialled_by(node, layout, cables)) for node in with_own}


def _content(
    layout: Layout, addresses: Mapping[str, str], quorum_addresses: Mapping[str, str], dialled: Mapping[str, str]
) -> dict[str, Any]:
    groups = []
    for name, nodes in layout.groups.items():
        members: list[dict[str, Any]] = [{"id": node, "address": addresses[node]} for node in nodes]
        for member in members:
            if member["id"] in dialled:
                member["replica_address"] = dialled[member["id"]]
        groups.append({"name": name, "nodes": members})
    servers = [{"id": name, "address": addresses[name], "quorum_address": quorum_addresses[name]} for name in layout.name_servers]
    return {"cluster": layout.cluster, "name_servers": servers, "groups": groups}


def settings_of(text: str, file: str) -> dict[str, Any]:
    """Blocks of settings for a private cluster, from the text of a file; ConfigError with the line of what is wrong."""
    content = MarkedYaml(text, file).data
    if content is None:
        return {}
    if not isinstance(content, dict) or OWN & content.keys():
        raise ConfigError(f"{file}: expected blocks of settings such as store and raft; nodes and addresses are the drill's own")
    layout = layout_of(CLUSTER, 1, 1, NAME_SERVERS)
    names = [*layout.nodes, *layout.name_servers]
    addresses, quorum = ({name: f"127.0.0.1:{first + number}" for number, name in enumerate(names)} for first in (PORT, PORT + len(names)))
    own = _content(layout, addresses, quorum, {}) | ({} if "name_service" in content else {"name_service": {"passwordFile": "/drill"}})
    try:
        ClusterConfig.parse(yaml.safe_dump(merged(own, merged(SETTINGS, content)), sort_keys=False), file)
    except ConfigError as error:
        behind = f"{text}\n{yaml.safe_dump(own, sort_keys=False)}"  # so that the lines of errors are those of the file
        if _is_yaml(behind):
            ClusterConfig.parse(behind, file)
        raise ConfigError(re.sub(rf"^{re.escape(file)}:\d+:", f"{file}:", error.message, flags=re.MULTILINE)) from None
    return content


def _is_yaml(text: str) -> bool:
    try:
        return isinstance(yaml.safe_load(text), dict)
    except yaml.YAMLError:
        return False


def merged(content: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` with ``more`` laid over it, block by block."""
    found = copy.deepcopy(dict(content))
    for name, value in more.items():
        both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if both else copy.deepcopy(value)
    return found
