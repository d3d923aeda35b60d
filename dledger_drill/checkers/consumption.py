"""What consumers and Spark jobs were given: nothing acknowledged left out, ordered queues in order, a stream's rows once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dledger_drill.checkers.model import Violation, ViolationKind
from dledger_drill.checkers.topic import Queue, TopicHistory, queue_of
from dledger_drill.checkers.transactions import is_committed
from dledger_drill.history.records import Operation, OperationKind, Outcome

IN_ORDER = ("orderly", "pull")


def check_consumption(topic: TopicHistory) -> Iterator[Violation]:
    if topic.is_audited:
        yield from _not_delivered(topic)
    yield from _out_of_order(topic)
    yield from _stream(topic)


def _not_delivered(topic: TopicHistory) -> Iterator[Violation]:
    """Consumers were given the time to read everything before the audit."""
    given: dict[str, set[str]] = {name: set() for name in topic.subscribed}
    for delivery in topic.deliveries:
        given.setdefault(delivery.data["consumer_group"], set()).add(delivery.data["value"])
    stored = topic.places()
    for send in topic.sends.values():
        if not _is_visible(send) or send.data["value"] not in stored:
            continue  # what is not stored is a violation of its own
        for name, values in given.items():
            if send.data["value"] not in values:
                text = f"{send.data['value']} was acknowledged and never given to consumer group {name}"
                yield Violation(ViolationKind.LOST, send.round, text, (send,))


def _is_visible(send: Operation) -> bool:
    return is_committed(send) if send.kind is OperationKind.TRANSACTION else send.outcome is Outcome.OK


def _out_of_order(topic: TopicHistory) -> Iterator[Violation]:
    """Messages of a queue may come again, after a change of owners for example; each comes for the first time in its turn."""
    seen: dict[tuple[str, Queue], set[int]] = defaultdict(set)
    furthest: dict[tuple[str, Queue], Operation] = {}
    for delivery in sorted(topic.deliveries, key=lambda delivery: (delivery.invoked_ns, delivery.data["offset"])):
        if delivery.data["mode"] not in IN_ORDER or delivery.data["redelivered"]:
            continue
        reader, offset = (delivery.data["consumer_group"], queue_of(delivery)), delivery.data["offset"]
        before = furthest.get(reader)
        if before is None or offset > before.data["offset"]:
            furthest[reader] = delivery
        elif offset not in seen[reader]:
            text = f"{reader[0]} was given offset {offset} of {reader[1]} for the first time after offset {before.data['offset']}"
            yield Violation(ViolationKind.REORDERED, delivery.round, text, (before, delivery))
        seen[reader].add(offset)


def _stream(topic: TopicHistory) -> Iterator[Violation]:
    """A stream's runs of a queue join without gap and without overlap, up to the queue's end: it ends when nothing is sent any more."""
    runs: dict[Queue, list[Operation]] = defaultdict(list)
    for job in topic.spark:
        if job.data["job"] == "stream" and job.data["values"]:
            runs[queue_of(job)].append(job)
    for queue, jobs in runs.items():
        jobs.sort(key=lambda job: (job.data["first_offset"], job.invoked_ns))
        end, last = jobs[0].data["first_offset"], jobs[0]
        for job in jobs:
            first = job.data["first_offset"]
            if first > end:
                text = f"the stream left out offsets {end} to {first - 1} of {queue}"
                yield Violation(ViolationKind.LOST, job.round, text, (_without_values(last), _without_values(job)))
            elif first < end:
                text = f"the stream has offsets {first} to {end - 1} of {queue} twice"
                yield Violation(ViolationKind.DOUBLED, job.round, text, (_without_values(last), _without_values(job)))
            end, last = max(end, first + len(job.data["values"])), job
        if (stored_end := max(topic.stored.get(queue, ()), default=-1) + 1) > end:
            text = f"the stream ended at offset {end} of {queue}, which has messages up to {stored_end - 1}"
            yield Violation(ViolationKind.LOST, last.round, text, (_without_values(last),))
    for queue, content in topic.stored.items():
        if runs and content and queue not in runs:
            text = f"the stream was given nothing of {queue}, which has {len(content)} messages"
            yield Violation(ViolationKind.LOST, topic.audits[queue].round, text, ())


def _without_values(job: Operation) -> Operation:
    data = {key: value for key, value in job.data.items() if key != "values"} | {"count": len(job.data["values"])}
    return Operation(job.process, job.kind, job.invoked_ns, job.returned_ns, job.outcome, job.round, data)
