"""What checkers find."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dledger_drill.history.records import Operation


class ViolationKind(StrEnum):
    LOST = "lost"
    DOUBLED = "doubled"
    CHANGED = "changed"
    REORDERED = "reordered"
    TRANSACTION = "transaction"
    DELAY_EARLY = "delivered early"
    DELAY_LATE = "delivered late"
    ORDERLY_OVERLAP = "two owners of an ordered queue"
    STALE_READ = "stale read"
    OFFSET_BACK = "offset moved back"
    REPLICAS_DIFFER = "replicas differ"
    TWO_LEADERS = "two leaders of one term"
    LEAK = "leak"
    NOT_RECOVERED = "not recovered"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.  ``operations``: the few that show it."""

    kind: ViolationKind
    round: int
    text: str
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Outage:
    """A time without an acknowledgement of a replica group's probe, longer than its usual gap; ``start_ns`` is the last one before."""

    group: str
    round: int
    start_ns: int
    end_ns: int

    @property
    def duration_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(slots=True)
class Verdict:
    """``counts``: operations by kind and outcome, as ``"send ok"``.  ``not_judged``: rounds whose messages nobody looked for in the end."""

    violations: list[Violation] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    not_judged: set[int] = field(default_factory=set)
