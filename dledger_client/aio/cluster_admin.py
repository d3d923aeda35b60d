"""The cluster as nodes and name servers report it: status, directory, replicas compared, builds and feature levels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from dledger_client.admin import replica_comparison, upgrade
from dledger_client.admin.ask_nodes import ask_nodes, known_nodes
from dledger_client.admin.calls import Subject
from dledger_client.admin.cluster_status import ClusterDescription, NodeStatus, ReplicaGroupStatus
from dledger_client.admin.directory import NODE_TIMEOUT_S, ClusterDirectory, directory_of, group_of_nodes
from dledger_client.admin.name_servers import NameServerStatus, status_of
from dledger_client.admin.replica_comparison import ReplicaComparison
from dledger_client.admin.upgrade import RaisedLevel, UpgradeCheck
from dledger_client.cluster.responses import refusals
from dledger_client.runtime.argument_ranges import MAX_U32, within
from dledger_wire._pb import admin_pb2, routes_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods


class ClusterAdmin(Subject):
    """The state of a cluster; use ``Admin``."""

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's name and its replica groups, as the first node that answers knows them.

        Examples:
            >>> print([group.name for group in (await admin.describe_cluster()).replica_groups])
        """
        groups = await self._calls.replica_groups()
        return ClusterDescription(self._calls.router.cache.cluster, tuple(groups[name] for name in sorted(groups)))

    async def status(self) -> list[NodeStatus]:
        """What every node reports of itself: role, term, log indexes, disk, process.  A node has one second to answer.

        Examples:
            >>> leaders = [node.id for node in await admin.status() if node.role == "leader"]
        """
        return [node for group in await self.cluster_status(timeout_ms=1000) for node in group.nodes if node.configured]

    async def cluster_status(
        self, *, nodes: Mapping[str, Mapping[str, str]] | None = None, timeout_ms: int = 2000
    ) -> list[ReplicaGroupStatus]:
        """The state of every replica group: leader, members, which voters acknowledge, lag, health.

        Args:
            nodes: The nodes to ask, replica group -> node id -> address.  Default: those the cluster knows.  With ``nodes`` the call
                does not fail when no node answers.
            timeout_ms: How long to wait for a node, in milliseconds.

        Raises:
            AuthenticationFailedError: Every node that answered refused to let this client in.
            PermissionDeniedError: The user may not describe the cluster.

        Examples:
            >>> for group in await admin.cluster_status():
            ...     print(group.name, group.healthy, [group.lag(node) for node in group.nodes])
        """
        known = nodes if nodes is not None else known_nodes(await self._calls.replica_groups())
        return await ask_nodes(self._calls.router, known, timeout_ms / 1000)

    async def compare_replicas(
        self,
        *,
        nodes: Mapping[str, Mapping[str, str]] | None = None,
        on_progress: Callable[[ReplicaComparison], object] | None = None,
    ) -> list[ReplicaComparison]:
        """Compare the replicas of every group by the checksums of their committed segments, while they serve.

        Args:
            nodes: The nodes to compare, replica group -> node id -> address.  Default: those the cluster knows.
            on_progress: Called with each replica group that is done.

        Raises:
            UnreachableError: No node of a replica group answers.

        Examples:
            >>> assert all(group.equal for group in await admin.compare_replicas())
        """
        found = []
        for group in await self.cluster_status(nodes=nodes):
            found.append(await replica_comparison.compare_replicas(self._calls, group))
            if on_progress is not None:
                on_progress(found[-1])
        return found

    async def directory(self) -> ClusterDirectory:
        """All replica groups with their nodes, leaders, labels, rates and states, from one call to a name server.

        Returns:
            What the name server knows; what the nodes say of themselves while no name server knows of all replica groups.

        Examples:
            >>> print([(group.name, group.state, group.leader_id) for group in (await admin.directory()).groups])
        """
        router = self._calls.router
        try:
            reply = await router.directory()
        except DledgerError:
            reply = routes_pb2.DirectoryReply()
        directory, named = directory_of(reply), {group.name for group in reply.groups}
        if reply.complete:
            return directory
        others = {name: group for name, group in (await self._calls.replica_groups()).items() if name not in named}
        if not others and named:
            return directory
        # A group that does not answer is one whose members are missing: nothing waits for it.
        found = await ask_nodes(router, known_nodes(others), NODE_TIMEOUT_S)
        groups = sorted((*directory.groups, *map(group_of_nodes, found)), key=lambda group: group.name)
        return ClusterDirectory(directory.cluster or router.cache.cluster, tuple(groups), directory.spares, from_name_server=False)

    async def name_servers(self) -> list[NameServerStatus]:
        """What each name server of the cluster says of itself; the nodes that run the name service where there are no others.

        Returns:
            One status for each, those that do not answer too.

        Examples:
            >>> print([(server.id, server.complete) for server in await admin.name_servers()])
        """
        addresses = await self._calls.router.name_server_addresses()
        errors: list[DledgerError] = []
        found = list(await asyncio.gather(*(status_of(self._calls, address, errors) for address in addresses)))
        if not any(server.reachable for server in found):
            for refusal in refusals(errors):
                raise refusal
        return found

    async def upgrade_check(self, *, nodes: Mapping[str, Mapping[str, str]] | None = None, timeout_ms: int = 2000) -> UpgradeCheck:
        """Whether the nodes can be upgraded or downgraded now, one by one, to the build of this client.

        Args:
            nodes: The nodes to ask, replica group -> node id -> address.  Default: those the cluster knows.
            timeout_ms: How long to wait for a node, in milliseconds.

        Returns:
            The build and the feature levels of every node, what would be switched on, and what speaks against stopping a node now.

        Examples:
            >>> print((await admin.upgrade_check()).problems)
        """
        return upgrade.check(await self.cluster_status(nodes=nodes, timeout_ms=timeout_ms), self._calls.router.clock.wall_ms())

    async def finish_upgrade(self, replica_group: str = "", *, level: int = 0, timeout_ms: int = 2000) -> list[RaisedLevel]:
        """Raise the feature level, so that what the new release brings is switched on.  Older builds are refused from then on.

        Args:
            replica_group: The group of nodes. Default: all.
            level: The level to raise it to. Default: the highest that every member can do.
            timeout_ms: How long to wait for a node, in milliseconds.

        Returns:
            What became of each replica group; a group that is at the level already stays there.

        Raises:
            NotReadyError: A member is away, or its build cannot do the level; nothing was changed in its replica group.

        Examples:
            >>> print([(raised.replica_group, raised.level) for raised in await admin.finish_upgrade()])
        """
        within(0, MAX_U32, level=level)
        if replica_group:
            await self._calls.replica_group(replica_group)
        groups = await self.cluster_status(timeout_ms=timeout_ms)
        raised = []
        for group in groups:
            if replica_group in ("", group.name):
                request = admin_pb2.RaiseFeatureLevelRequest(level=level)
                # Repeated after an attempt with an unknown outcome, it finds the level raised, and asks for nothing more.
                reply = await self._calls.ask_leader(group.name, methods.RAISE_FEATURE_LEVEL, request, again=request)
                raised.append(RaisedLevel(group.name, reply.old_level, reply.level, reply.release))
        return raised
