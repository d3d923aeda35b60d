"""Stats job: messages, bytes and latency (born to stored) by topic, tag and hour.

Bodies are not read: frame headers have their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_dledger.jobs.common import (
    add_skip_lost,
    connected,
    lost_options,
    parser,
    print_report,
    progress,
    run_program,
    session,
    table,
    time_ms,
    topic_list,
)
from pyspark_dledger.jobs.picture import bars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = "date_format(timestamp_seconds(floor(unix_seconds(store_timestamp) / 3600) * 3600), 'yyyy-MM-dd HH:00')"
LATENCY = "unix_millis(store_timestamp) - unix_millis(born_timestamp)"
ACCURACY = 10_000  # of percentile_approx: the rank error is 1/ACCURACY


@dataclass(frozen=True, slots=True)
class HourStats:
    """Statistics of one topic, tag and hour (UTC store time); latencies in milliseconds from born to stored."""

    topic: str
    tag: str
    hour: str
    messages: int
    body_bytes: int
    mean_bytes: float
    p50_ms: int
    p95_ms: int
    p99_ms: int
    max_ms: int


def stats(spark: SparkSession, bootstrap: str, topics: Sequence[str], **options: Any) -> list[HourStats]:
    """Statistics by topic, tag and hour."""
    columns = "topic,tags,body_size,born_timestamp,store_timestamp"
    frame = connected(spark.read, bootstrap, topic=",".join(topics), columns=columns, **options).load()
    from pyspark.sql import functions

    plain = frame.selectExpr("topic", "coalesce(tags, '') AS tag", f"{HOUR} AS hour", "body_size", f"{LATENCY} AS latency")
    rows = (
        plain.groupBy("topic", "tag", "hour")
        .agg(
            functions.expr("count(*) AS messages"),
            functions.expr("sum(body_size) AS body_bytes"),
            functions.expr(f"percentile_approx(latency, array(0.5, 0.95, 0.99), {ACCURACY}) AS percentiles"),
            functions.expr("max(latency) AS longest"),
        )
        .orderBy("topic", "tag", "hour")
        .collect()
    )
    found = []
    for row in rows:
        p50, p95, p99 = (int(value) for value in row.percentiles)
        mean = round(row.body_bytes / row.messages, 1)
        found.append(HourStats(row.topic, row.tag, row.hour, row.messages, row.body_bytes, mean, p50, p95, p99, int(row.longest)))
    return found


def by_hour(found: Sequence[HourStats]) -> list[tuple[str, int, int]]:
    """(hour, messages, maximum p99) over all topics and tags."""
    hours: dict[str, tuple[int, int]] = {}
    for row in found:
        messages, p99 = hours.get(row.hour, (0, 0))
        hours[row.hour] = (messages + row.messages, max(p99, row.p99_ms))
    return [(hour, messages, p99) for hour, (messages, p99) in sorted(hours.items())]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    made = parser(
        "stats",
        "Volume, size and latency (born to stored) of topics, by tag and hour.",
        "Example: dledger spark stats orders --picture orders.svg",
    )
    made.add_argument("topics", metavar="TOPIC[,TOPIC]")
    made.add_argument("--since", type=time_ms, metavar="TIME", help="start: stored at or after this time (ms since 1970, or ISO in UTC)")
    made.add_argument("--until", type=time_ms, metavar="TIME", help="end: stored before this time (ms since 1970, or ISO in UTC)")
    made.add_argument("--picture", metavar="FILE.svg", help="write a chart of messages and p99 latency by hour")
    add_skip_lost(made)
    arguments = made.parse_args(argv)
    spark = session(arguments, "stats")
    times = {"startingTimestamp": arguments.since, "endingTimestamp": arguments.until}
    options = {name: value for name, value in times.items() if value is not None} | lost_options(arguments)
    found = stats(spark, arguments.bootstrap, topic_list(arguments.topics), **options)
    report = {"hours": [asdict(row) for row in found]}

    def show() -> None:
        header = ("TOPIC", "TAG", "HOUR", "MESSAGES", "BYTES", "MEAN", "P50_MS", "P95_MS", "P99_MS", "MAX_MS")
        table(header, [tuple(asdict(row).values()) for row in found])

    print_report(arguments, report, show)
    if arguments.picture:  # last: what was found is shown where the picture cannot be written
        hours = by_hour(found)
        labels = [hour for hour, _, _ in hours]
        panels = [("messages", [float(count) for _, count, _ in hours]), ("p99 born to stored, ms", [float(p99) for _, _, p99 in hours])]
        Path(arguments.picture).write_text(bars(f"{arguments.topics} by hour", labels, panels), encoding="utf-8")
        progress(f"stats: picture in {arguments.picture}")
    return report


if __name__ == "__main__":
    run_program(main)
