"""Archive job: copies topics to Parquet, partitioned by topic, date and hour (UTC store time); each run adds new
messages exactly once.

Owns the archive's layout and the reader that joins it with the live log.  A run is an available-now streaming query.
Offsets and files are in Spark's checkpoint and file log, so an interrupted run continues, and Spark reads each message
once.

    PATH/topic=orders/date=2026-11-21/hour=7/part-....parquet     PATH/_spark_metadata     PATH/_checkpoint
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dledger_client import PullConsumer
from dledger_wire.errors import InvalidArgumentError
from pyspark_dledger.jobs.common import (
    RowCounter,
    add_skip_lost,
    bounds,
    connected,
    lost_options,
    parser,
    print_report,
    run_program,
    session,
    table,
    topic_list,
)
from pyspark_dledger.options.model import METADATA_TIMEOUT_MS
from pyspark_dledger.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dledger_client.fetch.records import QueueOffsets

DATE = "date_add(DATE'1970-01-01', CAST(floor(unix_seconds(store_timestamp) / 86400) AS INT))"
HOUR = "CAST(pmod(floor(unix_seconds(store_timestamp) / 3600), 24) AS INT)"
PARTITIONS = ("topic", "date", "hour")


def archive(spark: SparkSession, bootstrap: str, topics: Sequence[str], path: str, *, per_trigger: int = 1_000_000, **options: Any) -> int:
    """Add new messages to the archive; returns their number."""
    stream = connected(spark.readStream, bootstrap, topic=",".join(topics), maxMessagesPerTrigger=per_trigger, **options)
    frame = stream.load().selectExpr("*", f"{DATE} AS date", f"{HOUR} AS hour")
    writer = frame.writeStream.format("parquet").partitionBy(*PARTITIONS).option("path", path)
    with RowCounter.listening(spark, "archive") as counter:
        query = writer.option("checkpointLocation", f"{path}/_checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        return counter.rows_of(query)


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """The archive, with the columns of the live source plus ``date`` and ``hour``."""
    schema = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
    return spark.read.schema(f"{schema}, date date, hour int").parquet(path)


def read_joined(spark: SparkSession, bootstrap: str, topics: Sequence[str], path: str, **options: Any) -> DataFrame:
    """Archive and live log as one DataFrame, each message once: the log is read from the end of the archive, per queue.

    The archived part is fixed by the call, so a concurrent archive run does not change it.
    """
    from pyspark.sql.functions import expr

    archived = read_archive(spark, path).where(f"topic IN ({', '.join(repr(topic) for topic in topics)})")
    # The newest row, not the highest offset: a recreated topic counts from 0 again.
    last = expr("max(struct(store_timestamp, queue_offset, msg_id))")
    newest = archived.groupBy("topic", "group", "queue_id").agg(last.alias("last")).select("topic", "group", "queue_id", "last.*").collect()
    behind = {(row.topic, row.group, row.queue_id): (row.queue_offset + 1, row.msg_id) for row in newest}
    starts: dict[str, dict[str, int]] = {}
    live_bounds = bounds(bootstrap, topics)
    check_archived(bootstrap, behind, live_bounds)
    for (topic, group, queue_id), held in live_bounds.items():
        offset, _ = behind.get((topic, group, queue_id), (0, ""))
        if offset < held.min_offset and offset > 0:
            raise InvalidArgumentError(
                f"topic {topic} queue {group}:{queue_id}: the archive ends at {offset}, the log begins at {held.min_offset}; "
                "the messages between them have expired; run the archive job more often"
            )
        # One that has nothing, as of a recreated topic, begins where it ends.
        starts.setdefault(topic, {})[f"{group}:{queue_id}"] = min(max(offset, held.min_offset), held.max_offset)
    live = connected(spark.read, bootstrap, topic=",".join(topics), startingOffsets=json.dumps(starts), **options)
    return archived.unionByName(live.load().selectExpr("*", f"{DATE} AS date", f"{HOUR} AS hour"))


def check_archived(
    bootstrap: str, behind: Mapping[tuple[str, str, int], tuple[int, str]], held: Mapping[tuple[str, str, int], QueueOffsets]
) -> None:
    """Raise InvalidArgumentError if a queue does not continue the archive: ``behind`` has the end of each there, and the id of the last
    message.  Of a recreated topic, messages below that end would be left out; of a queue that has none, nothing can be.
    """
    with PullConsumer(bootstrap, timeout_ms=METADATA_TIMEOUT_MS) as consumer:
        for (topic, group, queue_id), (end, msg_id) in behind.items():
            queue = held.get((topic, group, queue_id))
            if queue is None or end - 1 < queue.min_offset or queue.min_offset == queue.max_offset:
                continue
            found = consumer.fetch(topic, queue_id, end - 1, 1, replica_group=group) if end <= queue.max_offset else []
            if not found or found[0].msg_id != msg_id:
                raise InvalidArgumentError(
                    f"topic {topic} queue {group}:{queue_id}: its message {end - 1} is not the last one of the archive, so the topic was "
                    "deleted and created again since, or restored from a backup; run the archive job with --skip-lost first"
                )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    made = parser(
        "archive",
        "Add new messages to a Parquet archive, partitioned by topic, date and hour; each message once.",
        "Example: dledger spark archive orders --path /data/archive",
    )
    made.add_argument("topics", metavar="TOPIC[,TOPIC]")
    made.add_argument("--path", required=True, metavar="PATH", help="path of the archive")
    made.add_argument("--per-trigger", type=int, default=1_000_000, metavar="N", help="messages per micro-batch")
    add_skip_lost(made)
    arguments = made.parse_args(argv)
    spark = session(arguments, "archive")
    topics = topic_list(arguments.topics)
    added = archive(spark, arguments.bootstrap, topics, arguments.path, per_trigger=arguments.per_trigger, **lost_options(arguments))
    rows = [list(row) for row in read_archive(spark, arguments.path).groupBy("topic").count().orderBy("topic").collect()]
    report = {"added": added, "path": arguments.path, "archived": {topic: count for topic, count in rows}}

    def show() -> None:
        print(f"added {added} messages to {arguments.path}")
        table(("TOPIC", "ARCHIVED"), rows)

    print_report(arguments, report, show)
    return report


if __name__ == "__main__":
    run_program(main)
