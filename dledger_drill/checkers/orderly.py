"""Orderly consuming: listener calls of one queue never overlap, whoever owns it.  Calls of processes that stood still do not count: nobody
can take a call back from a process that does not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from dledger_drill.checkers.model import Violation, ViolationKind
from dledger_drill.checkers.topic import Queue, TopicHistory, queue_of
from dledger_drill.history.records import Operation


def check_orderly(topic: TopicHistory, pauses: Sequence[Operation]) -> Iterator[Violation]:
    calls: dict[tuple[str, Queue], list[Operation]] = defaultdict(list)
    stood_still: dict[str, list[Operation]] = defaultdict(list)
    for pause in pauses:
        for process in pause.data["processes"]:
            stood_still[process].append(pause)
    for delivery in topic.deliveries:
        if (
            delivery.data["mode"] == "orderly"
            and delivery.returned_ns is not None
            and not _overlaps_one(delivery, stood_still[delivery.process])
        ):
            calls[delivery.data["consumer_group"], queue_of(delivery)].append(delivery)
    for (group, queue), deliveries in calls.items():
        for first, second in _overlaps(deliveries):
            text = f"{group}: calls of {first.data['member']} and {second.data['member']} for {queue} overlap"
            yield Violation(ViolationKind.ORDERLY_OVERLAP, second.round, text, (first, second))


def _overlaps(calls: Iterable[Operation]) -> Iterator[tuple[Operation, Operation]]:
    """Each call with the longest one before it, where they overlap.  Messages given in one call have its times."""
    longest: Operation | None = None
    for call in sorted(calls, key=lambda call: call.invoked_ns):
        if longest is not None and call.invoked_ns < _end(longest) and not _is_same_call(longest, call):
            yield longest, call
        if longest is None or _end(call) > _end(longest):
            longest = call


def _is_same_call(one: Operation, other: Operation) -> bool:
    return (one.process, one.invoked_ns, one.returned_ns) == (other.process, other.invoked_ns, other.returned_ns)


def _overlaps_one(call: Operation, pauses: Sequence[Operation]) -> bool:
    return any(pause.invoked_ns <= _end(call) and call.invoked_ns <= (pause.returned_ns or _end(call)) for pause in pauses)


def _end(call: Operation) -> int:
    return call.invoked_ns if call.returned_ns is None else call.returned_ns
