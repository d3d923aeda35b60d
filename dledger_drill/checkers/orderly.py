"""Orderly consuming: listener calls of one queue never overlap, whichever process owns it.  Calls of processes that stood still do not
count: a call cannot be taken back from a process that does not run."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from dledger_drill.checkers.model import Violation, ViolationKind
from dledger_drill.checkers.topic import Queue, TopicHistory, end_of, queue_of
from dledger_drill.history.records import ALL, Operation


class _Pauses:
    """When each process stood still: starts in order, and the latest end of each pause and all before it."""

    def __init__(self, pauses: Sequence[Operation]) -> None:
        self._starts: dict[str, list[int]] = defaultdict(list)
        self._ends: dict[str, list[float]] = defaultdict(list)
        for pause in sorted(pauses, key=lambda pause: pause.invoked_ns):
            for process in pause.data["processes"]:
                ends = self._ends[process]
                self._starts[process].append(pause.invoked_ns)
                ends.append(max(end_of(pause), ends[-1] if ends else 0))

    def overlap(self, call: Operation) -> bool:
        return any(self._overlap(process, call) for process in (call.process, ALL))

    def _overlap(self, process: str, call: Operation) -> bool:
        began = bisect_right(self._starts.get(process, ()), _end(call))
        return began > 0 and self._ends[process][began - 1] >= call.invoked_ns


def check_orderly(topic: TopicHistory, pauses: Sequence[Operation]) -> Iterator[Violation]:
    calls: dict[tuple[str, Queue], list[Operation]] = defaultdict(list)
    stood_still = _Pauses(pauses)
    for delivery in topic.deliveries:
        if delivery.data["mode"] == "orderly" and delivery.returned_ns is not None and not stood_still.overlap(delivery):
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


def _end(call: Operation) -> int:
    return call.invoked_ns if call.returned_ns is None else call.returned_ns
