"""Delayed messages: never before their time, and in bounded time after it unless a fault, or an outage of their group, was in the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dledger_drill.checkers.model import Limits, Violation, ViolationKind
from dledger_drill.checkers.outages import Gap
from dledger_drill.checkers.topic import TopicHistory
from dledger_drill.history.records import Operation, OperationKind, Outcome

Span = tuple[int, int | None]  # None: it did not end


def check_delays(topic: TopicHistory, faults: Sequence[Operation], gaps: Sequence[Gap], limits: Limits) -> Iterator[Violation]:
    given: set[tuple[str, str]] = set()
    for delivery in sorted(topic.deliveries, key=lambda delivery: delivery.invoked_ns):
        send = topic.sends.get(delivery.data["value"])
        if send is None or send.kind is not OperationKind.DELAYED:
            continue
        late_ms = delivery.data["wall_ms"] - send.data["deliver_at_ms"]
        if late_ms < -(limits.level_early_ms if "level" in send.data else limits.delay_early_ms):
            text = f"{send.data['value']} was delivered {-late_ms:.0f} ms before its time"
            yield Violation(ViolationKind.DELAY_EARLY, send.round, text, (send, delivery))
        reader = (delivery.data["consumer_group"], send.data["value"])
        if reader not in given and late_ms > limits.delay_late_ms:
            yield from _late(send, delivery, _obstacles(send.data.get("group", delivery.data["group"]), faults, gaps), limits)
        given.add(reader)


def _obstacles(group: str, faults: Sequence[Operation], gaps: Sequence[Gap]) -> list[Span]:
    """What may have held the message up, in the order in which it began: faults of its replica group, and that group's outages."""
    own = [(gap.start_ns, gap.end_ns) for gap in gaps if gap.group == group]
    struck = [fault for fault in faults if fault.outcome is Outcome.OK and fault.data.get("group", group) == group]
    return sorted([*own, *((fault.invoked_ns, fault.returned_ns) for fault in struck)], key=lambda span: span[0])


def _late(send: Operation, delivery: Operation, obstacles: Sequence[Span], limits: Limits) -> Iterator[Violation]:
    """Time counts from when the message was due and known to be stored, and stands still while something holds it up."""
    due_ns = delivery.invoked_ns - (delivery.data["wall_ms"] - send.data["deliver_at_ms"]) * 1e6
    if send.outcome is Outcome.OK and send.returned_ns is not None:
        due_ns = max(due_ns, send.returned_ns)
    late_ns, at_ns = 0.0, due_ns
    for start_ns, end_ns in obstacles:
        late_ns += max(0.0, min(start_ns, delivery.invoked_ns) - at_ns)
        at_ns = max(at_ns, delivery.invoked_ns if end_ns is None else end_ns)
    late_ms = (late_ns + max(0.0, delivery.invoked_ns - at_ns)) / 1e6
    if late_ms > limits.delay_late_ms:
        text = f"{send.data['value']} was delivered {late_ms:.0f} ms after its time, faults of its replica group not counted"
        yield Violation(ViolationKind.DELAY_LATE, send.round, text, (send, delivery))
