"""Writing a DataFrame to topics: one message a row, each once however often Spark tries a task again.

Owns the mapping from columns to messages and the account of a retried task.  Every message carries the property ``SPARK_WRITE``
(job/partition/row).  A task that is not the first attempt of its partition reads back, from the time the job began, which rows its
predecessors have stored, and leaves those out.  That needs what Spark itself asks for: a partition that gives the same rows in the same
order again.  Two attempts at the same time (speculation) may store a row twice.  What is written is visible at once, not when the job ends.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from dledger_client import Message, Producer, PullConsumer
from dledger_wire.errors import InvalidArgumentError
from pyspark_dledger.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string",),
    "queue_key": ("string",),
    "queue_id": ("int",),
    "properties": ("map<string,string>",),
}
MARK = "SPARK_WRITE"
CLOCK_MARGIN_MS = 600_000  # how far the driver's clock may be ahead of the brokers'


@dataclass
class RowsWritten(WriterCommitMessage):
    """What one task has stored, and how much of it an earlier attempt already had."""

    rows: int
    found: int


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Refuse, before a job starts, columns that mean nothing here.  InvalidArgumentError."""
    for field in schema.fields:
        wanted = COLUMNS.get(field.name)
        if wanted is None:
            raise InvalidArgumentError(f"column {field.name!r} is unknown; expected some of {', '.join(COLUMNS)}")
        if field.dataType.simpleString() not in wanted:
            raise InvalidArgumentError(f"column {field.name!r} is {field.dataType.simpleString()}; expected {' or '.join(wanted)}")
    names = schema.fieldNames()
    if "body" not in names:
        raise InvalidArgumentError("column 'body' is missing; expected binary or string")
    if not options.topic and "topic" not in names:
        raise InvalidArgumentError("no topic: expected option topic or a column topic")


class BatchWriter(DataSourceArrowWriter):
    """One batch write; made on the driver, its ``write`` runs in the tasks."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgumentError("mode overwrite: messages cannot be overwritten; expected mode append")
        check_schema(schema, options)
        self._options = options
        self._job = uuid.uuid4().hex
        self._began_ms = int(time.time() * 1000)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
        mark = f"{self._job}/{partition}/"
        return write_partition(self._options, iterator, mark, self._began_ms - CLOCK_MARGIN_MS, again=attempt > 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: every task has waited for its acknowledgements."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: what the tasks stored stays."""


def write_partition(options: WriteOptions, batches: Iterator[pa.RecordBatch], mark: str, since_ms: int, *, again: bool) -> RowsWritten:
    """Send every row and wait for all acknowledgements; with ``again``, leave out what carries ``mark`` already."""
    stored: dict[str, set[int]] = {}
    sent, found, number = [], 0, -1
    with Producer(options.bootstrap, group="spark", send_timeout_ms=options.send_timeout_ms) as producer:
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                topic = row.get("topic") or options.topic
                if again and topic not in stored:
                    stored[topic] = rows_stored(options, topic, mark, since_ms)
                if again and number in stored[topic]:
                    found += 1
                    continue
                message = message_of(row, topic, f"{mark}{number}")
                sent.append(producer.send_async(message, queue_key=row.get("queue_key"), queue_id=row.get("queue_id")))
        producer.flush()
        for future in sent:
            future.result()
    return RowsWritten(number + 1, found)


def message_of(row: Mapping[str, Any], topic: str, mark: str) -> Message:
    """The message of one row."""
    if not topic:
        raise InvalidArgumentError("a row without a topic, and no option topic")
    body = row["body"]
    if body is None:
        raise InvalidArgumentError(f"topic {topic}: a row without a body")
    properties = dict(row.get("properties") or {}) | {MARK: mark}
    return Message(
        topic,
        body.encode() if isinstance(body, str) else body,
        tags=row.get("tags") or "",
        keys=row.get("keys") or "",
        properties=properties,
    )


def rows_stored(options: WriteOptions, topic: str, mark: str, since_ms: int) -> set[int]:
    """The row numbers of earlier attempts that are stored already."""
    numbers: set[int] = set()
    with PullConsumer(options.bootstrap, timeout_ms=options.send_timeout_ms) as consumer:
        held = consumer.offsets(topic, since_ms)
        for (group, queue_id), offsets in held.items():
            for chunk in consumer.read_chunks(topic, queue_id, offsets.at_time, offsets.max_offset, group_name=group):
                for message in chunk.messages():
                    found = message.properties.get(MARK, "")
                    if found.startswith(mark):
                        numbers.add(int(found[len(mark) :]))
    return numbers
