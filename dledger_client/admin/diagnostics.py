"""What nodes tell to who looks for the cause of something: changes of leader, details, their logs, messages that wait for their time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from dledger_client.admin import name_servers
from dledger_client.admin.ask_nodes import known_nodes
from dledger_client.admin.calls import ClusterCalls, Listed, Request, Response, Sources
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_wire._pb import diagnostics_pb2
from dledger_wire.errors import AuthenticationFailedError, DledgerError, InvalidArgumentError, PermissionDeniedError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import UnaryMethod

NODE_TIMEOUT_S = 5.0
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
# Whose account of a change is taken first: who knows why it came, before who only learned of it.
_BEST_KIND = {"transfer": 0, "election": 1, "start": 2, "followed": 3}


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """What a node counted for one topic since its start.

    Attributes:
        messages_in: Messages it stored as master.
        bytes_in: Their bytes, as they are stored.
        messages_out: Messages it gave to consumers; what an ``Admin`` reads does not count.
        bytes_out: Their bytes.
    """

    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class NodeTraffic:
    """The traffic of one node, for rates: the difference of two answers with the same ``started_at_ms``.

    Attributes:
        replica_group: The group of nodes it belongs to.
        node: The node's id.
        started_at_ms: When it began to count, milliseconds since 1970.
        topics: Topic -> what was counted; topics without traffic, and those that the caller may not describe, are missing.
    """

    replica_group: str
    node: str
    started_at_ms: int
    topics: Mapping[str, TopicCounts] = field(hash=False)


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """A leader that a replica group got.

    Attributes:
        replica_group: The group of nodes.
        term: Its Raft term.
        leader: Id of the leader.
        previous: Id of the leader before it; empty when none is known.
        at_ms: When it was known first, milliseconds since 1970.
        took_ms: How long there was no leader, in milliseconds, as the new leader saw it; None when that is not known.
        kind: ``election``, ``transfer``, ``start``, or ``followed`` when only nodes that learned of it from the new leader tell of it.
        cause: One word for programs, such as ``silent``, ``link_lost``, ``stopping`` or ``disk_full``.
        reason: Why it came, as a sentence.
        accounts: What each node says of it, by node id.
    """

    replica_group: str
    term: int
    leader: str
    previous: str
    at_ms: int
    took_ms: int | None
    kind: str
    cause: str
    reason: str
    accounts: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The files of one kind in a node's data folder.

    Attributes:
        kind: The folder's name; ``other`` for the files beside the folders.
        count: How many.
        size_bytes: Their bytes.
        oldest_ms: When the one written longest ago was written, milliseconds since 1970; 0 when that is not known.
    """

    kind: str
    count: int
    size_bytes: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class NodeDetails:
    """What a node holds, uses and is set to.

    Attributes:
        replica_group: The group of nodes it belongs to.
        id: The node's id.
        rss_bytes: Resident memory of its process.
        anonymous_bytes: Of that, memory that is not mapped from files.
        machine_memory_bytes: Memory of its machine.
        cpu_s: Processor time its process has used, in seconds.
        disk_free_bytes: What may still be written to its disk.
        disk_total_bytes: Size of its disk.
        started_at_ms: Start of the process, milliseconds since 1970.
        data_folder: Its data folder, as its machine names it.
        files: Its files by kind.
        settings: The settings in force, by their names in the cluster file; no secrets.
        versions: Versions of dledger, Python and libraries.
        connections: Open connections by kind.
    """

    replica_group: str
    id: str
    rss_bytes: int
    anonymous_bytes: int
    machine_memory_bytes: int
    cpu_s: float
    disk_free_bytes: int
    disk_total_bytes: int
    started_at_ms: int
    data_folder: str
    files: tuple[DataFiles, ...]
    settings: Mapping[str, str] = field(hash=False)
    versions: Mapping[str, str] = field(hash=False)
    connections: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a node's log.

    Attributes:
        number: Rises by one a line, also over restarts of the process.
        at_ms: When, milliseconds since 1970.
        level: ``debug``, ``info``, ``warning``, ``error`` or ``critical``.
        event: Stable name of the event; empty when it has none.
        text: What it says.
        logger: Name of the module that wrote it.
        fields: What is bound to it, such as ``term``.
    """

    number: int
    at_ms: int
    level: str
    event: str
    text: str
    logger: str
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class LogTail:
    """The newest lines of a node's log.

    Attributes:
        node: Id of the node or name server.
        lines: Newest last.
        newest: Number of its newest line, for the next call.
    """

    node: str
    lines: tuple[LogLine, ...]
    newest: int


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """The messages that wait at one delay level of a replica group.

    Attributes:
        level: The level, from 1.
        delay_ms: How long messages wait at it.
        waiting: How many wait.
        next_due_ms: When the first of them is due, milliseconds since 1970; 0 when none waits or it cannot be read now.
    """

    level: int
    delay_ms: int
    waiting: int
    next_due_ms: int


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that waits for its time.

    Attributes:
        topic: Where it goes then.
        key: Its keys.
        message_id: Its id.
        due_ms: When it is due, milliseconds since 1970.
        level: Its delay level; 0 for a message with a delivery time of its own.
    """

    topic: str
    key: str
    message_id: str
    due_ms: int
    level: int


@dataclass(frozen=True, slots=True)
class WaitingDelays:
    """The messages of one replica group that wait for their time.

    Attributes:
        replica_group: The group of nodes.
        node: Id of the node that says so; what it has not applied yet is not in it.
        levels: Every delay level.
        timed: How many messages with a delivery time of their own wait.
        timed_next_due_ms: When the first of those is due, milliseconds since 1970; 0 when none waits.
        exact: False when so many wait that not all were counted; ``timed`` is the least then.
        messages: The next ones due, of topics that the caller may read.
    """

    replica_group: str
    node: str
    levels: tuple[DelayLevel, ...]
    timed: int
    timed_next_due_ms: int
    exact: bool
    messages: tuple[WaitingMessage, ...]

    @property
    def delayed(self) -> int:
        """How many messages wait at delay levels."""
        return sum(level.waiting for level in self.levels)


# Traffic


async def topic_traffic(calls: ClusterCalls) -> list[NodeTraffic]:
    """Of every node that answers, by group and id."""
    addresses = [address for nodes in known_nodes(await calls.replica_groups()).values() for address in nodes.values()]
    answers, problems = await _answers(calls, addresses, methods.TOPIC_TRAFFIC, diagnostics_pb2.TopicTrafficRequest())
    if not answers:
        raise _refusal(problems)
    found = [NodeTraffic(each.group, each.node, each.started_at_ms, _counts(each.topics)) for each in answers]
    return sorted(found, key=lambda node: (node.replica_group, node.node))


def _counts(rows: Iterable[diagnostics_pb2.TopicCounts]) -> dict[str, TopicCounts]:
    return {row.topic: TopicCounts(row.messages_in, row.bytes_in, row.messages_out, row.bytes_out) for row in rows}


# Changes of leader


async def leader_history(calls: ClusterCalls, replica_group: str) -> list[LeaderChange]:
    """Of one replica group or all, oldest first; what the nodes that answer say, one record a change."""
    known = known_nodes(await calls.replica_groups())
    if replica_group:
        name = (await calls.replica_group(replica_group)).name
        known = {name: known.get(name, {})}
    addresses = [address for nodes in known.values() for address in nodes.values()]
    request = diagnostics_pb2.LeaderHistoryRequest()
    answers, problems = await _answers(calls, addresses, methods.LEADER_HISTORY, request)
    if not answers:
        raise _refusal(problems)
    told: dict[tuple[str, int, str], list[tuple[str, diagnostics_pb2.LeaderChange]]] = {}
    for answer in answers:
        for change in answer.changes:
            told.setdefault((answer.group, change.term, change.leader), []).append((answer.node, change))
    merged = [_merged(group, accounts) for (group, _term, _leader), accounts in told.items()]
    return _with_previous(sorted(merged, key=lambda change: (change.replica_group, change.term)))


def _merged(group: str, accounts: list[tuple[str, diagnostics_pb2.LeaderChange]]) -> LeaderChange:
    """One change of what several nodes say of it."""
    best = min(accounts, key=lambda each: (_doubt(*each), each[0]))[1]
    return LeaderChange(
        replica_group=group,
        term=best.term,
        leader=best.leader,
        previous=best.previous,
        at_ms=min(change.at_ms for _node, change in accounts),
        took_ms=best.took_ms if best.HasField("took_ms") else None,
        kind=best.kind,
        cause=best.cause,
        reason=best.reason,
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


# One node


async def node_details(calls: ClusterCalls, node: str) -> NodeDetails:
    """Of one node, by id or address."""
    address = await _address_of(calls, node)
    found = await methods.NODE_DETAILS.call(
        calls.router.channel(address), diagnostics_pb2.NodeDetailsRequest(), timeout_s=_timeout_s(calls)
    )
    return NodeDetails(
        replica_group=found.group,
        id=found.node,
        rss_bytes=found.rss_bytes,
        anonymous_bytes=found.anonymous_bytes,
        machine_memory_bytes=found.machine_memory_bytes,
        cpu_s=found.cpu_s,
        disk_free_bytes=found.disk_free_bytes,
        disk_total_bytes=found.disk_total_bytes,
        started_at_ms=found.started_at_ms,
        data_folder=found.data_folder,
        files=tuple(DataFiles(each.kind, each.count, each.bytes, each.oldest_ms) for each in found.files),
        settings={each.name: each.value for each in found.settings},
        versions=dict(found.versions),
        connections=dict(found.connections),
    )


async def log_tail(calls: ClusterCalls, node: str, lines: int, level: str, after: int) -> LogTail:
    """Of one node or name server, by id or address."""
    within(1, MAX_U32, lines=lines)
    within(0, MAX_OFFSET, after=after)
    address = await _address_of(calls, node)
    request = diagnostics_pb2.LogTailRequest(lines=lines, level=level, after=after)
    found = await methods.LOG_TAIL.call(calls.router.channel(address), request, timeout_s=_timeout_s(calls))
    told = tuple(
        LogLine(line.number, line.at_ms, line.level, line.event, line.text, line.logger, dict(line.fields)) for line in found.lines
    )
    return LogTail(found.node, told, found.newest)


# Messages that wait


async def waiting_delays(calls: ClusterCalls, max_messages: int) -> Listed[WaitingDelays]:
    """By replica group, as one of its followers sees them; as its leader does when no follower answers."""
    within(1, MAX_U32, max_messages=max_messages)
    request, sources = diagnostics_pb2.WaitingDelaysRequest(max_messages=max_messages), Sources()
    aside = calls.at_followers()  # counting takes a while
    answers = await calls.of_all(lambda group: aside.read(group, methods.WAITING_DELAYS, request, sources))
    return Listed([_waiting(answer) for answer in answers.some().values()], answers.unanswered, sources)


def _waiting(answer: diagnostics_pb2.WaitingDelaysReply) -> WaitingDelays:
    return WaitingDelays(
        replica_group=answer.group,
        node=answer.node,
        levels=tuple(DelayLevel(each.level, each.delay_ms, each.waiting, each.next_due_ms) for each in answer.levels),
        timed=answer.timed,
        timed_next_due_ms=answer.timed_next_due_ms,
        exact=answer.exact,
        messages=tuple(WaitingMessage(each.topic, each.key, each.message_id, each.due_ms, each.level) for each in answer.messages),
    )


# Calls


async def _address_of(calls: ClusterCalls, node: str) -> str:
    """Of a node or a name server, by id or address.  InvalidArgumentError when there is none."""
    known = {name: address for nodes in known_nodes(await calls.replica_groups()).values() for name, address in nodes.items()}
    if node not in known and node not in known.values():
        known |= {server.id or server.address: server.address for server in await name_servers.name_servers(calls)}
    if node in known:
        return known[node]
    if node in known.values():
        return node
    raise InvalidArgumentError(f"there is no node {node!r}; known: {', '.join(sorted(known))}")


def _timeout_s(calls: ClusterCalls) -> float:
    return min(NODE_TIMEOUT_S, calls.timeout_ms / 1000)


async def _answers(
    calls: ClusterCalls, addresses: Iterable[str], method: UnaryMethod[Request, Response], request: Request
) -> tuple[list[Response], list[DledgerError]]:
    """What those at ``addresses`` answer, asked at once, and why others did not."""
    answers: list[Response] = []
    problems: list[DledgerError] = []

    async def ask(address: str) -> None:
        try:
            answers.append(await method.call(calls.router.channel(address), request, timeout_s=_timeout_s(calls)))
        except DledgerError as error:
            problems.append(error)

    await asyncio.gather(*(ask(address) for address in addresses))
    return answers, problems


def _refusal(problems: Iterable[DledgerError]) -> DledgerError:
    """Why nobody answered: a refusal of the caller says most."""
    found = list(problems)
    refusals = [error for error in found if isinstance(error, AuthenticationFailedError | PermissionDeniedError)]
    return next(iter([*refusals, *found]), UnreachableError("no node was asked: none is known"))
