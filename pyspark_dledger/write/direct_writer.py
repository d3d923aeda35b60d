"""The writer behind ``writeMode=direct``: batches whose rows are visible as soon as they are stored, and are stored once (ADR 36).

Owns what a direct write refuses, what the driver fixes for all tasks, and the clients of a worker process.  The protocol of a task is
``direct_task``'s.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from dledger_client.aio.consumer import PullConsumer as AsyncPullConsumer
from dledger_client.cluster.router import Router
from dledger_client.fetch.records import QueueOffsets
from dledger_client.producer.idempotent_writer import IdempotentWriter
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.errors import DledgerError, InvalidArgumentError, TopicNotFoundError
from pyspark_dledger.options.access import AccessOptions
from pyspark_dledger.options.model import WriteOptions
from pyspark_dledger.per_process import PerProcess, freeze_loaded
from pyspark_dledger.user_errors import concise_errors
from pyspark_dledger.write.direct_task import DirectTarget, DirectTask, task_ids
from pyspark_dledger.write.staged_batches import RowBatcher, TargetQueue
from pyspark_dledger.write.targets import Targets, check_write, driver_consumer, frame_stamp

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

STAGED_ONLY = ("topic", "delay_level", "deliver_timestamp")  # columns
HINT = "not with writeMode=direct; expected writeMode=staged"


@dataclass
class DirectReport(WriterCommitMessage):
    """A task's report to the driver: how many rows it has stored."""

    rows: int


@concise_errors
class DirectWriter(DataSourceArrowWriter):
    """Writer of one batch; created on the driver, ``write`` runs in tasks."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        check_write(schema, options.topic, overwrite=overwrite)
        refused = [f"column {name!r}" for name in schema.fieldNames() if name in STAGED_ONLY]
        refused += ["option txnAppId"] if options.application else []
        if refused:
            raise InvalidArgumentError(f"{', '.join(refused)}: {HINT}")
        self._options = options
        self._target = look(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every task has stored its rows; say so only if they are still there."""
        check_same_topic(self._options, self._target)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: what tasks have stored stays."""


def look(options: WriteOptions) -> DirectTarget:
    """What all tasks have to agree about."""
    with driver_consumer(options) as consumer:
        targets = Targets(consumer)
        queues = tuple(targets.queues_of(options.topic))
        held = consumer.offsets(options.topic)
        ends = ends_of(queues, held)
        for queue, end in list(ends.items())[:1]:  # a missing right to read is reported now, not when a task is tried again
            consumer.fetch(queue.topic, queue.queue_id, end, 1, replica_group=queue.group)
        epochs = {group: each.topic_epoch for (group, _), each in held.items()}
        return DirectTarget(uuid.uuid4().hex, options.topic, queues, ends, targets.max_body_bytes_of(options.topic), epochs)


def check_same_topic(options: WriteOptions, target: DirectTarget) -> None:
    """Raise TopicNotFoundError if the topic was deleted since ``look``, though it may have been created again: rows went with it."""
    text = f"topic {target.topic} was deleted during the write, and rows with it; write all of them again"
    try:
        with driver_consumer(options) as consumer:
            held = consumer.offsets(target.topic, partial=True)
    except TopicNotFoundError:
        raise TopicNotFoundError(text, topic=target.topic) from None
    except DledgerError:
        return  # the rows are stored: a missing answer is no reason to write them again
    if any(each.topic_epoch != target.topic_epochs.get(group, each.topic_epoch) for (group, _), each in held.items()):
        raise TopicNotFoundError(text, topic=target.topic)


def ends_of(queues: Sequence[TargetQueue], held: Mapping[tuple[str, int], QueueOffsets]) -> dict[TargetQueue, int]:
    """Where the queues end.  InvalidArgumentError for those that cannot be read, when rows of a failed task lie there: better now."""
    unread = [f"{queue.group}:{queue.queue_id}" for queue in queues if (queue.group, queue.queue_id) not in held]
    if unread:
        raise InvalidArgumentError(
            f"topic {queues[0].topic}: queues {', '.join(unread)} are written to and not read, but writeMode=direct reads back what a "
            "failed task stored; expected writeMode=staged, or as many read queues as write queues (dledger topic update)"
        )
    return {queue: held[queue.group, queue.queue_id].max_offset for queue in queues}


def write_rows(options: WriteOptions, target: DirectTarget, batches: Iterator[pa.RecordBatch]) -> DirectReport:
    """Store the rows of one task and wait for acknowledgements."""
    from pyspark import TaskContext

    context = TaskContext.get()
    partition, attempt = (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
    clients, run = _clients_of(options), LoopThread.shared().run
    batcher = RowBatcher(
        frame_stamp(options, lambda environment: task_ids(target.name(partition), environment.clock, environment.random)),
        lambda _topic: target.queues,
        target.topic,
        partition,
        lambda _topic: target.max_body_bytes,
    )
    timeout_ms, is_repeated = options.send_timeout_ms, attempt > 0
    task = DirectTask(clients.router, clients.sender, clients.open_reader, target, partition, timeout_ms, is_repeated)
    try:
        run(task.begin())
        for batch in batches:
            for made in batcher.add(batch):
                run(task.add(made))
        for made in batcher.finish():
            run(task.add(made))
        run(task.finish())
    except BaseException:
        run(clients.sender.discard())  # another task may be next
        raise
    freeze_loaded()
    return DirectReport(batcher.rows)


class _Clients:
    """What tasks store their rows with."""

    def __init__(self, options: WriteOptions) -> None:
        access = options.access.client()
        self.open_reader = partial(AsyncPullConsumer, options.bootstrap, timeout_ms=options.send_timeout_ms, **access)
        self.router, self.sender = LoopThread.shared().run(self._open(options))

    @staticmethod
    async def _open(options: WriteOptions) -> tuple[Router, IdempotentWriter]:
        router = environment_for(options.bootstrap, **options.access.client()).open_router(options.bootstrap)
        return router, IdempotentWriter(router, timeout_ms=options.send_timeout_ms)


_kept: PerProcess[tuple[str, int, AccessOptions], _Clients] = PerProcess()


def _clients_of(options: WriteOptions) -> _Clients:
    """Those of this worker process, reused by its tasks: brokers keep state per producer."""
    return _kept.get((options.bootstrap, options.send_timeout_ms, options.access), lambda: _Clients(options))
