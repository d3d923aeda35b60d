"""Committed offsets of consumer groups: they survive, never go back, and are what a client committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from dledger_drill.checkers.model import Violation, ViolationKind
from dledger_drill.checkers.order import Call, Fault, check_rising
from dledger_drill.checkers.topic import Queue, TopicHistory, end_of, queue_of
from dledger_drill.history.records import Operation, OperationKind, Outcome


def check_offsets(topic: TopicHistory) -> Iterator[Violation]:
    calls: dict[tuple[str, Queue], list[Call[Operation]]] = defaultdict(list)
    for operation in topic.offsets:
        is_write = operation.kind is OperationKind.COMMIT_OFFSET
        if operation.outcome is Outcome.OK or (is_write and operation.outcome is Outcome.UNKNOWN):
            # Nothing committed yet: reported as -1, or as nothing.
            offset = max(0, operation.data["offset"] or 0)
            ended = end_of(operation)
            call = Call(is_write, offset, operation.invoked_ns, ended if operation.outcome is Outcome.OK else inf, operation)
            calls[operation.data["consumer_group"], queue_of(operation)].append(call)
    for (group, queue), of_queue in calls.items():
        for fault, read, known in check_rising(of_queue):
            if fault is Fault.STALE and known is not None:
                text = f"{group} in {queue}: offset {read.value} after {known.value} was known"
                yield Violation(ViolationKind.OFFSET_BACK, read.item.round, text, (known.item, read.item))
            else:
                text = f"{group} in {queue}: offset {read.value}, which was never committed"
                yield Violation(ViolationKind.CHANGED, read.item.round, text, (read.item,))
