"""What checkers find, and the bounds of what is promised with a tolerance."""

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
    """``counts``: operations by kind and outcome, as ``"send ok"``.  ``not_judged``: rounds whose messages were not read in the end."""

    violations: list[Violation] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    not_judged: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Limits:
    """Tolerances of the checkers.

    Args:
        delay_early_ms: A delayed message may come this much before its time: clocks are read at two places.
        level_early_ms: One with a delay level may come this much before its delay is over: the delay counts from the leader's stamp, and a
            leader's time is behind by what messages between nodes took when it was compared; the next leader's may be less so.
        delay_late_ms: It may come this much after its time and its acknowledgement; faults and outages of its replica group do not count.
        outage_ms: From this time on that a probe waits for an acknowledgement there is an outage, and
        outage_factor: from this multiple of its usual wait on.
        recovery_ms: A replica group acknowledges again within this time without a fault of its own.
        replica_lag: Replicas may differ this much in their last index.
        leak_rounds: Fewer rounds than this show no leak: roles change, and caches fill for a while.  With these bounds no window of 30 to
            100 rounds of a drill of 1000 looked like one.
        leak_rss_bytes: Growth over the whole drill, from which memory that rises round after round counts as a leak.
        leak_files: The same for open files,
        leak_threads: and for threads.
        reported: At most this many violations of a kind are kept.
    """

    delay_early_ms: float = 50.0
    level_early_ms: float = 500.0
    delay_late_ms: float = 20_000.0
    outage_ms: float = 50.0
    outage_factor: float = 5.0
    recovery_ms: float = 60_000.0
    replica_lag: int = 0
    leak_rounds: int = 30
    leak_rss_bytes: int = 128 << 20
    leak_files: int = 30
    leak_threads: int = 8
    reported: int = 10_000
