"""Audit job: compares the committed messages of all replicas by count, content, gaps, duplicates and order.

Each replica is read separately.  Executors hash messages, and only sums per span of offsets go to the driver.  Spans
that differ are compared message by message to find the first difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dledger_client import PullConsumer
from dledger_wire.errors import DledgerError, InvalidArgumentError
from pyspark_dledger.jobs.common import (
    JobFailedError,
    bounds,
    connected,
    parser,
    print_report,
    progress,
    reason,
    run_program,
    session,
    table,
    topic_list,
)
from pyspark_dledger.options.model import METADATA_TIMEOUT_MS
from pyspark_dledger.planning.cluster_queries import first_held
from pyspark_dledger.planning.queue_offsets import QueueId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_TIMEOUT_MS = 20_000  # for a replica that does not respond
SPAN = 32_768  # offsets per span: the size of one bitmap aggregate
CONTENT = "xxhash64(msg_id, keys, tags, body, born_timestamp, store_timestamp, map_entries(properties), physical_offset)"
COLUMNS = "queue_id,queue_offset,msg_id,keys,tags,body,born_timestamp,store_timestamp,properties,group,physical_offset"


@dataclass(frozen=True, slots=True)
class QueueAudit:
    """Result for one queue at one replica."""

    topic: str
    group: str
    queue_id: int
    replica: str
    expected: int
    count: int
    missing: int
    duplicates: int
    checksum: str


Held = dict[QueueId, tuple[int, int]]  # queues of one topic in one replica group, with the compared range
Read = Callable[[Held, str], "DataFrame"]


def audit(
    spark: SparkSession, bootstrap: str, topics: Sequence[str], replicas: Sequence[str] = (), read: Read | None = None
) -> tuple[list[QueueAudit], list[str]]:
    """(results per replica, problems).  The range is fixed once for all replicas.  ``read``: reads ranges from a
    replica.
    """
    read_at = read or (lambda held, replica: read_replica(spark, bootstrap, held, replica))
    ranges = {QueueId(*key): (held.min_offset, held.max_offset) for key, held in bounds(bootstrap, topics).items()}
    with PullConsumer(bootstrap, timeout_ms=METADATA_TIMEOUT_MS) as consumer:
        groups = consumer.replicas()
    unknown = sorted(set(replicas) - {node for nodes in groups.values() for node in nodes})
    if unknown:
        raise JobFailedError(f"no replica {', '.join(unknown)}; there are {', '.join(n for nodes in groups.values() for n in nodes)}")
    found, problems = [], []
    for topic in topics:
        for group, nodes in groups.items():
            held = {queue: span for queue, span in ranges.items() if queue.topic == topic and queue.group == group and span[0] < span[1]}
            asked = [node for node in nodes if not replicas or node in replicas]
            held = _held_by_all(bootstrap, held, asked) if held else held
            if held and asked:
                rows, wrong = _audit_group(read_at, held, asked)
                found += rows
                problems += wrong
    return found, problems


def _held_by_all(bootstrap: str, held: Held, replicas: Sequence[str]) -> Held:
    """The ranges without what one of the replicas has expired: each deletes old segments by itself."""
    found = dict(held)
    for replica in replicas:
        with PullConsumer(bootstrap, timeout_ms=METADATA_TIMEOUT_MS, replica=replica, repair=False) as consumer:
            for queue, (start, end) in found.items():
                try:
                    found[queue] = (max(start, min(first_held(consumer, queue, start), end)), end)
                except DledgerError:
                    break  # the comparison reports what is wrong with it
    for queue, (start, _) in found.items():
        if start > held[queue][0]:
            where = f"{queue.topic} {queue.group}:{queue.queue_id}"
            progress(f"audit: {where}: compared from offset {start}, since a replica has expired what is before")
    return {queue: (start, end) for queue, (start, end) in found.items() if start < end}


def _audit_group(read: Read, held: Held, replicas: Sequence[str]) -> tuple[list[QueueAudit], list[str]]:
    found, sums, problems, readable = [], {}, [], []
    topic = next(iter(held)).topic
    for replica in replicas:
        progress(f"audit: {topic} at {replica}")
        frame = read(held, replica)
        try:
            summed = _spans(frame)
            problems += _disorder(frame, replica, topic)
        except Exception as error:  # noqa: BLE001 - Spark wraps our errors; the other replicas are still compared
            why, _, _ = reason(error).partition("; set failOnDataLoss")  # which would leave out what is to be compared
            problems.append(f"{topic} at {replica} cannot be read: {why}")
            continue
        readable.append(replica)
        for queue, (start, end) in sorted(held.items()):
            mine = {span: row for (queue_id, span), row in summed.items() if queue_id == queue.queue_id}
            count, distinct = sum(row[0] for row in mine.values()), sum(row[1] for row in mine.values())
            checksum = sum(int(row[2]) for row in mine.values()) % (1 << 64)
            missing, duplicates = end - start - distinct, count - distinct
            found.append(
                QueueAudit(queue.topic, queue.group, queue.queue_id, replica, end - start, count, missing, duplicates, f"{checksum:016x}")
            )
            where = f"{queue.topic} {queue.group}:{queue.queue_id} at {replica}"
            if missing or duplicates:
                first = _first_irregular(frame, queue.queue_id, start, end)
                problems.append(f"{where}: {missing} messages missing, {duplicates} duplicated, first at offset {first}")
            sums[queue, replica] = mine
    problems += _differences(read, held, readable, sums)
    return found, problems


def read_replica(spark: SparkSession, bootstrap: str, held: Held, replica: str) -> DataFrame:
    """Read ranges from one replica only; damage there is an error and is not repaired."""
    topic = next(iter(held)).topic
    starts = {topic: {f"{queue.group}:{queue.queue_id}": span[0] for queue, span in held.items()}}
    ends = {topic: {f"{queue.group}:{queue.queue_id}": span[1] for queue, span in held.items()}}
    group = next(iter(held)).group
    options = {"topic": topic, "replica": replica, "repair": "false", "readTimeoutMs": READ_TIMEOUT_MS, "columns": COLUMNS}
    options["queues"] = ",".join(starts[topic])  # queues of other replica groups are not at this replica
    reader = connected(spark.read, bootstrap, startingOffsets=json.dumps(starts), endingOffsets=json.dumps(ends), **options)
    return reader.load().where(f"`group` = '{group}'")


def _spans(frame: DataFrame) -> dict[tuple[int, int], tuple[int, int, Any]]:
    """(queue, span) -> (messages, distinct offsets, sum of the content hashes)."""
    plain = frame.selectExpr("queue_id", "queue_offset", f"{CONTENT} AS content", f"CAST(floor(queue_offset / {SPAN}) AS BIGINT) AS span")
    rows = plain.selectExpr("*", f"CAST(queue_offset % {SPAN} AS BIGINT) AS bit").groupBy("queue_id", "span")
    from pyspark.sql import functions

    summed = rows.agg(
        functions.expr("count(*) AS messages"),
        functions.expr("bitmap_count(bitmap_construct_agg(bit)) AS offsets"),
        functions.expr("sum(CAST(content AS DECIMAL(38, 0))) AS content"),
    )
    return {(row[0], row[1]): (row[2], row[3], row[4]) for row in summed.collect()}


def _disorder(frame: DataFrame, replica: str, topic: str) -> list[str]:
    """Queues whose store times or log positions decrease, with the first such offset."""
    window = "OVER (PARTITION BY `group`, queue_id ORDER BY queue_offset)"
    ordered = frame.selectExpr(
        "`group`",
        "queue_id",
        "queue_offset",
        f"store_timestamp < lag(store_timestamp) {window} AS earlier",
        f"physical_offset <= lag(physical_offset) {window} AS before",
    )
    rows = ordered.where("earlier OR before").groupBy("group", "queue_id").agg({"queue_offset": "min"}).collect()
    return [f"{topic} {row[0]}:{row[1]} at {replica}: out of order at offset {row[2]}" for row in sorted(rows)]


def _first_irregular(frame: DataFrame, queue_id: int, start: int, end: int) -> int:
    """The first offset of [start, end) that is missing or duplicated."""
    seen = frame.where(f"queue_id = {queue_id}").groupBy("queue_offset").count()
    spark = frame.sparkSession
    joined = spark.range(start, end).withColumnRenamed("id", "queue_offset").join(seen, "queue_offset", "left")
    row = joined.where("count IS NULL OR count <> 1").agg({"queue_offset": "min"}).first()
    return int(row[0]) if row is not None and row[0] is not None else start


def _differences(
    read: Read, held: Held, replicas: Sequence[str], sums: dict[tuple[QueueId, str], dict[int, tuple[int, int, Any]]]
) -> list[str]:
    """For each replica and queue that differs from the first replica: the first different message."""
    problems = []
    reference = replicas[0] if replicas else ""
    for queue in sorted(held):
        start, end = held[queue]
        for replica in replicas[1:]:
            mine, others = sums[queue, reference], sums[queue, replica]
            differing = sorted(span for span in mine.keys() | others.keys() if mine.get(span) != others.get(span))
            if not differing:
                continue
            low, high = max(start, differing[0] * SPAN), min(end, (differing[0] + 1) * SPAN)
            both = [_contents(read({queue: (low, high)}, node)) for node in (reference, replica)]
            first = next((offset for offset in range(low, high) if both[0].get(offset) != both[1].get(offset)), low)
            problems.append(f"{queue.topic} {queue.group}:{queue.queue_id}: {replica} differs from {reference}, first at offset {first}")
    return problems


def _contents(frame: DataFrame) -> dict[int, int]:
    return {row[0]: row[1] for row in frame.selectExpr("queue_offset", CONTENT).collect()}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    made = parser(
        "audit",
        "Compare topics on all replicas: counts, checksums, gaps, duplicates, order. Exit 1 at a difference.",
        "Example: dledger spark audit orders",
    )
    made.add_argument("topics", metavar="TOPIC[,TOPIC]")
    made.add_argument("--replicas", default="", metavar="ID,...", help="compare only these replicas (default: all)")
    arguments = made.parse_args(argv)
    topics = topic_list(arguments.topics)
    if not topics:  # replicas without topics would be equal
        raise InvalidArgumentError(f"TOPIC[,TOPIC]: {arguments.topics!r}; expected the names of topics")
    spark = session(arguments, "audit")
    found, problems = audit(spark, arguments.bootstrap, topics, topic_list(arguments.replicas))
    report = {"equal": not problems, "problems": problems, "queues": [asdict(row) for row in found]}

    def show() -> None:
        header = ("TOPIC", "QUEUE", "REPLICA", "EXPECTED", "COUNT", "MISSING", "TWICE", "CHECKSUM")
        rows = [
            (q.topic, f"{q.group}:{q.queue_id}", q.replica, q.expected, q.count, q.missing, q.duplicates, q.checksum)
            for q in sorted(found, key=lambda q: (q.topic, q.group, q.queue_id, q.replica))
        ]
        table(header, rows)
        if not problems and not found:
            print("the topics have no messages: nothing was compared")
        elif not problems:
            print(f"equal on {', '.join(sorted({q.replica for q in found}))}: {sum(q.count for q in found)} messages compared")

    print_report(arguments, report, show)
    if problems:
        raise JobFailedError("; ".join(problems))
    return report


if __name__ == "__main__":
    run_program(main)
