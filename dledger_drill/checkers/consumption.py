"""What consumers and Spark jobs were given: nothing acknowledged left out, ordered queues in order, the rows of Spark's jobs once."""

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
    for job in ("batch", "stream"):  # a batch goes on where the one before ended
        yield from _spark(topic, job)


def _not_delivered(topic: TopicHistory) -> Iterator[Violation]:
    """Consumers were given the time to read everything before the audit."""
    given: dict[str, set[str]] = {name: set() for name in topic.subscribed}
    for delivery in topic.deliveries:
        if delivery.data["committed"]:  # what was sent back has to come again
            given.setdefault(delivery.data["consumer_group"], set()).add(delivery.data["value"])
    stored = topic.places()
    for send in topic.sends.values():
        if not _is_visible(send) or send.data["value"] not in stored:
            continue  # what is not stored is a violation of its own
        for name, values in given.items():
            if send.data["value"] not in values:
                text = f"{send.data['value']} was acknowledged and never consumed by consumer group {name}"
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


def _spark(topic: TopicHistory, job: str) -> Iterator[Violation]:
    """A job's runs of a queue join without gap and without overlap, up to the queue's end: it ends when nothing is sent any more."""
    runs: dict[Queue, list[Operation]] = defaultdict(list)
    for each in topic.spark:
        if each.data["job"] == job and each.data["values"]:
            runs[queue_of(each)].append(each)
    for queue, parts in runs.items():
        parts.sort(key=lambda part: (part.data["first_offset"], part.invoked_ns))
        end, last = parts[0].data["first_offset"], parts[0]
        for part in parts:
            first = part.data["first_offset"]
            if first > end:
                text = f"the {job} left out offsets {end} to {first - 1} of {queue}"
                yield Violation(ViolationKind.LOST, part.round, text, (_without_values(last), _without_values(part)))
            elif first < end:
                text = f"the {job} has offsets {first} to {end - 1} of {queue} twice"
                yield Violation(ViolationKind.DOUBLED, part.round, text, (_without_values(last), _without_values(part)))
            end, last = max(end, first + len(part.data["values"])), part
        if (stored_end := max(topic.stored.get(queue, ()), default=-1) + 1) > end:
            text = f"the {job} ended at offset {end} of {queue}, which has messages up to {stored_end - 1}"
            yield Violation(ViolationKind.LOST, last.round, text, (_without_values(last),))
    for queue, content in topic.stored.items():
        if runs and content and queue not in runs:
            text = f"the {job} was given nothing of {queue}, which has {len(content)} messages"
            yield Violation(ViolationKind.LOST, topic.audits[queue].round, text, ())


def _without_values(job: Operation) -> Operation:
    data = {key: value for key, value in job.data.items() if key != "values"} | {"count": len(job.data["values"])}
    return Operation(job.process, job.kind, job.invoked_ns, job.returned_ns, job.outcome, job.round, data)
