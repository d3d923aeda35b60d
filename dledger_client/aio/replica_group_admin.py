"""The part of ``Admin`` for replica groups: leaders, members, mirroring policy, groups that go.

Each method delegates to the module of its subject in ``dledger_client.admin``.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger_client.admin import directory as cluster_directory
from dledger_client.admin import membership, name_servers, replica_groups, upgrade
from dledger_client.admin.ask_nodes import ask_nodes, known_nodes
from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_client.admin.directory import ClusterDirectory
from dledger_client.admin.membership import LeaderTransfer, Membership
from dledger_client.admin.name_servers import NameServerStatus
from dledger_client.admin.replica_groups import ReplicaGroupState
from dledger_client.admin.upgrade import RaisedLevel, UpgradeCheck
from dledger_client.aio.diagnostics_admin import DiagnosticsAdmin
from dledger_client.runtime.argument_ranges import MAX_U32, within


class ReplicaGroupAdmin(DiagnosticsAdmin):
    """Administration of replica groups; use ``Admin``."""

    async def transfer_leader(self, to: str = "", *, replica_group: str = "", force: bool = False) -> LeaderTransfer:
        """Hand the leadership of a replica group over, and wait until the new leader has taken it.

        A voter that must not lead is refused: without room on its disk, with a wrong clock or an expired certificate, silent, far behind.

        Args:
            to: Id of the new leader; empty for the voter whose log is longest.
            replica_group: The group of nodes; needed when the cluster has several.
            force: Also to a voter that must not lead.

        Examples:
            >>> print((await admin.transfer_leader("n1")).took_ms)
        """
        return await membership.transfer_leader(self._calls, to, replica_group, force=force)

    async def add_member(self, node_id: str, address: str, *, replica_group: str = "") -> Membership:
        """Add a node to a replica group as a learner: it copies the log and does not vote.

        One that is a member at that address already is left as it is; ``changed`` says so.

        Args:
            node_id: Id of the new node.
            address: Its address, ``host:port``.
            replica_group: The group of nodes; needed when the cluster has several.

        Examples:
            >>> await admin.add_member("n3", "10.0.0.4:10911")
        """
        return await membership.change_member(self._calls, "add", node_id, replica_group, address=address)

    async def promote_member(self, node_id: str, *, replica_group: str = "") -> Membership:
        """Make a learner that has caught up a voter.  A voter is left as it is; ``changed`` says so.

        Args:
            node_id: Id of the learner.
            replica_group: The group of nodes; needed when the cluster has several.

        Raises:
            NotReadyError: The learner has not caught up.
            InvalidArgumentError: The node is not a member.

        Examples:
            >>> await admin.promote_member("n3")
        """
        return await membership.change_member(self._calls, "promote", node_id, replica_group)

    async def remove_member(self, node_id: str, *, replica_group: str = "") -> Membership:
        """Remove a node from its replica group.  For a node that is not a member nothing is changed; ``changed`` says so.

        Args:
            node_id: Id of the member.
            replica_group: The group of nodes; needed when the cluster has several.

        Examples:
            >>> await admin.remove_member("n2")
        """
        return await membership.change_member(self._calls, "remove", node_id, replica_group)

    async def replace_member(self, node_id: str, address: str, *, replaces: str, replica_group: str = "") -> Membership:
        """Replace a member that is lost by a new node, which copies the log first.

        Args:
            node_id: Id of the new node.
            address: Its address, ``host:port``.
            replaces: Id of the member that is lost.
            replica_group: The group of nodes; needed when the cluster has several.

        Examples:
            >>> await admin.replace_member("n3", "10.0.0.4:10911", replaces="n2")
        """
        return await membership.change_member(self._calls, "replace", node_id, replica_group, address=address, replaces=replaces)

    async def directory(self) -> ClusterDirectory:
        """All replica groups with their nodes, leaders, labels, rates and states, from one call to a name server.

        Returns:
            What the name server knows; what the nodes say of themselves while no name server knows of all replica groups.

        Examples:
            >>> print([(group.name, group.state, group.leader_id) for group in (await admin.directory()).groups])
        """
        return await cluster_directory.directory(self._calls)

    async def name_servers(self) -> list[NameServerStatus]:
        """What each name server of the cluster says of itself; the nodes that run the name service where there are no others.

        Returns:
            One status for each, those that do not answer too.

        Examples:
            >>> print([(server.id, server.complete) for server in await admin.name_servers()])
        """
        return await name_servers.name_servers(self._calls)

    async def describe_replica_group(self, replica_group: str = "") -> ReplicaGroupState:
        """State and mirroring policy of a replica group, and what keeps it from being removed.

        Args:
            replica_group: The group of nodes; needed when the cluster has several.

        Examples:
            >>> print([left.text for left in (await admin.describe_replica_group("g1")).left])
        """
        return await replica_groups.describe(self._calls, replica_group)

    async def update_replica_group(
        self, replica_group: str = "", *, voters: int | None = None, learners: int | None = None, replace_after_ms: int | None = None
    ) -> ReplicaGroupState:
        """Change the mirroring policy of a replica group; None keeps what is there.

        Args:
            replica_group: The group of nodes; needed when the cluster has several.
            voters: How many voters the group is to have, an odd number.
            learners: How many learners the group is to have.
            replace_after_ms: Replace a member that has been away for that many milliseconds by a spare node; 0: never.

        Examples:
            >>> await admin.update_replica_group("g1", learners=1, replace_after_ms=600_000)
        """
        return await replica_groups.set_policy(self._calls, replica_group, voters, learners, replace_after_ms)

    async def drain_replica_group(self, replica_group: str, *, undo: bool = False) -> ReplicaGroupState:
        """Let a replica group take no more messages and topics: producers move on to the other groups, consumers read it to the end.

        Topics that have queues in this group only get as many queues in the others first.  The call does not wait until everything is
        read: ``describe_replica_group`` says what is left.

        Args:
            replica_group: The group of nodes.
            undo: Let the group take messages again.

        Raises:
            InvalidArgumentError: It is the last group that takes messages, or its nodes serve the name service.

        Examples:
            >>> left = (await admin.drain_replica_group("g1")).left
        """
        return await replica_groups.drain(self._calls, replica_group, undo=undo)

    async def remove_replica_group(self, replica_group: str, *, discard: bool = False) -> ReplicaGroupState:
        """Remove a replica group that is drained: its nodes refuse everything from then on, and are to be stopped.

        Topics that had queues in it are told.  The call may be repeated, also when the nodes of the group are gone.

        Args:
            replica_group: The group of nodes.
            discard: Give up messages that no consumer group reads, dead letters and parked transactions.

        Raises:
            UnsafeShrinkError: Something is left in the group; the text says what.
            InvalidArgumentError: The group is not draining.

        Examples:
            >>> await admin.remove_replica_group("g1")
        """
        return await replica_groups.remove(self._calls, replica_group, discard=discard)

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
        return upgrade.check(await self._status_of(nodes, timeout_ms), self._calls.router.clock.wall_ms())

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
        groups = await self._status_of(None, timeout_ms)
        return await upgrade.finish(self._calls, [group for group in groups if replica_group in ("", group.name)], level)

    async def _status_of(self, nodes: Mapping[str, Mapping[str, str]] | None, timeout_ms: int) -> list[ReplicaGroupStatus]:
        known = nodes if nodes is not None else known_nodes(await self._calls.replica_groups())
        return await ask_nodes(self._calls.router, known, timeout_ms / 1000)
