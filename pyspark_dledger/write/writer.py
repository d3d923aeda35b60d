"""Batch and streaming writers: one message per row, stored exactly once.

Tasks stage their rows in the staging topic, where consumers of the target topics do not see them.  The driver's commit
publishes the rows of the successful attempts.  Rows of failed or speculative attempts are never published and expire
with the staging topic's retention.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from dledger_client import Admin, Producer, PullConsumer
from dledger_client.aio.consumer import PullConsumer as AsyncPullConsumer
from dledger_client.producer.idempotent_writer import IdempotentWriter
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from pyspark_dledger.options.access import AccessOptions
from pyspark_dledger.options.model import METADATA_TIMEOUT_MS, WriteOptions
from pyspark_dledger.per_process import PerProcess, freeze_loaded
from pyspark_dledger.user_errors import concise_errors
from pyspark_dledger.write.publisher import QUERY, UNNAMED_JOB, Published, Publisher, StagedRange, WriteName
from pyspark_dledger.write.staged_batches import RowBatcher
from pyspark_dledger.write.staging_sender import StagingSender
from pyspark_dledger.write.staging_topic import StagingTopic, create_staging, staging_of
from pyspark_dledger.write.targets import Targets, check_write, driver_consumer, frame_stamp, writable_queues

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

T = TypeVar("T")


@dataclass
class StagedTask(WriterCommitMessage):
    """A task's report to the driver: what it staged for each replica group, and the topics of its rows."""

    query_id: str
    staged: list[StagedRange]
    topics: frozenset[str] = frozenset()


def prepare(schema: StructType, options: WriteOptions, *, overwrite: bool) -> StagingTopic:
    """Check everything that can be checked before a job starts; create the staging topic if it is missing."""
    check_write(schema, options.topic, overwrite=overwrite)
    with driver_consumer(options) as consumer:
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
        if options.direct:
            raise InvalidArgumentError("option writeMode: direct is for batch writes; expected staged in a streaming query")
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
        commit_write(self._options, self._staging, WriteName(f"{QUERY}{application}", batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: staged rows that no manifest names are never published."""


def stage(options: WriteOptions, staging: StagingTopic, batches: Iterator[pa.RecordBatch]) -> StagedTask:
    """Stage the rows of one task and wait for acknowledgements."""
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    query_id = (context.getLocalProperty("sql.streaming.queryId") or "") if context is not None else ""
    clients = _clients_of(options)
    targets = Targets(clients.consumer)
    batcher = RowBatcher(clients.maker, targets.queues_of, options.topic, partition, targets.max_body_bytes_of)
    sender = StagingSender(clients.producer, staging, partition, targets.max_body_bytes_of(staging.topic))
    for batch in batches:
        for staged in batcher.add(batch):
            sender.add(staged)
    for staged in batcher.finish():
        sender.add(staged)
    found = StagedTask(query_id, sender.finish(), targets.topics)
    freeze_loaded()
    return found


class _Clients:
    """What tasks stage their rows with."""

    def __init__(self, options: WriteOptions) -> None:
        access = options.access.client()
        # Packed rows look compressible by their frames: the producer would compress all of them for next to nothing.
        self.producer = Producer(options.bootstrap, group="spark", send_timeout_ms=options.send_timeout_ms, compress_type="none", **access)
        self.consumer = PullConsumer(options.bootstrap, timeout_ms=options.send_timeout_ms, **access)
        self.maker = frame_stamp(options)


_kept: PerProcess[tuple[str, int, AccessOptions], _Clients] = PerProcess()


def _clients_of(options: WriteOptions) -> _Clients:
    """Those of this worker process, reused by its tasks: brokers keep state per producer."""
    return _kept.get((options.bootstrap, options.send_timeout_ms, options.access), lambda: _Clients(options))


def commit_write(
    options: WriteOptions, staging: StagingTopic, write: WriteName, messages: Sequence[WriterCommitMessage | None]
) -> Published:
    """Publish what the successful tasks staged, or complete an earlier attempt, which may have had other rows."""
    tasks = [message for message in messages if isinstance(message, StagedTask)]
    parts = [part for task in tasks for part in task.staged]
    if not parts and not write.may_be_repeated:
        return Published(0, resumed=False)

    topics = frozenset[str]().union(*(task.topics for task in tasks))
    return with_publisher(options, staging, lambda publisher, _control: publisher.publish(write, parts, options.topic, topics))


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
