"""What producers were answered against what is stored: lost, doubled, changed, reordered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf

from dledger_drill.checkers.model import Violation, ViolationKind
from dledger_drill.checkers.order import Placed, contradictions
from dledger_drill.checkers.topic import Message, Queue, Sighting, TopicHistory, acknowledged_place, end_of
from dledger_drill.history.records import Operation, OperationKind, Outcome


def check_delivery(topic: TopicHistory) -> Iterator[Violation]:
    places = topic.places()
    if topic.is_audited:
        yield from _lost(topic, places)
        yield from _holes(topic)
        yield from _doubled(topic, places)
        yield from _invented(topic, places)
    yield from _changed(topic, places)
    yield from _reordered_in_time(topic)
    yield from _reordered_by_key(topic)


def _lost(topic: TopicHistory, places: dict[str, list[tuple[Queue, int]]]) -> Iterator[Violation]:
    for value, send in topic.sends.items():
        if send.outcome is Outcome.OK and send.kind is not OperationKind.TRANSACTION and value not in places:
            place = acknowledged_place(send)
            where = f" at offset {place[1]} of {place[0]}" if place else ""
            yield Violation(ViolationKind.LOST, send.round, f"{value} was acknowledged{where} and is not stored in {topic.name}", (send,))


def _holes(topic: TopicHistory) -> Iterator[Violation]:
    """A queue has a message at each offset, also where it is not known which."""
    for queue, content in topic.stored.items():
        for before, after in pairwise(sorted(content)):
            if after != before + 1:
                evidence = topic.excerpt(queue, before), topic.excerpt(queue, after)
                text = f"{queue} of {topic.name} has offsets {before} and {after} and nothing between them"
                yield Violation(ViolationKind.LOST, evidence[0].round, text, evidence)


def _doubled(topic: TopicHistory, places: dict[str, list[tuple[Queue, int]]]) -> Iterator[Violation]:
    for value, found in places.items():
        send = topic.sends.get(value)
        if len(found) > 1 and send is not None and _is_stored_once(send):
            text = f"{value} is stored {len(found)} times: {', '.join(f'offset {offset} of {queue}' for queue, offset in found[:4])}"
            yield Violation(ViolationKind.DOUBLED, send.round, text, (send, *(topic.excerpt(*place) for place in found[:4])))


def _is_stored_once(send: Operation) -> bool:
    """A producer without an identity that was not answered at once may have stored its message at each try."""
    if send.kind is OperationKind.TRANSACTION:
        return False  # has a checker of its own
    return send.data["idempotent"] or (send.outcome is Outcome.OK and send.data.get("attempts") == 1)


def _invented(topic: TopicHistory, places: dict[str, list[tuple[Queue, int]]]) -> Iterator[Violation]:
    for value, found in places.items():
        send = topic.sends.get(value)
        evidence = topic.excerpt(*found[0])
        if send is None:
            text = f"{value} at offset {found[0][1]} of {found[0][0]} in {topic.name} was never sent"
            yield Violation(ViolationKind.CHANGED, evidence.round, text, (evidence,))
        elif send.outcome is Outcome.FAILED and send.kind is not OperationKind.TRANSACTION:
            text = f"{value} was reported as certainly not stored, and stands at offset {found[0][1]} of {found[0][0]}"
            yield Violation(ViolationKind.CHANGED, send.round, text, (send, evidence))


def _changed(topic: TopicHistory, places: dict[str, list[tuple[Queue, int]]]) -> Iterator[Violation]:
    """One offset never means two messages, to anybody, ever; a key stays with its message."""
    first: dict[tuple[Queue, int], Sighting] = {}
    for seen in topic.differing:
        text = f"offset {seen.offset} of {seen.queue} was read as {seen.value} and as another message"
        yield Violation(ViolationKind.CHANGED, seen.by.round, text, (seen.by,))
    for seen in topic.sightings():
        if seen.queue in topic.audits:
            yield from _differs_from_stored(topic, seen, places)
            continue
        known = first.setdefault((seen.queue, seen.offset), seen)
        if known.value != seen.value:
            text = f"offset {seen.offset} of {seen.queue} was {known.value} and {seen.value}"
            yield Violation(ViolationKind.CHANGED, seen.by.round, text, (known.by, seen.by))
    yield from _changed_keys(topic)


def _differs_from_stored(topic: TopicHistory, seen: Sighting, places: dict[str, list[tuple[Queue, int]]]) -> Iterator[Violation]:
    stored = topic.stored[seen.queue].get(seen.offset)
    if stored is not None and stored.value == seen.value:
        return
    if seen.by.kind is OperationKind.SEND and seen.value not in places:
        return  # lost
    seen_text = f"{seen.by.kind} of {seen.by.process}: {seen.value} at offset {seen.offset} of {seen.queue}"
    text = f"{seen_text}, where {stored.value if stored else 'nothing'} is stored"
    yield Violation(ViolationKind.CHANGED, seen.by.round, text, (seen.by, topic.excerpt(seen.queue, seen.offset)))


def _changed_keys(topic: TopicHistory) -> Iterator[Violation]:
    for delivery in topic.deliveries:
        send = topic.sends.get(delivery.data["value"])
        if send is None:
            yield Violation(ViolationKind.CHANGED, delivery.round, f"{delivery.data['value']} was delivered and never sent", (delivery,))
        elif send.data.get("key") != delivery.data["key"]:
            text = f"{delivery.data['value']} was sent with key {send.data.get('key')!r} and delivered with {delivery.data['key']!r}"
            yield Violation(ViolationKind.CHANGED, delivery.round, text, (send, delivery))
    for queue, offset, message in _stored_messages(topic):
        send = topic.sends.get(message.value)
        if send is not None and send.data.get("key") != message.key:
            text = f"{message.value} was sent with key {send.data.get('key')!r} and is stored with {message.key!r}"
            yield Violation(ViolationKind.CHANGED, send.round, text, (send, topic.excerpt(queue, offset)))


def _stored_messages(topic: TopicHistory) -> Iterator[tuple[Queue, int, Message]]:
    for queue, content in topic.stored.items():
        for offset, message in content.items():
            yield queue, offset, message


def placed_sends(topic: TopicHistory) -> dict[Queue, list[Placed[Operation]]]:
    """Sends at their places: those that an acknowledgement named, and those where others of them are stored."""
    placed: dict[Queue, list[Placed[Operation]]] = defaultdict(list)
    acknowledged: set[tuple[Queue, int]] = set()
    for send in topic.sends.values():
        if (place := acknowledged_place(send)) is not None:
            acknowledged.add(place)
            placed[place[0]].append(Placed(place[1], send.invoked_ns, end_of(send), send))
    for queue, offset, message in _stored_messages(topic):
        if (queue, offset) not in acknowledged and message.value in topic.sends:
            send = topic.sends[message.value]
            placed[queue].append(Placed(offset, send.invoked_ns, inf, send))
    return placed


def _reordered_in_time(topic: TopicHistory) -> Iterator[Violation]:
    for queue, placed in placed_sends(topic).items():
        for late, early in contradictions(placed, placed):
            text = f"{early.data['value']} was acknowledged before {late.data['value']} was sent and stands behind it in {queue}"
            yield Violation(ViolationKind.REORDERED, late.round, text, (early, late))


def _reordered_by_key(topic: TopicHistory) -> Iterator[Violation]:
    """A producer's messages with one key are in one queue, and in the order of sending, also those that it sent without waiting."""
    by_key: dict[tuple[str, str], list[tuple[Operation, Queue, int]]] = defaultdict(list)
    for send in topic.sends.values():
        if (place := acknowledged_place(send)) is not None and send.data["key"] is not None:
            by_key[send.process, send.data["key"]].append((send, *place))
    for (process, key), sends in by_key.items():
        sends.sort(key=lambda placed: placed[0].invoked_ns)
        for (before, queue, offset), (after, other_queue, other_offset) in pairwise(sends):
            values = before.data["value"], after.data["value"]
            if queue != other_queue and not topic.altered:
                text = f"key {key!r} of {process}: {values[0]} is in {queue}, {values[1]} in {other_queue}"
                yield Violation(ViolationKind.REORDERED, after.round, text, (before, after))
            elif queue == other_queue and offset > other_offset and _keep_order(before, after):
                text = f"key {key!r} of {process}: {values[0]} was sent first and stands behind {values[1]} in {queue}"
                yield Violation(ViolationKind.REORDERED, after.round, text, (before, after))


def _keep_order(before: Operation, after: Operation) -> bool:
    """Whether only the producer's identity keeps them in order: ``after`` was sent before ``before`` was answered."""
    return before.data["idempotent"] and after.data["idempotent"] and after.invoked_ns <= end_of(before)
