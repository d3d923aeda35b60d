"""The cluster file of a private cluster."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from dledger_drill.plan.model import DrillOptions

CLUSTER = "drill"
PORT, NAME_PORT, QUORUM_PORT = 10911, 9876, 9877
NAME_SERVERS = 3
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
    """Names of the processes, and where each is reached."""

    groups: dict[str, list[str]]
    name_servers: list[str]

    @property
    def nodes(self) -> list[str]:
        return [node for nodes in self.groups.values() for node in nodes]


def layout_of(options: DrillOptions) -> Layout:
    groups = {f"g{group}": [f"n{group * options.nodes + number}" for number in range(options.nodes)] for group in range(options.groups)}
    return Layout(groups, [f"ns{number}" for number in range(NAME_SERVERS)])


def cluster_file(
    layout: Layout,
    addresses: Mapping[str, str],
    quorum_addresses: Mapping[str, str],
    settings: Mapping[str, Any],
    replica_addresses: Mapping[str, str] | None = None,
) -> str:
    """The file's text.  ``settings`` replace ours; ``replica_addresses``: where the node that reads it dials others."""
    dialled = replica_addresses or {}
    groups = []
    for name, nodes in layout.groups.items():
        members: list[dict[str, Any]] = [{"id": node, "address": addresses[node]} for node in nodes]
        for member in members:
            if member["id"] in dialled:
                member["replica_address"] = dialled[member["id"]]
        groups.append({"name": name, "nodes": members})
    servers = [{"id": name, "address": addresses[name], "quorum_address": quorum_addresses[name]} for name in layout.name_servers]
    content: dict[str, Any] = {"cluster": CLUSTER, "name_servers": servers, "groups": groups}
    return yaml.safe_dump(merged(content, merged(SETTINGS, settings)), sort_keys=False)


def merged(content: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` with ``more`` laid over it, block by block."""
    found = copy.deepcopy(dict(content))
    for name, value in more.items():
        both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if both else copy.deepcopy(value)
    return found
