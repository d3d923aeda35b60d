"""What ``Admin`` returns for finding a cause: traffic, changes of leader, details of a node, its log, messages that wait for their time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error", "critical"]


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
        kind: ``election``, ``transfer``, ``start``, or ``followed`` when only nodes that learned of it from the new leader report it.
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
class OpenConnection:
    """A connection that a node has accepted.

    Attributes:
        peer: Address of its other side.
        user: Whose it is, where callers authenticate.
        kind: ``produce``, ``fetch``, ``link`` (of another node), ``calls`` or ``grpc``; of another stream its method.
        state: ``running``; ``flow``: it waits, or did so in the last 5 s; ``blocked``: the node takes no messages of it.
        waits_for: ``memory``: room to read its next message; of a producer ``disk``, ``follower`` and its id, ``apply`` or ``log``,
            where its messages wait; ``handler``: its requests wait to be processed; ``reader``: it does not read its answers;
            empty: nothing.
        received_bytes: Bytes that are at the node and not processed, and credit for more.
        unsent_bytes: Bytes that it has not read.
        open_ms: How long it has been open, in milliseconds.
    """

    peer: str
    user: str
    kind: str
    state: str
    waits_for: str
    received_bytes: int
    unsent_bytes: int
    open_ms: int


@dataclass(frozen=True, slots=True)
class NodeConnections:
    """The connections that a node has accepted.

    Attributes:
        replica_group: The group of nodes it belongs to.
        node: The node's id.
        states: How many connections there are in each state.
        connections: Those that wait first, then by the bytes that are held of them.
    """

    replica_group: str
    node: str
    states: Mapping[str, int] = field(hash=False)
    connections: tuple[OpenConnection, ...]


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
