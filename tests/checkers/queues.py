"""Workloads W2 (total queue), W5 (append if the end is where I think) and W7 (committed group offsets), each checked in linear time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from dledger_drill.checkers.order import Call, Fault, check_rising
from tests.checkers.append_log import Anomaly, Outcome


def check_total_queue(
    attempted: Iterable[Hashable], acked: Iterable[Hashable], dequeued: Iterable[Hashable], *, duplicates_allowed: bool
) -> list[Anomaly]:
    """W2: everything acknowledged comes out; nothing comes out that was not put in; once only, unless duplicates are allowed."""
    tried, confirmed, out = Counter(attempted), Counter(acked), Counter(dequeued)
    found = [
        Anomaly("lost", f"{value} acknowledged {count}, dequeued {out[value]}") for value, count in confirmed.items() if out[value] < count
    ]
    found += [Anomaly("unexpected", f"{value} was never enqueued") for value in out if value not in tried]
    if not duplicates_allowed:
        found += [
            Anomaly("duplicate", f"{value} dequeued {count} times")
            for value, count in out.items()
            if value in tried and count > tried[value]
        ]
    return found


@dataclass(frozen=True, slots=True)
class ConditionalAppend:
    """Append ``value`` if the log ends at ``expected_end``.  ``seen_end`` is the end a refusal reported (-1: none)."""

    value: str
    expected_end: int
    invoked: float
    returned: float
    outcome: Outcome
    seen_end: int = -1


def check_conditional_appends(operations: Sequence[ConditionalAppend], final: Sequence[str]) -> list[Anomaly]:
    """W5: successes form one chain (each end is won once, in order of real time), refusals report an end that was true meanwhile."""
    found: list[Anomaly] = []
    place = {value: number for number, value in enumerate(final)}
    acked = [operation for operation in operations if operation.outcome is Outcome.ACKED]
    for operation in acked:
        if place.get(operation.value) != operation.expected_end:
            found.append(Anomaly("chain", f"{operation.value} won end {operation.expected_end} but stands at {place.get(operation.value)}"))
    for end in Counter(operation.expected_end for operation in acked):
        if sum(operation.expected_end == end for operation in acked) > 1:
            found.append(Anomaly("fork", f"end {end} was won twice"))
    by_value = {operation.value: operation for operation in operations}
    for value in final:
        if value not in by_value:
            found.append(Anomaly("unexpected", f"{value} was never sent"))
        elif by_value[value].outcome is Outcome.FAILED:
            found.append(Anomaly("resurrected", f"{value} had definitely failed"))
    for operation in operations:
        if operation.outcome is Outcome.FAILED and operation.seen_end >= 0:
            found += _check_seen_end(operation, acked)
    return found


def _check_seen_end(refused: ConditionalAppend, acked: Sequence[ConditionalAppend]) -> list[Anomaly]:
    surely_before = max((winner.expected_end + 1 for winner in acked if winner.returned < refused.invoked), default=0)
    surely_after = min((winner.expected_end for winner in acked if winner.invoked > refused.returned), default=refused.seen_end)
    if surely_before <= refused.seen_end <= surely_after:
        return []
    return [Anomaly("stale end", f"{refused.value} was told end {refused.seen_end}, possible were {surely_before} to {surely_after}")]


@dataclass(frozen=True, slots=True)
class OffsetCall:
    """A commit of a group's offset, or a read of it (``offset`` is what it returned; 0: nothing committed yet)."""

    is_commit: bool
    offset: int
    invoked: float
    returned: float
    outcome: Outcome


def check_group_offsets(calls: Sequence[OffsetCall]) -> list[Anomaly]:
    """W7: a committed offset is a register that only rises, so it is linearizable exactly if no read is older than what was known before it
    (an acknowledged commit, another read's answer), and none tells what nobody had tried to commit by then.
    """
    told = [call for call in calls if call.outcome is Outcome.ACKED or (call.is_commit and call.outcome is Outcome.UNKNOWN)]
    rising = [
        Call(call.is_commit, call.offset, call.invoked, call.returned if call.outcome is Outcome.ACKED else inf, call) for call in told
    ]
    found: list[Anomaly] = []
    for fault, read, known in check_rising(rising):
        if fault is Fault.STALE and known is not None:
            found.append(Anomaly("stale offset", f"{read.value} read from {read.invoked} on, {known.value} was known before"))
        else:
            found.append(Anomaly("unexpected", f"offset {read.value} read by {read.returned}, nobody had committed it"))
    return found


def check_redelivery(commits: Sequence[tuple[float, int]], deliveries: Sequence[tuple[float, int]]) -> list[Anomaly]:
    """W7: after a commit of ``offset`` (next to read) was acknowledged, nothing below it is delivered again.

    ``commits`` and ``deliveries`` are (time, offset); a reset of the group's offset is a commit too and may go back.
    """
    found: list[Anomaly] = []
    events = sorted([(at, 0, offset) for at, offset in commits] + [(at, 1, offset) for at, offset in deliveries])
    committed = 0
    for at, is_delivery, offset in events:
        if not is_delivery:
            committed = offset
        elif offset < committed:
            found.append(Anomaly("redelivered", f"offset {offset} at {at}, after {committed} was committed"))
    return found
