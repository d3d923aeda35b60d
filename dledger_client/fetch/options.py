"""What a caller may say of a read: the options of the methods that read, and the frozen objects that they become.

Owns the options' documentation, defaults and limits, once for all methods and both faces of the clients.  The objects check themselves,
and make the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, TypedDict

from dledger_client.fetch.long_read import ANSWER_BYTES
from dledger_client.fetch.subscription import Subscription
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_client.runtime.security import SecuritySettings
from dledger_wire._pb import broker_pb2

ARROW_BYTES = 16 << 20  # of one table

Positions = Mapping[tuple[str, int], int]


class PullSettings(SecuritySettings, total=False):
    """Settings of a consumer that reads by offset, with those of ``SecuritySettings``.

    Attributes:
        read_from: ``leader``, ``follower`` (the leader only when no follower responds) or ``any``. Default: ``leader``.
        replica: Id of the one node to read from.
        near: Host names or addresses; replicas on them are tried first.
        local_files: Read the log files of replicas on the hosts ``near`` directly, where this process may. Default: False.
        repair: A replica repairs a damaged message from another one; False: another is read, with ``replica`` CorruptFrameError is raised.
            Default: True.
        read_ahead: When fetches read a queue on piece by piece, the next piece is fetched while the caller works on one. Up to 32 MiB are
            kept, for a second. Default: True.
        timeout_ms: How long each operation is tried over all replicas, in milliseconds. Default: 10 000.
    """

    read_from: str
    replica: str | None
    near: frozenset[str]
    local_files: bool
    repair: bool
    read_ahead: bool
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class PullOptions:
    """The settings of one consumer, checked."""

    read_from: str = "leader"
    replica: str | None = None
    near: frozenset[str] = frozenset()
    local_files: bool = False
    repair: bool = True
    read_ahead: bool = True
    timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        within(1, MAX_U32, timeout_ms=self.timeout_ms)

    @classmethod
    def split(cls, settings: PullSettings) -> tuple[PullOptions, SecuritySettings]:
        """The options among the settings, and the others."""
        own: Any = {name: value for name, value in settings.items() if name in cls.__dataclass_fields__}
        others: Any = {name: value for name, value in settings.items() if name not in own}
        return cls(**own), others


class ReadOptions(TypedDict, total=False):
    """Which messages of a queue are read. Every method of ``PullConsumer`` that reads a queue takes these options.

    Attributes:
        replica_group: The replica group of the queue; needed when a topic is in several.
        tags: Only messages with one of these tags: ``a || b``. Chunks may hold other tags with the same hash, see ``with_tags``.
            Default: ``*``, all.
        sql: Only messages whose properties match this SQL92 filter, e.g. ``amount > 10 AND region IN ('eu', 'us')``. Default: all.
        topic_epoch: Only from this very topic, see ``QueueOffsets``; TopicNotFoundError when it was deleted, even if it was created
            again. Default: a consumer of a group continues in the topic that it read, or began to read by ``committed`` or ``offsets``;
            any other one reads what there is.
    """

    replica_group: str | None
    tags: str
    sql: str
    topic_epoch: str


class FetchOptions(ReadOptions, total=False):
    """Options of ``fetch``, ``fetch_chunks`` and ``fetch_arrow``.

    Attributes:
        max_bytes: Bytes to return at most, 0: as many as one answer has; one message is returned even if it is larger. Default: 4 MiB,
            for ``fetch_arrow`` 16 MiB.
        wait_ms: At the end of the queue, wait so many milliseconds for new messages. Default: 0.
        linearizable: Read everything that was acknowledged before the call, from the leader or from a follower that has caught up.
            Default: False.
        replica_group: See ``ReadOptions``, as the next three.
        tags: Only messages with one of these tags.
        sql: Only messages that match this filter.
        topic_epoch: Only from this very topic.
    """

    max_bytes: int
    wait_ms: int
    linearizable: bool


class RangeOptions(ReadOptions, total=False):
    """Options of ``read_chunks``.

    Attributes:
        chunk_bytes: Bytes per request. Default: 64 MiB.
        without_body: Leave out the bodies. Default: False.
        max_lag: Do not read from a follower that holds less than ``end - max_lag``. Default: read from any.
        replica_group: See ``ReadOptions``, as the next three.
        tags: Only messages with one of these tags.
        sql: Only messages that match this filter.
        topic_epoch: Only from this very topic.
    """

    chunk_bytes: int
    without_body: bool
    max_lag: int | None


class ScanOptions(TypedDict, total=False):
    """Options of ``scan_chunks`` and ``scan_arrow``.

    Attributes:
        positions: The first offset of queues, by (replica group, queue id); others begin with their oldest message.
        since_ms: They begin with their first message stored at or after this time, milliseconds since 1970.
        tags: See ``ReadOptions``.
        sql: See ``ReadOptions``.
        queues_at_once: How many queues are read side by side. Each has up to two chunks of some 2 MiB in memory; more than a few are
            slower, unless the network takes long. Default: 2.
    """

    positions: Positions | None
    since_ms: int | None
    tags: str
    sql: str
    queues_at_once: int


@dataclass(frozen=True)
class QueueRead:
    """A read of a queue from an offset on, checked."""

    topic: str
    queue_id: int
    offset: int
    _: KW_ONLY
    replica_group: str | None = None
    tags: str = "*"
    sql: str = ""
    topic_epoch: str = ""

    def __post_init__(self) -> None:
        within(0, MAX_OFFSET, offset=self.offset)
        _ = self.subscription  # which checks itself

    @cached_property
    def subscription(self) -> Subscription:
        return Subscription(self.tags, self.sql)

    def request(self, group: str, *, is_uncounted: bool) -> broker_pb2.FetchRequest:
        """For a consumer of that group."""
        return broker_pb2.FetchRequest(
            topic=self.topic,
            queue_id=self.queue_id,
            offset=self.offset,
            group=group,
            tag_hashes=self.subscription.tag_hashes,
            sql=self.sql,
            incarnation=self.topic_epoch,
            uncounted=is_uncounted,
        )


@dataclass(frozen=True)
class Fetch(QueueRead):
    """One answer's worth of a queue."""

    max_messages: int
    _: KW_ONLY
    max_bytes: int = 4 << 20
    wait_ms: int = 0
    linearizable: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        within(0, MAX_U32, max_bytes=self.max_bytes, wait_ms=self.wait_ms)
        within(1, MAX_U32, max_messages=self.max_messages)

    def request(self, group: str, *, is_uncounted: bool) -> broker_pb2.FetchRequest:
        request = super().request(group, is_uncounted=is_uncounted)
        request.max_messages, request.max_bytes, request.wait_ms = self.max_messages, self.max_bytes, self.wait_ms
        request.linearizable = bool(self.linearizable)
        return request


@dataclass(frozen=True)
class RangeRead(QueueRead):
    """Everything of a queue up to an offset."""

    end: int
    _: KW_ONLY
    chunk_bytes: int = ANSWER_BYTES
    without_body: bool = False
    max_lag: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        within(0, MAX_OFFSET, end=self.end)
        within(0, MAX_U32, chunk_bytes=self.chunk_bytes)

    def request(self, group: str, *, is_uncounted: bool) -> broker_pb2.FetchRequest:
        request = super().request(group, is_uncounted=is_uncounted)
        request.max_bytes, request.without_body = self.chunk_bytes, self.without_body
        return request


@dataclass(frozen=True)
class Scan:
    """A read of a whole topic."""

    positions: Positions | None = None
    since_ms: int | None = None
    tags: str = "*"
    sql: str = ""
    queues_at_once: int = 2

    def __post_init__(self) -> None:
        Subscription(self.tags, self.sql)
