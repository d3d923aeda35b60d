"""Writing DataFrames to topics, in batches and streams: one message a row, each once whatever Spark tries again.

Owns the two writers Spark asks for.  Tasks stage their rows (packs.py) in the staging topic, where nobody sees them; the driver's commit
publishes those of the attempts that won (publish.py).  An attempt that died, lost against a speculative one, or belongs to a job that
failed leaves rows that nobody names and that expire with the staging topic's retention.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from dledger_client import Admin, Message, Producer, PullConsumer
from dledger_client.aio.consumer import PullConsumer as AsyncPullConsumer
from dledger_client.producer.delivery_report import SendFuture
from dledger_client.producer.idempotent_writer import IdempotentWriter
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.checksum import crc32c
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError, TopicPermissionError
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.status import Perm
from pyspark_dledger.options.model import WriteOptions
from pyspark_dledger.user_errors import plain_errors
from pyspark_dledger.write.publisher import CONTROL_QUEUE, UNNAMED_JOB, Published, Publisher, Staged, WriteName
from pyspark_dledger.write.staged_batches import Lane, Maker, Packer, check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

T = TypeVar("T")

STAGING_QUEUES = 9  # the control queue and eight for rows
PIECE_BYTES = 256 << 10
LOOK_TIMEOUT_MS = 15_000


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """The staging topic as the driver found it."""

    topic: str
    group: str
    queues: int


@dataclass
class RowsStaged(WriterCommitMessage):
    """What one task tells the driver; ``staged`` is None when it had no rows."""

    query_id: str
    staged: Staged | None


def prepare(schema: StructType, options: WriteOptions, *, overwrite: bool) -> StagingPlace:
    """Everything that can be found wrong before a job starts, and the staging topic, made if there is none."""
    if overwrite:
        raise InvalidArgumentError("mode overwrite (complete): messages cannot be overwritten; expected mode append")
    check_schema(schema, options.topic)
    with PullConsumer(options.bootstrap, timeout_ms=min(LOOK_TIMEOUT_MS, options.send_timeout_ms)) as consumer:
        if options.topic:
            lanes_of(consumer, options.topic)
        try:
            found = sorted(consumer.topic(options.staging_topic), key=lambda queues: queues.replica_group)[0]
        except TopicNotFoundError:
            with Admin(options.bootstrap) as admin:
                group = sorted(consumer.replicas())[0]
                found = admin.create_topic(options.staging_topic, queues=STAGING_QUEUES, group=group, if_not_exists=True)
    if found.write_queues < 2:
        raise InvalidArgumentError(f"staging topic {options.staging_topic} has {found.write_queues} queue; expected at least 2")
    return StagingPlace(options.staging_topic, found.replica_group, found.write_queues)


def lanes_of(consumer: PullConsumer, topic: str) -> list[Lane]:
    """The queues of a topic that take messages.  TopicNotFoundError, TopicPermissionError."""
    found = sorted(consumer.topic(topic), key=lambda queues: queues.replica_group)
    lanes = [Lane(q.replica_group, topic, number) for q in found if q.perm & Perm.WRITE for number in range(q.write_queues)]
    if not lanes:
        raise TopicPermissionError(f"topic {topic}: writing is not permitted (perm {found[0].perm})", topic=topic, perm=found[0].perm)
    return lanes


@plain_errors
class BatchWriter(DataSourceArrowWriter):
    """One batch write; made on the driver, its ``write`` runs in the tasks."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        self._options = options
        self._place = prepare(schema, options, overwrite=overwrite)
        application = f"txn:{options.application}" if options.application else f"{UNNAMED_JOB}{uuid.uuid4().hex}"
        self._write = WriteName(application, options.version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._place, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_write(self._options, self._place, self._write, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: nobody names what was staged."""


@plain_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of one streaming query; Spark makes it anew for each batch, on the driver and for the commit."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if options.application:
            raise InvalidArgumentError("options txnAppId, txnVersion: a streaming query has its own; expected them in batch writes only")
        self._options = options
        self._place = prepare(schema, options, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._place, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        queries = {message.query_id for message in messages if isinstance(message, RowsStaged)} - {""}
        if len(queries) > 1:
            raise InvalidArgumentError(f"one batch of several queries: {', '.join(sorted(queries))}")
        # Where Spark does not tell a task its query, the checkpoint's place stands for it: one checkpoint, one query.
        application = queries.pop() if queries else f"checkpoint:{self._options.checkpoint}"
        commit_write(self._options, self._place, WriteName(f"query:{application}", batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: nobody names what was staged."""


def stage(options: WriteOptions, place: StagingPlace, batches: Iterator[pa.RecordBatch]) -> RowsStaged:
    """One task: its rows to the staging topic, acknowledged."""
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    query_id = (context.getLocalProperty("sql.streaming.queryId") or "") if context is not None else ""
    clients = _Clients.of_this_process(options)
    lanes: dict[str, list[Lane]] = {}

    def lanes_of_topic(topic: str) -> Sequence[Lane]:
        if topic not in lanes:
            lanes[topic] = lanes_of(clients.consumer, topic)
        return lanes[topic]

    packer = Packer(clients.maker, lanes_of_topic, options.topic, turn=partition)
    pieces = _Pieces(clients.producer, place, CONTROL_QUEUE + 1 + partition % (place.queues - 1))
    for batch in batches:
        for pack in packer.add(batch):
            pieces.add(pack)
    for pack in packer.finish():
        pieces.add(pack)
    return RowsStaged(query_id, pieces.finish(packer.rows) if packer.rows else None)


class _Pieces:
    """The packs of one task as messages of one tag in one queue."""

    def __init__(self, producer: Producer, place: StagingPlace, queue_id: int) -> None:
        self._producer, self._place, self._queue_id = producer, place, queue_id
        self._tag = uuid.uuid4().hex[:16]
        self._sent: list[SendFuture] = []
        self._rest = bytearray()
        self._crc = self._size = 0

    def add(self, pack: bytes) -> None:
        self._rest += pack
        while len(self._rest) >= PIECE_BYTES:
            self._send(bytes(self._rest[:PIECE_BYTES]))
            del self._rest[:PIECE_BYTES]

    def _send(self, piece: bytes) -> None:
        self._crc, self._size = crc32c(piece, value=self._crc), self._size + len(piece)
        self._sent.append(self._producer.send_async(Message(self._place.topic, piece, tags=self._tag), queue_id=self._queue_id))

    def finish(self, rows: int) -> Staged:
        """Wait for every acknowledgement."""
        if self._rest:
            self._send(bytes(self._rest))
        self._producer.flush()
        placed = [future.result() for future in self._sent]
        first, last = placed[0].queue_offset, placed[-1].queue_offset
        return Staged(self._place.group, self._queue_id, first, last + 1, self._tag, rows, self._size, self._crc)


class _Clients:
    """A worker process's connections.  Kept over tasks: each producer is remembered by the brokers, and their memory is bounded."""

    _kept: dict[str, _Clients] = {}  # noqa: RUF012 - the process's own
    _kept_by = 0

    def __init__(self, options: WriteOptions) -> None:
        self.producer = Producer(options.bootstrap, group="spark", send_timeout_ms=options.send_timeout_ms)
        self.consumer = PullConsumer(options.bootstrap, timeout_ms=options.send_timeout_ms)
        self.maker = maker_of(options.bootstrap)

    @classmethod
    def of_this_process(cls, options: WriteOptions) -> _Clients:
        if cls._kept_by != os.getpid():
            cls._kept, cls._kept_by = {}, os.getpid()
        key = f"{options.bootstrap} {options.send_timeout_ms}"
        if key not in cls._kept:
            cls._kept[key] = cls(options)
        return cls._kept[key]


def maker_of(bootstrap: str) -> Maker:
    """What messages made here are stamped with."""
    environment = environment_for(bootstrap)
    return Maker(environment.unique_ids(), pack_host(environment.address), environment.clock.wall_ms)


def commit_write(options: WriteOptions, place: StagingPlace, write: WriteName, messages: Sequence[WriterCommitMessage | None]) -> Published:
    """The driver's part: publish what the winning tasks staged, or finish what an earlier attempt began, which may have had other rows."""
    parts = [message.staged for message in messages if isinstance(message, RowsStaged) and message.staged is not None]
    if not parts and not write.may_be_repeated:
        return Published(0, resumed=False)

    return with_publisher(options, place, lambda publisher, _control: publisher.publish(write, parts))


def with_publisher(options: WriteOptions, place: StagingPlace, work: Callable[[Publisher, AsyncPullConsumer], Awaitable[T]]) -> T:
    """What ``work`` gives, with a publisher and a consumer of leaders that are closed after it."""

    async def run() -> T:
        environment = environment_for(options.bootstrap)
        router = environment.open_router(options.bootstrap)
        timeout_ms = options.send_timeout_ms
        control = AsyncPullConsumer(options.bootstrap, timeout_ms=timeout_ms)
        staged = AsyncPullConsumer(options.bootstrap, read_from="follower", timeout_ms=timeout_ms)
        try:
            async with control, staged, IdempotentWriter(router, timeout_ms=timeout_ms) as sender:
                publisher = Publisher(control, staged, sender, maker_of(options.bootstrap), place.topic, place.group)
                return await work(publisher, control)
        finally:
            await router.close()

    return LoopThread.shared().run(run())
