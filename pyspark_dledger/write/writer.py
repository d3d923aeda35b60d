"""Batch and streaming writers: one message per row, stored exactly once.

Tasks stage their rows in the staging topic, where consumers of the target topics do not see them.  The driver's commit
publishes the rows of the successful attempts.  Rows of failed or speculative attempts are never published and expire
with the staging topic's retention.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from dledger_client import Admin, Message, Producer, PullConsumer
from dledger_client.aio.consumer import PullConsumer as AsyncPullConsumer
from dledger_client.cluster.routes import TopicQueues
from dledger_client.producer.delivery_report import SendFuture
from dledger_client.producer.idempotent_writer import IdempotentWriter
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.checksum import crc32c
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, TopicNotFoundError, TopicPermissionError, UnreachableError
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.status import Perm
from pyspark_dledger.options.access import AccessOptions
from pyspark_dledger.options.model import WriteOptions
from pyspark_dledger.per_process import PerProcess
from pyspark_dledger.user_errors import concise_errors
from pyspark_dledger.write.publisher import CONTROL_QUEUE, UNNAMED_JOB, Published, Publisher, StagedRange, WriteName
from pyspark_dledger.write.staged_batches import MAX_BODY_BYTES, FrameStamp, RowBatcher, TargetQueue, check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

T = TypeVar("T")

STAGING_QUEUES = 9  # the control queue and eight for rows
STAGING_QUEUES_A_GROUP = 3  # at least, with several replica groups
PIECE_BYTES = 256 << 10
METADATA_TIMEOUT_MS = 15_000


@dataclass(frozen=True, slots=True)
class StagingTopic:
    """The staging topic: the replica group of its control queue and its queue count there, and the queues for rows, as
    (replica group, queue id), of all groups that answered.
    """

    topic: str
    group: str
    queues: int
    places: tuple[tuple[str, int], ...] = ()

    def place(self, partition: int) -> tuple[str, int]:
        """The queue for the rows of a task."""
        places = self.places or tuple((self.group, number) for number in range(CONTROL_QUEUE + 1, self.queues))
        return places[partition % len(places)]


@dataclass
class StagedTask(WriterCommitMessage):
    """A task's report to the driver; ``staged`` is None if it had no rows."""

    query_id: str
    staged: StagedRange | None


def prepare(schema: StructType, options: WriteOptions, *, overwrite: bool) -> StagingTopic:
    """Check everything that can be checked before a job starts; create the staging topic if it is missing."""
    if overwrite:
        raise InvalidArgumentError("mode overwrite (complete): messages cannot be overwritten; expected mode append")
    check_schema(schema, options.topic)
    with PullConsumer(
        options.bootstrap, timeout_ms=min(METADATA_TIMEOUT_MS, options.send_timeout_ms), **options.access.client()
    ) as consumer:
        if options.topic:
            writable_queues(consumer, options.topic)
        with Admin(options.bootstrap, timeout_ms=min(METADATA_TIMEOUT_MS, options.send_timeout_ms), **options.access.client()) as admin:
            try:
                found = consumer.topic(options.staging_topic)
            except TopicNotFoundError:
                create_staging(admin, options.staging_topic, len(consumer.replicas()))
                found = consumer.topic(options.staging_topic)
            silent = admin.topic_offsets(options.staging_topic, partial=True).unanswered
    return staging_of(options.staging_topic, found, silent)


def create_staging(admin: Admin, topic: str, groups: int) -> None:
    """Create the staging topic over all replica groups, without those that do not answer."""
    queues = max(STAGING_QUEUES, STAGING_QUEUES_A_GROUP * groups)
    try:
        admin.create_topic(topic, queues=queues, if_not_exists=True)
    except (NotLeaderError, UnreachableError):
        silent = admin.list_topics(partial=True).unanswered
        alive = sorted(group.name for group in admin.describe_cluster().replica_groups if group.name not in silent)
        if not silent or not alive:
            raise
        admin.create_topic(topic, queues=queues, replica_groups=alive, if_not_exists=True)


def staging_of(topic: str, found: Sequence[TopicQueues], silent: Collection[str]) -> StagingTopic:
    """The control queue is queue 0 of the first replica group by name, whichever answer: an application must find its
    manifest again.  Queue 0 of the others stays empty.
    """
    parts = sorted(found, key=lambda part: part.replica_group)
    first = parts[0]
    if first.replica_group in silent:
        raise NotLeaderError(
            f"staging topic {topic}: its control queue is in {first.replica_group}, which has no leader", leader_address=""
        )
    places = [
        (part.replica_group, number)
        for number in range(CONTROL_QUEUE + 1, max(part.write_queues for part in parts))
        for part in parts
        if number < part.write_queues and part.perm & Perm.WRITE and part.replica_group not in silent
    ]
    if not places:
        queues = sum(part.write_queues for part in parts)
        raise InvalidArgumentError(f"staging topic {topic} has {queues} queue; expected at least 2 in a replica group that has a leader")
    return StagingTopic(topic, first.replica_group, first.write_queues, tuple(places))


def writable_queues(consumer: PullConsumer, topic: str) -> list[TargetQueue]:
    """The writable queues of a topic.  Raises TopicNotFoundError, TopicPermissionError."""
    found = sorted(consumer.topic(topic), key=lambda queues: queues.replica_group)
    queues = [TargetQueue(q.replica_group, topic, number) for q in found if q.perm & Perm.WRITE for number in range(q.write_queues)]
    if not queues:
        raise TopicPermissionError(f"topic {topic}: writing is not permitted (perm {found[0].perm})", topic=topic, perm=found[0].perm)
    return queues


@concise_errors
class BatchWriter(DataSourceArrowWriter):
    """Writer of one batch; created on the driver, ``write`` runs in tasks."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        self._options = options
        self._staging = prepare(schema, options, overwrite=overwrite)
        application = f"txn:{options.application}" if options.application else f"{UNNAMED_JOB}{uuid.uuid4().hex}"
        self._write = WriteName(application, options.version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._staging, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_write(self._options, self._staging, self._write, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: staged rows that no manifest names are never published."""


@concise_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """Sink of one streaming query; Spark creates a new one for each micro-batch."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if options.application:
            raise InvalidArgumentError("options txnAppId, txnVersion: not allowed in a streaming query, which has its own id")
        self._options = options
        self._staging = prepare(schema, options, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._staging, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        queries = {message.query_id for message in messages if isinstance(message, StagedTask)} - {""}
        if len(queries) > 1:
            raise InvalidArgumentError(f"one micro-batch with tasks of several queries: {', '.join(sorted(queries))}")
        # If Spark does not pass the query id to tasks, the checkpoint location identifies the query.
        application = queries.pop() if queries else f"checkpoint:{self._options.checkpoint}"
        commit_write(self._options, self._staging, WriteName(f"query:{application}", batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: staged rows that no manifest names are never published."""


def stage(options: WriteOptions, staging: StagingTopic, batches: Iterator[pa.RecordBatch]) -> StagedTask:
    """Stage the rows of one task and wait for acknowledgements."""
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    query_id = (context.getLocalProperty("sql.streaming.queryId") or "") if context is not None else ""
    clients = _Clients.of_this_process(options)
    targets = _Targets(clients.consumer)
    batcher = RowBatcher(clients.maker, targets.queues_of, options.topic, partition, targets.max_body_bytes_of)
    sender = _StagingSender(clients.producer, staging.topic, staging.place(partition))
    for batch in batches:
        for staged in batcher.add(batch):
            sender.add(staged)
    for staged in batcher.finish():
        sender.add(staged)
    return StagedTask(query_id, sender.finish(batcher.rows) if batcher.rows else None)


class _Targets:
    """What a task knows of the topics it writes to; each is asked for once."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer
        self._queues: dict[str, list[TargetQueue]] = {}
        self._limits: dict[str, int] = {}

    def queues_of(self, topic: str) -> Sequence[TargetQueue]:
        if topic not in self._queues:
            self._queues[topic] = writable_queues(self._consumer, topic)
        return self._queues[topic]

    def max_body_bytes_of(self, topic: str) -> int:
        if topic not in self._limits:
            told = [queues.max_message_bytes for queues in self._consumer.topic(topic) if queues.max_message_bytes]
            self._limits[topic] = min(told, default=MAX_BODY_BYTES)
        return self._limits[topic]


class _StagingSender:
    """Sends the staged batches of one task as messages with one tag to one queue."""

    def __init__(self, producer: Producer, topic: str, place: tuple[str, int]) -> None:
        self._producer, self._topic, self._place = producer, topic, place
        self._tag = uuid.uuid4().hex[:16]
        self._sent: list[SendFuture] = []
        self._rest = bytearray()
        self._crc = self._size = 0

    def add(self, staged: bytes) -> None:
        self._rest += staged
        while len(self._rest) >= PIECE_BYTES:
            self._send(bytes(self._rest[:PIECE_BYTES]))
            del self._rest[:PIECE_BYTES]

    def _send(self, piece: bytes) -> None:
        self._crc, self._size = crc32c(piece, value=self._crc), self._size + len(piece)
        self._sent.append(self._producer.send_async(Message(self._topic, piece, tags=self._tag), queue_id=self._place))

    def finish(self, rows: int) -> StagedRange:
        """Send the rest and wait for all acknowledgements."""
        if self._rest:
            self._send(bytes(self._rest))
        self._producer.flush()
        placed = [future.result() for future in self._sent]
        first, last = placed[0].queue_offset, placed[-1].queue_offset
        return StagedRange(*self._place, first, last + 1, self._tag, rows, self._size, self._crc)


class _Clients:
    """Clients of a worker process, reused by its tasks: brokers keep state per producer."""

    _kept: ClassVar[PerProcess[tuple[str, int, AccessOptions], _Clients]] = PerProcess()

    def __init__(self, options: WriteOptions) -> None:
        access = options.access.client()
        self.producer = Producer(
            options.bootstrap, group="spark", send_timeout_ms=options.send_timeout_ms, compress_type="none", **access
        )
        self.consumer = PullConsumer(options.bootstrap, timeout_ms=options.send_timeout_ms, **access)
        self.maker = frame_stamp(options)

    @classmethod
    def of_this_process(cls, options: WriteOptions) -> _Clients:
        return cls._kept.get((options.bootstrap, options.send_timeout_ms, options.access), lambda: cls(options))


def frame_stamp(options: WriteOptions) -> FrameStamp:
    """Ids, host and clock of this process."""
    environment = environment_for(options.bootstrap, **options.access.client())
    return FrameStamp(environment.unique_ids(), pack_host(environment.address), environment.clock.wall_ms)


def commit_write(
    options: WriteOptions, staging: StagingTopic, write: WriteName, messages: Sequence[WriterCommitMessage | None]
) -> Published:
    """Publish what the successful tasks staged, or complete an earlier attempt, which may have had other rows."""
    parts = [message.staged for message in messages if isinstance(message, StagedTask) and message.staged is not None]
    if not parts and not write.may_be_repeated:
        return Published(0, resumed=False)

    return with_publisher(options, staging, lambda publisher, _control: publisher.publish(write, parts))


def with_publisher(options: WriteOptions, staging: StagingTopic, work: Callable[[Publisher, AsyncPullConsumer], Awaitable[T]]) -> T:
    """Run ``work`` with a publisher and a consumer that reads from leaders; close both."""

    async def run() -> T:
        access = options.access.client()
        environment = environment_for(options.bootstrap, **access)
        router = environment.open_router(options.bootstrap)
        timeout_ms = options.send_timeout_ms
        control = AsyncPullConsumer(options.bootstrap, timeout_ms=timeout_ms, **access)
        staged = AsyncPullConsumer(options.bootstrap, read_from="follower", timeout_ms=timeout_ms, **access)
        try:
            async with control, staged, IdempotentWriter(router, timeout_ms=timeout_ms) as sender:
                publisher = Publisher(control, staged, sender, frame_stamp(options), staging.topic, staging.group)
                return await work(publisher, control)
        finally:
            await router.close()

    return LoopThread.shared().run(run())
