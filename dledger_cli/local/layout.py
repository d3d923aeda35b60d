"""Names and cluster files of a private cluster: that of a drill, and those of benches and tests."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


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


def write_files(
    folder: Path,
    layout: Layout,
    addresses: Mapping[str, str],
    quorum_addresses: Mapping[str, str],
    settings: Mapping[str, Any],
    dialled: Mapping[str, Mapping[str, str]],
) -> tuple[Path, dict[str, Path]]:
    """Write ``cluster.yaml``, and a file for each node in ``dialled``; returns their paths.

    ``settings`` are laid over what the layout says.  ``dialled``: node -> where it reaches others when that is not their own address.
    """

    def write(name: str, others: Mapping[str, str]) -> Path:
        content = merged(content_of(layout, addresses, quorum_addresses, others), settings)
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return folder / name

    return write("cluster.yaml", {}), {node: write(f"cluster-{node}.yaml", others) for node, others in dialled.items()}


def content_of(
    layout: Layout, addresses: Mapping[str, str], quorum_addresses: Mapping[str, str], dialled: Mapping[str, str]
) -> dict[str, Any]:
    """What a cluster file says of a layout; ``dialled``: where a node reaches others."""
    groups = []
    for name, nodes in layout.groups.items():
        members: list[dict[str, Any]] = [{"id": node, "address": addresses[node]} for node in nodes]
        for member in members:
            if member["id"] in dialled:
                member["replica_address"] = dialled[member["id"]]
        groups.append({"name": name, "nodes": members})
    servers = [{"id": name, "address": addresses[name], "quorum_address": quorum_addresses[name]} for name in layout.name_servers]
    return {"cluster": layout.cluster, "name_servers": servers, "groups": groups}


def merged(content: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` with ``more`` laid over it, block by block."""
    found = copy.deepcopy(dict(content))
    for name, value in more.items():
        both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if both else copy.deepcopy(value)
    return found
