"""What consumers were given: nothing acknowledged left out, what was sent back once more, ordered queues in order and without gaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dledger_drill.checkers.model import Violation, ViolationKind
from dledger_drill.checkers.topic import Queue, TopicHistory, queue_of
from dledger_drill.checkers.transactions import is_committed, was_to_be_checked
from dledger_drill.history.records import Operation, OperationKind, Outcome

IN_ORDER = ("orderly", "pull")


def check_consumption(topic: TopicHistory) -> Iterator[Violation]:
    if topic.is_audited:
        yield from _not_delivered(topic)
        yield from _not_given_again(topic)
        yield from _left_out(topic)
    yield from _out_of_order(topic)


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
    if send.kind is OperationKind.TRANSACTION:
        return is_committed(send) or was_to_be_checked(send)
    return send.outcome is Outcome.OK


def _not_given_again(topic: TopicHistory) -> Iterator[Violation]:
    """A message that a listener sent back comes once more, by the retry topic or to the next owner of its queue."""
    latest: dict[tuple[str, str], int] = {}
    for delivery in topic.deliveries:
        reader = delivery.data["consumer_group"], delivery.data["value"]
        latest[reader] = max(delivery.invoked_ns, latest.get(reader, 0))
    for delivery in topic.deliveries:
        name, value = delivery.data["consumer_group"], delivery.data["value"]
        if delivery.data.get("sent_back") and latest[name, value] <= delivery.invoked_ns:
            text = f"{value} was sent back and never given to consumer group {name} again"
            yield Violation(ViolationKind.LOST, delivery.round, text, (delivery,))


def _left_out(topic: TopicHistory) -> Iterator[Violation]:
    """A reader of a queue in order gets everything in it up to where it has come, also what was not known to be stored."""
    seen: dict[tuple[str, Queue], dict[int, Operation]] = defaultdict(dict)
    for delivery in topic.deliveries:
        if delivery.data["mode"] in IN_ORDER and not delivery.data["redelivered"]:
            seen[delivery.data["consumer_group"], queue_of(delivery)][delivery.data["offset"]] = delivery
    for (name, queue), given in seen.items():
        furthest = max(given)
        for offset, message in topic.stored.get(queue, {}).items():
            send = topic.sends.get(message.value)
            if offset < furthest and offset not in given and send is not None and not _is_visible(send):
                text = f"{name} was given offset {furthest} of {queue} and never offset {offset}, {message.value}"
                yield Violation(ViolationKind.LOST, send.round, text, (topic.excerpt(queue, offset), given[furthest]))


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
