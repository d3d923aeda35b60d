"""The part of ``Admin`` for who looks for the cause of something: changes of leader, nodes from within, messages that wait.

Each method delegates to ``dledger_client.admin.diagnostics``.
"""

from __future__ import annotations

from dledger_client.admin import diagnostics
from dledger_client.admin.calls import ClusterCalls, Listed
from dledger_client.admin.diagnostics import LeaderChange, LogLevel, LogTail, NodeDetails, NodeTraffic, WaitingDelays


class DiagnosticsAdmin:
    """Looking into a cluster; use ``Admin``."""

    _calls: ClusterCalls

    async def topic_traffic(self) -> list[NodeTraffic]:
        """What every node that answers stored and gave to readers since its start, by topic.

        Examples:
            >>> before = {node.node: node.topics for node in await admin.topic_traffic()}
        """
        return await diagnostics.topic_traffic(self._calls)

    async def leader_history(self, replica_group: str = "") -> list[LeaderChange]:
        """Changes of leader, oldest first, and why each of them came; what the nodes that answer say, merged.

        Args:
            replica_group: Only this group of nodes.  Default: all.

        Examples:
            >>> for change in await admin.leader_history():
            ...     print(change.term, change.leader, change.took_ms, change.reason)
        """
        return await diagnostics.leader_history(self._calls, replica_group)

    async def node_details(self, node: str) -> NodeDetails:
        """What a node holds, uses and is set to: memory, disk, files by kind, settings without secrets, versions.

        Args:
            node: The node, by id or address.

        Examples:
            >>> print((await admin.node_details("n1")).disk_free_bytes)
        """
        return await diagnostics.node_details(self._calls, node)

    async def log_tail(self, node: str, lines: int = 200, *, level: LogLevel | None = None, after: int = 0) -> LogTail:
        """The newest lines of the log of a node or name server, which keeps some in memory.

        Args:
            node: The node or name server, by id or address.
            lines: How many at most.
            level: Only lines of this level or worse.  Default: all.
            after: Only lines that came after the ``newest`` one of an earlier call.  Default: from the newest backwards.

        Raises:
            PermissionDeniedError: The caller does not administer the cluster.

        Examples:
            >>> for line in (await admin.log_tail("n1", 20, level="warning")).lines:
            ...     print(line.event, line.text)
        """
        return await diagnostics.log_tail(self._calls, node, lines, level or "", after)

    async def waiting_delays(self, max_messages: int = 100) -> Listed[WaitingDelays]:
        """The messages that wait for their time, one result a replica group; followers answer where they can.

        Args:
            max_messages: How many messages of each group to list.

        Examples:
            >>> print([(waiting.delayed, waiting.timed) for waiting in await admin.waiting_delays()])
        """
        return await diagnostics.waiting_delays(self._calls, max_messages)
