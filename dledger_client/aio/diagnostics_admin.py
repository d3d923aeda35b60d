"""The cause of something looked for: changes of leader, traffic, nodes from within, their logs, messages that wait for their time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from dledger_client.admin.ask_nodes import known_nodes
from dledger_client.admin.calls import ClusterCalls, Listed, Request, Response, Sources, Subject
from dledger_client.admin.diagnostics import (
    DataFiles,
    DelayLevel,
    LeaderChange,
    LogLevel,
    LogLine,
    LogTail,
    NodeConnections,
    NodeDetails,
    NodeTraffic,
    OpenConnection,
    TopicCounts,
    WaitingDelays,
    WaitingMessage,
)
from dledger_client.aio.cluster_admin import ClusterAdmin
from dledger_client.cluster.responses import object_of, refusals
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_wire._pb import diagnostics_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import UnaryMethod

NODE_TIMEOUT_S = 5.0
# Which account of a change is taken first: that of a node that knows why it came, before those that only learned of it.
_BEST_KIND = {"transfer": 0, "election": 1, "start": 2, "followed": 3}


class DiagnosticsAdmin(Subject):
    """Looking into a cluster; use ``Admin``."""

    async def topic_traffic(self) -> list[NodeTraffic]:
        """What every node that answers stored and gave to readers since its start, by topic.

        Examples:
            >>> before = {node.node: node.topics for node in await admin.topic_traffic()}
        """
        addresses = await all_addresses(self._calls)
        answers = await answers_at(self._calls, addresses, methods.TOPIC_TRAFFIC, diagnostics_pb2.TopicTrafficRequest())
        found = [NodeTraffic(each.group, each.node, each.started_at_ms, _counts(each.topics)) for each in answers]
        return sorted(found, key=lambda node: (node.replica_group, node.node))

    async def leader_history(self, replica_group: str = "") -> list[LeaderChange]:
        """Changes of leader, oldest first, and why each of them came; what the nodes that answer say, merged.

        Args:
            replica_group: Only this group of nodes.  Default: all.

        Examples:
            >>> for change in await admin.leader_history():
            ...     print(change.term, change.leader, change.took_ms, change.reason)
        """
        known = known_nodes(await self._calls.replica_groups())
        if replica_group:
            name = (await self._calls.replica_group(replica_group)).name
            known = {name: known.get(name, {})}
        addresses = [address for nodes in known.values() for address in nodes.values()]
        request = diagnostics_pb2.LeaderHistoryRequest()
        answers = await answers_at(self._calls, addresses, methods.LEADER_HISTORY, request)
        collected: dict[tuple[str, int, str], list[tuple[str, diagnostics_pb2.LeaderChange]]] = {}
        for answer in answers:
            for change in answer.changes:
                collected.setdefault((answer.group, change.term, change.leader), []).append((answer.node, change))
        merged = [_merged(group, accounts) for (group, _term, _leader), accounts in collected.items()]
        return _with_previous(sorted(merged, key=lambda change: (change.replica_group, change.term)))

    async def node_details(self, node: str) -> NodeDetails:
        """What a node holds, uses and is set to: memory, disk, files by kind, settings without secrets, versions.

        Args:
            node: The node, by id or address.

        Examples:
            >>> print((await admin.node_details("n1")).disk_free_bytes)
        """
        address = await _address_of(self._calls, node)
        found = await methods.NODE_DETAILS.call(
            self._calls.router.channel(address), diagnostics_pb2.NodeDetailsRequest(), timeout_s=_timeout_s(self._calls)
        )
        return object_of(
            NodeDetails,
            found,
            replica_group=found.group,
            id=found.node,
            files=tuple(DataFiles(each.kind, each.count, each.bytes, each.oldest_ms) for each in found.files),
            settings={each.name: each.value for each in found.settings},
            versions=dict(found.versions),
            connections=dict(found.connections),
        )

    async def connections(self, node: str = "", max_connections: int = 100) -> list[NodeConnections]:
        """The connections that nodes have accepted, which of them are held up, and by what.

        Args:
            node: Only this node, by id or address.  Default: all that answer.
            max_connections: How many of each node at most; those that wait come first.

        Raises:
            PermissionDeniedError: The caller does not administer the cluster.

        Examples:
            >>> for found in await admin.connections():
            ...     print(found.node, found.states, [each.waits_for for each in found.connections])
        """
        within(1, MAX_U32, max_connections=max_connections)
        addresses = [await _address_of(self._calls, node)] if node else await all_addresses(self._calls)
        request = diagnostics_pb2.ConnectionsRequest(max_connections=max_connections)
        answers = await answers_at(self._calls, addresses, methods.CONNECTIONS, request)
        found = [
            NodeConnections(each.group, each.node, dict(each.states), tuple(object_of(OpenConnection, row) for row in each.connections))
            for each in answers
        ]
        return sorted(found, key=lambda each: (each.replica_group, each.node))

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
        within(1, MAX_U32, lines=lines)
        within(0, MAX_OFFSET, after=after)
        address = await _address_of(self._calls, node)
        request = diagnostics_pb2.LogTailRequest(lines=lines, level=level or "", after=after)
        found = await methods.LOG_TAIL.call(self._calls.router.channel(address), request, timeout_s=_timeout_s(self._calls))
        collected = tuple(
            LogLine(line.number, line.at_ms, line.level, line.event, line.text, line.logger, dict(line.fields)) for line in found.lines
        )
        return LogTail(found.node, collected, found.newest)

    async def waiting_delays(self, max_messages: int = 100) -> Listed[WaitingDelays]:
        """The messages that wait for their time, one result a replica group; followers answer where they can.

        Args:
            max_messages: How many messages of each group to list.

        Examples:
            >>> print([(waiting.delayed, waiting.timed) for waiting in await admin.waiting_delays()])
        """
        within(1, MAX_U32, max_messages=max_messages)
        request, sources = diagnostics_pb2.WaitingDelaysRequest(max_messages=max_messages), Sources()
        aside = self._calls.at_followers()  # counting takes a while
        answers = await self._calls.of_all(lambda group: aside.read(group, methods.WAITING_DELAYS, request, sources))
        return Listed([_waiting(answer) for answer in answers.some().values()], answers.unanswered, sources)


def _counts(rows: Iterable[diagnostics_pb2.TopicCounts]) -> dict[str, TopicCounts]:
    return {row.topic: object_of(TopicCounts, row) for row in rows}


def _merged(group: str, accounts: list[tuple[str, diagnostics_pb2.LeaderChange]]) -> LeaderChange:
    """One change of what several nodes say of it."""
    best = min(accounts, key=lambda each: (_doubt(*each), each[0]))[1]
    return object_of(
        LeaderChange,
        best,
        replica_group=group,
        at_ms=min(change.at_ms for _node, change in accounts),
        took_ms=best.took_ms if best.HasField("took_ms") else None,
        accounts={node: change.reason for node, change in sorted(accounts, key=lambda each: each[0])},
    )


def _doubt(node: str, change: diagnostics_pb2.LeaderChange) -> tuple[bool, int, bool]:
    """Least for the new leader: it knows why it stood for election, unless it had just started.  A leader that was paused does not, though
    it may have meant to hand over."""
    elected = node == change.leader
    return not (elected and change.kind in ("transfer", "election")), _BEST_KIND.get(change.kind, 9), not elected


def _with_previous(changes: list[LeaderChange]) -> list[LeaderChange]:
    """With the leader before, where another node knew of one in between; in the order of time."""
    found: list[LeaderChange] = []
    for change in changes:
        before = found[-1] if found and found[-1].replica_group == change.replica_group else None
        found.append(replace(change, previous=before.leader) if before is not None else change)
    return sorted(found, key=lambda change: change.at_ms)


def _waiting(answer: diagnostics_pb2.WaitingDelaysReply) -> WaitingDelays:
    return object_of(
        WaitingDelays,
        answer,
        replica_group=answer.group,
        levels=tuple(object_of(DelayLevel, each) for each in answer.levels),
        messages=tuple(object_of(WaitingMessage, each) for each in answer.messages),
    )


async def _address_of(calls: ClusterCalls, node: str) -> str:
    """Of a node or a name server, by id or address.  InvalidArgumentError when there is none."""
    known = {name: address for nodes in known_nodes(await calls.replica_groups()).values() for name, address in nodes.items()}
    if node not in known and node not in known.values():
        known |= {server.id or server.address: server.address for server in await ClusterAdmin(calls).name_servers()}
    if node in known:
        return known[node]
    if node in known.values():
        return node
    raise InvalidArgumentError(f"there is no node {node!r}; known: {', '.join(sorted(known))}")


def _timeout_s(calls: ClusterCalls) -> float:
    return min(NODE_TIMEOUT_S, calls.timeout_ms / 1000)


async def all_addresses(calls: ClusterCalls) -> list[str]:
    """Of the nodes of every replica group."""
    return [address for nodes in known_nodes(await calls.replica_groups()).values() for address in nodes.values()]


async def answers_at(
    calls: ClusterCalls, addresses: Iterable[str], method: UnaryMethod[Request, Response], request: Request
) -> list[Response]:
    """What those at ``addresses`` answer, asked at once; raises why when none does."""
    answers: list[Response] = []
    problems: list[DledgerError] = []

    async def ask(address: str) -> None:
        try:
            answers.append(await method.call(calls.router.channel(address), request, timeout_s=_timeout_s(calls)))
        except DledgerError as error:
            problems.append(error)

    await asyncio.gather(*(ask(address) for address in addresses))
    if not answers:
        raise next(iter([*refusals(problems), *problems]), UnreachableError("no node was asked: none is known"))
    return answers
