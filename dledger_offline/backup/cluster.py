"""A backup of a running cluster: each replica group on its own, then the manifest that makes it whole.

Owns that one group's failure is no reason to have no backup of the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dledger_client.admin.cluster_status import ClusterDescription, ReplicaGroupStatus
from dledger_client.aio import Admin
from dledger_offline.backup.manifest import Manifest
from dledger_offline.backup.repository import open_repository
from dledger_offline.backup.take import GroupTaker, Taken, manifest_of, new_id, newest_of, sources
from dledger_wire.clock import SystemClock
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotReadyError, UnreachableError

STATUS_MS = 5_000

Nodes = Mapping[str, Mapping[str, str]]  # replica group -> node id -> address


async def described_nodes(cluster: ClusterDescription) -> Nodes:
    """Those that the cluster names."""
    return {group.name: {node.id: node.address for node in group.nodes} for group in cluster.replica_groups}


@dataclass(frozen=True, slots=True)
class ClusterBackup:
    """What was taken, by replica group.  ``unanswered``: the groups that gave none, and why; there is no backup of these."""

    backup: Manifest
    taken: dict[str, Taken]
    unanswered: dict[str, DledgerError]


async def take(
    admin: Admin,
    to: str,
    *,
    nodes: Callable[[ClusterDescription], Awaitable[Nodes]] = described_nodes,
    groups: Sequence[str] = (),
    from_node: str = "",
    bytes_per_s: int = 0,
    status_ms: int = STATUS_MS,
    on_bytes: Callable[[str, int], None] = lambda _group, _size: None,
    skipped: Callable[[DledgerError], None] = lambda _error: None,
) -> ClusterBackup:
    """Back up replica groups of a running cluster, each consistent at an entry of its own.

    Args:
        admin: Of a user who may administer the cluster.
        to: Folder of the cluster's backups, or a URL that fsspec knows.  Only what is new is added.  Files get the umask of the process.
        nodes: Which nodes to ask, of a cluster that describes itself so.
        groups: Only these; empty: all.
        from_node: Read from this node; empty: from a follower, else the leader.
        bytes_per_s: Read at most this much; 0: as fast as nodes send.
        status_ms: How long to wait for the status of the nodes.
        on_bytes: Gets a replica group and the bytes that came since the last call.
        skipped: Gets an error for each damaged file of an earlier backup, which is taken again.

    Raises:
        InvalidArgumentError: No such replica group or node, or the backups in ``to`` are of another cluster.
        UnreachableError, NotReadyError: No replica group could be read.
        PermissionDeniedError: The user may not administer the cluster.
        StorageFailedError, StorageFullError: ``to`` cannot be written.
    """
    repository = open_repository(to)
    described = await admin.describe_cluster()
    chosen = _chosen(await admin.cluster_status(nodes=await nodes(described), timeout_ms=status_ms), groups, from_node)
    repository.make(described.name)
    backup_id, begun_ms = new_id(repository.ids()), SystemClock().wall_ms()
    taken: dict[str, Taken] = {}
    unanswered: dict[str, DledgerError] = {}
    for status in chosen:
        name, before = status.name, newest_of(repository, status.name, skipped)
        taker = GroupTaker(repository, backup_id, name, before, bytes_per_s, partial(on_bytes, name), skipped)
        try:
            taken[name] = await taker.take(sources(described.name, status, from_node))
        except (UnreachableError, NotReadyError) as error:
            unanswered[name] = error
    if not taken:
        raise next(iter(unanswered.values()))
    manifest = manifest_of(backup_id, described.name, begun_ms, taken)
    repository.add_whole(manifest)
    return ClusterBackup(manifest, taken, unanswered)


def _chosen(found: list[ReplicaGroupStatus], groups: Sequence[str], from_node: str) -> list[ReplicaGroupStatus]:
    names = [status.name for status in found]
    unknown = [name for name in groups if name not in names]
    if unknown:
        raise InvalidArgumentError(f"no replica group {unknown[0]!r}; this cluster has {', '.join(names)} (--replica-group)")
    chosen = [status for status in found if not groups or status.name in groups]
    if from_node:
        chosen = [status for status in chosen if status.is_member(from_node)] or chosen
    return chosen
