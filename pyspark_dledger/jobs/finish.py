"""Finish job: completes writes whose driver failed during the commit.

It needs no Spark: an incomplete write is a manifest in the staging topic's control queue without a done marker.  A
named write or a streaming write completes itself when it is run again; an unnamed one needs this job.  Running it
during a live commit is safe: both send the same records with the same sequence numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dledger_client import PullConsumer
from dledger_client.aio.consumer import PullConsumer as AsyncPullConsumer
from dledger_wire.errors import DledgerError, TopicNotFoundError
from pyspark_dledger.jobs.common import JobFailedError, add_connection, print_report, run_program, table
from pyspark_dledger.options.model import METADATA_TIMEOUT_MS, STAGING_TOPIC, parse_write_options
from pyspark_dledger.write.publisher import DONE_BODY, QUERY, UNNAMED_JOB, Manifest, Publisher, read_manifest
from pyspark_dledger.write.staging_topic import CONTROL_QUEUE, StagingTopic
from pyspark_dledger.write.writer import with_publisher

DISPLAY_PREFIXES = {UNNAMED_JOB: "a job without a name", "txn:": "", QUERY: "query "}


@dataclass(frozen=True, slots=True)
class Finished:
    """Result for one write."""

    write: str
    number: int
    rows: int
    result: str


async def unfinished_writes(control: AsyncPullConsumer, topic: str, group: str) -> list[Manifest]:
    """Manifests without a done marker, oldest first."""
    held = (await control.offsets(topic))[group, CONTROL_QUEUE]
    begun: dict[str, Manifest] = {}
    async for chunk in control.read_chunks(topic, CONTROL_QUEUE, held.min_offset, held.max_offset, replica_group=group):
        for message in chunk.messages():
            manifest = read_manifest(message.body)
            if manifest is not None:
                begun[message.tags] = manifest
            elif message.body == DONE_BODY:
                begun.pop(message.tags, None)
    return list(begun.values())


async def finish_all(publisher: Publisher, control: AsyncPullConsumer, topic: str, group: str, *, look_only: bool) -> list[Finished]:
    """Complete every incomplete write."""
    found = []
    for write, parts, *_ in await unfinished_writes(control, topic, group):
        result = "not finished"
        if not look_only:
            try:
                result = "finished" if await publisher.finish(write, parts) else "was finished"
            except DledgerError as error:
                result = f"cannot be finished: {error.message}"
        found.append(Finished(shown(write.application), write.number, sum(part.rows for part in parts), result))
    return found


def shown(application: str) -> str:
    """The application's name as the user gave it."""
    kind, separator, name = application.partition(":")
    return f"{DISPLAY_PREFIXES.get(kind + separator, '')}{'' if kind == 'job' else name}"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    made = argparse.ArgumentParser(
        prog="dledger spark finish",
        description="Complete writes whose driver failed during the commit. Nothing is stored twice.",
        epilog="Example: dledger spark finish --look",
    )
    add_connection(made)
    made.add_argument(
        "--staging-topic", default=STAGING_TOPIC, metavar="TOPIC", help=f"value of option stagingTopic (default: {STAGING_TOPIC})"
    )
    made.add_argument("--look", action="store_true", help="list incomplete writes, change nothing")
    made.add_argument("--json", action="store_true", help="print JSON")
    arguments = made.parse_args(argv)
    topic = arguments.staging_topic
    options = parse_write_options({"bootstrap": arguments.bootstrap, "stagingTopic": topic})
    with PullConsumer(arguments.bootstrap, timeout_ms=METADATA_TIMEOUT_MS) as consumer:
        try:
            queues = sorted(consumer.topic(topic), key=lambda each: each.replica_group)[0]
        except TopicNotFoundError:
            raise TopicNotFoundError(f"topic {topic} does not exist: Spark has written nothing") from None
    staging = StagingTopic(topic, queues.replica_group, queues.write_queues)
    found = with_publisher(
        options, staging, lambda publisher, control: finish_all(publisher, control, topic, staging.group, look_only=arguments.look)
    )
    report = {"writes": [asdict(each) for each in found]}
    rows = [[each.write, each.number, each.rows, each.result] for each in found]
    print_report(arguments, report, lambda: table(["WRITE", "NUMBER", "ROWS", "RESULT"], rows) if rows else print("no incomplete writes"))
    left = [each for each in found if each.result.startswith("cannot")]
    if left:
        raise JobFailedError(f"{len(left)} of {len(found)} writes cannot be finished; a part of their rows is stored")
    return report


if __name__ == "__main__":
    run_program(main)
