"""Replica groups that a cluster file still names although they were removed: said, and not taken for groups whose nodes are down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dledger_cli.connection import as_member
from dledger_cli.context import cluster_status
from dledger_cli.output import note
from dledger_wire.errors import DledgerError

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_client.admin.cluster_status import ReplicaGroupStatus
    from dledger_client.aio import Admin

ASK_TIMEOUT_MS = 2000


async def status_without_removed(cluster: ClusterConfig) -> tuple[list[ReplicaGroupStatus], list[str]]:
    """The state of the file's replica groups, and the names of those that were removed.  Name servers are asked about groups of which no
    node answers, while others do."""
    groups = await cluster_status(cluster)
    silent = [group.name for group in groups if not any(node.reachable for node in group.nodes)]
    if not silent or len(silent) == len(groups):
        return groups, []
    from dledger_client.aio import Admin

    with as_member(cluster):
        admin = Admin(cluster.bootstrap(), timeout_ms=ASK_TIMEOUT_MS)
    async with admin:
        removed = await removed_among(admin, silent)
    return [group for group in groups if group.name not in removed], removed


async def removed_among(admin: Admin, names: Iterable[str]) -> list[str]:
    """Those that were removed, as far as a name server remembers."""
    try:
        directory = await admin.directory()
    except DledgerError:
        return []
    removed = {group.name for group in directory.groups if group.is_removed}
    return [name for name in names if name in removed]


def say_removed(names: Iterable[str]) -> None:
    for name in names:
        note(f"replica group {name} was removed from the cluster; take it out of the cluster file")
