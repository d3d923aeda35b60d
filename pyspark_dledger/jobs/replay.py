"""Replay job: sends a time range or offset range, or a group's dead letters, to another topic.

A replay is a streaming query with an end that its first run fixes.  The checkpoint holds its progress, and the sink
stores each micro-batch once, so an interrupted or repeated replay with the same checkpoint sends nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from dledger_client.message_fields import RESERVED_PROPERTIES
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import dlq_topic
from pyspark_dledger.jobs.common import (
    RowCounter,
    add_skip_lost,
    bounds,
    connected,
    lost_options,
    parser,
    print_report,
    progress,
    run_program,
    session,
    time_ms,
    topic_list,
)
from pyspark_dledger.options.read_bounds import EARLIEST, LATEST, ReadBound, parse_offsets
from pyspark_dledger.planning.partitions import named_offsets
from pyspark_dledger.planning.queue_offsets import QueueId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORIGIN = "REPLAYED_FROM"  # property: topic/group:queue/offset of the original message
PER_BATCH = 200_000
FETCH_COLUMNS = "topic,queue_id,queue_offset,keys,tags,body,properties,group"


def replay(
    spark: SparkSession,
    bootstrap: str,
    topics: Sequence[str],
    checkpoint: str,
    *,
    to: str = "",
    rate: int = 0,
    ends: dict[str, dict[str, int]] | None = None,
    **options: Any,
) -> int:
    """Send the messages; returns the number sent by this run.  ``to`` empty: to the original topic of each dead letter."""
    wanted = {"columns": FETCH_COLUMNS, "maxMessagesPerTrigger": rate or PER_BATCH} | source_options(topics, ends) | options
    rows = connected(spark.readStream, bootstrap, **wanted).load()
    writer = connected(rows_to_send(rows, to).writeStream, bootstrap, checkpointLocation=checkpoint)
    # With a rate: one micro-batch per second.  Without: all micro-batches at once.
    trigger = {"processingTime": "1 second"} if rate else {"availableNow": True}
    with RowCounter.listening(spark, "replay") as counter:
        query = writer.trigger(**trigger).start()
        try:
            if rate:
                query.processAllAvailable()
            else:
                query.awaitTermination()
            return counter.rows_of(query)
        finally:
            query.stop()


def source_options(topics: Sequence[str], ends: dict[str, dict[str, int]] | None) -> dict[str, str]:
    """What is read.  With ``ends`` only the queues that have one: a queue that was added later would be read to another end by each run."""
    if ends is None:
        return {"topic": ",".join(topics)}
    return {"assign": json.dumps({topic: list(queues) for topic, queues in ends.items()}), "endingOffsets": json.dumps(ends)}


def rows_to_send(frame: Any, to: str) -> Any:
    """Rows to send: body, keys, tags and application properties; the order within each source queue is kept."""
    reserved = ", ".join(f"'{name}'" for name in sorted(RESERVED_PROPERTIES))
    origin = "concat(topic, '/', `group`, ':', queue_id, '/', queue_offset)"
    own = f"map_filter(properties, (name, value) -> name NOT IN ({reserved}) AND name <> '{ORIGIN}')"
    target = f"'{to}'" if to else "coalesce(properties['DLQ_ORIGIN_TOPIC'], properties['RETRY_TOPIC'])"
    return frame.selectExpr(
        "body",
        f"{target} AS topic",
        "keys",
        "tags",
        "concat(topic, '/', `group`, ':', queue_id) AS queue_key",
        f"map_concat({own}, map('{ORIGIN}', {origin})) AS properties",
    )


def fixed_ends(
    bootstrap: str, topics: Sequence[str], until_ms: int | None, given: str | None = None, *, starts: str | None = None
) -> dict[str, dict[str, int]]:
    """End offsets of a replay for every queue: as ``given``, else the current end, or the first message stored at or
    after ``until_ms``.  ``starts``: where it starts, whose queues are checked as well.
    """
    held = bounds(bootstrap, topics, until_ms)
    named = _named("--ending-offsets", given, held)
    if starts not in ("earliest", "latest"):
        _named("--starting-offsets", starts, held)
    ends: dict[str, dict[str, int]] = {}
    for queue, offsets in held.items():
        end = named.get(QueueId(*queue), offsets.max_offset if until_ms is None else offsets.at_time)
        # An end that is a word would be another one in each run.
        end = {EARLIEST: offsets.min_offset, LATEST: offsets.max_offset}.get(end, end)
        ends.setdefault(queue[0], {})[f"{queue[1]}:{queue[2]}"] = end
    return ends


def _named(option: str, given: str | None, held: Collection[tuple[str, str, int]]) -> dict[QueueId, int]:
    """The offsets of an option.  InvalidArgumentError for a queue that is not among those ``held``."""
    groups: dict[str, set[str]] = {}
    for topic, group, _ in held:
        groups.setdefault(topic, set()).add(group)
    named = named_offsets(ReadBound(LATEST, queues=parse_offsets(option, given) if given else {}).with_groups(option, groups))
    unknown = next((queue for queue in named if queue not in held), None)
    if unknown is not None:
        raise InvalidArgumentError(f"option {option}: queue {unknown.group}:{unknown.queue_id} of topic {unknown.topic} does not exist")
    return named


def remembered_ends(spark: SparkSession, checkpoint: str, ends: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """End offsets of the checkpoint's first run, stored next to it; later runs use the same."""
    jvm: Any = spark._jvm
    conf = spark._jsc.hadoopConfiguration()
    path = jvm.org.apache.hadoop.fs.Path
    place, draft = path(checkpoint, "replay-ends.json"), path(checkpoint, "replay-ends.json.new")
    system = place.getFileSystem(conf)
    if system.exists(place):
        stream = system.open(place)
        try:
            found: dict[str, dict[str, int]] = json.loads(bytes(stream.readAllBytes()).decode())
            return found
        finally:
            stream.close()
    stream = system.create(draft, True)
    try:
        stream.write(bytearray(json.dumps(ends).encode()))
    finally:
        stream.close()
    if not system.rename(draft, place):
        raise InvalidArgumentError(f"--checkpoint {checkpoint}: {place} cannot be written; expected a folder used by this replay only")
    return ends


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    made = parser(
        "replay",
        "Send messages of a range, or the dead letters of a group, to another topic. With one checkpoint, nothing is sent twice.",
        "Example: dledger spark replay orders --to orders-again --checkpoint /data/replay-1 --rate 1000",
    )
    made.add_argument("topics", metavar="TOPIC[,TOPIC]", nargs="?", default="")
    made.add_argument("--dead-letters", default="", metavar="GROUP", help="replay the dead letters of a consumer group instead of topics")
    made.add_argument("--to", default="", metavar="TOPIC", help="target topic (dead letters: default is their original topic)")
    made.add_argument("--checkpoint", required=True, metavar="PATH", help="checkpoint folder; use one per replay")
    made.add_argument("--rate", type=int, default=0, metavar="N", help="messages per second (0: unlimited)")
    made.add_argument("--since", type=time_ms, metavar="TIME", help="start: stored at or after this time (ms since 1970, or ISO in UTC)")
    made.add_argument("--until", type=time_ms, metavar="TIME", help="end: stored before this time (ms since 1970, or ISO in UTC)")
    made.add_argument("--starting-offsets", metavar="JSON", help='{"topic":{"group:queue":offset}}')
    made.add_argument("--ending-offsets", metavar="JSON", help="end offsets (exclusive), same format; other queues: until now or --until")
    made.add_argument("--tags", default="", metavar="EXPR", help="tag filter: a || b")
    add_skip_lost(made)
    arguments = made.parse_args(argv)
    topics = topic_list(arguments.topics) or ([dlq_topic(arguments.dead_letters)] if arguments.dead_letters else [])
    if bool(arguments.topics) == bool(arguments.dead_letters):
        raise InvalidArgumentError("expected either topics or --dead-letters")
    if not arguments.to and not arguments.dead_letters:
        raise InvalidArgumentError("--to is missing; expected the topic to send to")
    if arguments.to in topics:
        raise InvalidArgumentError(f"--to {arguments.to}: expected a topic other than the source")
    spark = session(arguments, "replay")
    checkpoint = arguments.checkpoint
    ends = fixed_ends(arguments.bootstrap, topics, arguments.until, arguments.ending_offsets, starts=arguments.starting_offsets)
    ends = remembered_ends(spark, checkpoint, ends)
    given = {"startingTimestamp": arguments.since, "startingOffsets": arguments.starting_offsets, "tags": arguments.tags or None}
    options = {name: value for name, value in given.items() if value is not None} | lost_options(arguments)
    progress(f"replay: {', '.join(topics)} to {arguments.to or 'their original topics'}, up to {json.dumps(ends)}")
    sent = replay(spark, arguments.bootstrap, topics, checkpoint, to=arguments.to, rate=arguments.rate, ends=ends, **options)
    report = {"sent": sent, "topics": topics, "to": arguments.to, "checkpoint": checkpoint}
    print_report(arguments, report, lambda: print(f"sent {sent} messages to {arguments.to or 'their original topics'}"))
    return report


if __name__ == "__main__":
    run_program(main)
