"""At which memory and disk use a node takes no new messages: as its cluster file says, or as it was set for its replica group since.

Owns which of both counts, and what the values mean on this machine.  What was set is in the group's log, so it outlives restarts; it moves
the alarms at once, but not what a node keeps in memory (``memory_shares.py``), which is given out at its start.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.config.cluster_file import ClusterConfig, StoreConfig
from broker.config.model import Mistakes
from broker.config.units import parse_size
from broker.config.values import MEM_RELATIVE
from dledger_wire.errors import InvalidArgumentError
from store.settings import DiskLimit


def with_limits(cluster: ClusterConfig, limits: Mapping[str, str]) -> ClusterConfig:
    """The cluster file with what was set in place of its own values.  InvalidArgumentError for a value that it could not have."""
    for name, value in limits.items():
        block = "store" if name in StoreConfig.names() else "broker"
        model = getattr(cluster, block)
        try:
            made = type(model).made({name: value})
        except Mistakes as mistakes:
            raise InvalidArgumentError(f"{name}: {mistakes.problems[0].text}") from None
        cluster = cluster.changed(**{block: model.changed(**{name: getattr(made, name)})})
    return cluster


def disk_limit_of(cluster: ClusterConfig, memory_bytes: int) -> DiskLimit:
    """``memory_bytes``: of the machine or its cgroup."""
    limit = cluster.store.diskFreeLimit
    if limit.endswith("%"):
        return DiskLimit(free_percent=float(limit[:-1]))
    if limit.startswith(MEM_RELATIVE):
        return DiskLimit(int(memory_bytes * float(limit.removeprefix(MEM_RELATIVE))))
    return DiskLimit(parse_size(limit) if limit else 0)
