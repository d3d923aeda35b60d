"""The replica groups of a simulated cluster: which nodes each has, what holds within it, and the cluster file that says so.

Owns the names: groups are g0, g1, ..., nodes n0, n1, ... over all groups, each with an address of its own.  Every group has its own
invariants, because terms, indexes and entries of two groups have nothing to do with each other; that no node of one group ever takes
part in another is one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from broker.config.cluster_file import ClusterConfig
from tests.sim.async_loss import AsyncLoss
from tests.sim.invariants import Invariants

PORT = 10911
NAME_SERVER_PORT = 9876


class Shape(TypedDict, total=False):
    """What the cluster file says: how many ``groups`` there are (1) and ``nodes`` in each (3), how many ``name_servers`` of its own the
    cluster has (0), how many ``spares`` (0), the ``priorities`` and ``hosts`` of nodes, settings of the ``store`` (in braces), other
    ``settings`` (whole lines).  ``secured``: there are users, rules and a secret of the members, see ``security.py``."""

    groups: int
    nodes: int
    name_servers: int
    spares: int
    secured: bool
    priorities: Mapping[str, int] | None
    hosts: Mapping[str, str]
    store: str
    settings: str


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """What the cluster file says of one group: (node id, address)."""

    name: str
    nodes: tuple[tuple[str, str], ...]


@dataclass(slots=True, eq=False)
class SimGroup:
    """One replica group while it runs.  ``lineages``: the invariants of each, the oldest first; an unsafe recovery begins one."""

    name: str
    node_ids: list[str]
    lineages: list[Invariants]
    async_loss: AsyncLoss | None = None

    @property
    def invariants(self) -> Invariants:
        """Of the newest lineage."""
        return self.lineages[-1]


def group_nodes(number: int, first: int, count: int) -> GroupNodes:
    """Group ``number`` with ``count`` nodes, numbered from ``first`` on."""
    return GroupNodes(f"g{number}", tuple((f"n{place}", f"10.0.0.{place + 1}:{PORT}") for place in range(first, first + count)))


def name_server_id(number: int) -> str:
    return f"ns{number}"


def name_server_address(number: int) -> str:
    return f"10.0.7.{number + 1}:{NAME_SERVER_PORT}"


def spare_id(number: int) -> str:
    return f"sp{number}"


def spare_address(number: int) -> str:
    return f"10.0.9.{number + 1}:{PORT}"


def only_first(config: ClusterConfig, name: str, first: Collection[str]) -> ClusterConfig:
    """The file with ``spare: true`` for all nodes of a group but these."""
    groups = []
    for group in config.groups:
        if group.name == name:
            nodes = [node.changed(spare=node.id not in first) for node in group.nodes]
            group = group.changed(nodes=nodes)
        groups.append(group)
    return config.changed(groups=groups)


def cluster_file(groups: Sequence[GroupNodes], shape: Shape) -> str:
    """The text of the cluster file."""
    lines, priorities, store = [], shape.get("priorities") or {}, shape.get("store", "")
    labels = {name: f", host: {host}" for name, host in shape.get("hosts", {}).items()}
    for group in groups:
        lines.append(f"  - name: {group.name}\n    nodes:")
        lines += [
            f"      - {{id: {name}, address: '{address}', priority: {priorities.get(name, 0)}{labels.get(name, '')}}}"
            for name, address in group.nodes
        ]
    queue_files = "" if "mappedFileSizeConsumeQueue" in store else "mappedFileSizeConsumeQueue: 20000"  # sparse ones count as full here
    store = ", ".join(part for part in ("maxHashSlotNum: 256, maxIndexNum: 1000", queue_files, store) if part)
    servers = [f"  - {{id: {name_server_id(n)}, address: '{name_server_address(n)}'}}\n" for n in range(shape.get("name_servers", 0))]
    names = "name_servers:\n" + "".join(servers) if servers else ""
    spares = [f"  - {{id: {spare_id(n)}, address: '{spare_address(n)}'}}\n" for n in range(shape.get("spares", 0))]
    names += "spares:\n" + "".join(spares) if spares else ""
    return f"cluster: sim\n{names}groups:\n" + "\n".join(lines) + f"\nstore: {{{store}}}\n" + shape.get("settings", "")
