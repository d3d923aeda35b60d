"""Everything a report shows, whether as a page, a document or lines.  Times are seconds; those of a round count from its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BIN_S = 0.1  # of the rates and latencies of a timeline
# Kinds of violations that have a column in the table by fault.
COUNTED = ("lost", "doubled", "changed", "reordered")


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """What the drill ran on."""

    cpu: str
    cpus: int
    memory_bytes: int
    kernel: str
    python: str


@dataclass(frozen=True, slots=True)
class FaultSpan:
    """A fault from its beginning until it was taken back."""

    name: str
    nodes: tuple[str, ...]
    start_s: float
    end_s: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class LeaderSpan:
    """A leader as the nodes reported it."""

    group: str
    node: str
    term: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class OutageSpan:
    """A time in which a replica group acknowledged nothing."""

    group: str
    start_s: float
    end_s: float

    @property
    def duration_ms(self) -> float:
        return (self.end_s - self.start_s) * 1000


@dataclass(frozen=True, slots=True)
class ViolationText:
    """A broken promise, with the operations that show it as lines of the history."""

    kind: str
    text: str
    operations: tuple[str, ...] = ()


@dataclass(slots=True)
class RoundReport:
    """One round.

    Attributes:
        repeat: The command that runs it again, alone.
        acknowledged: Messages.
        terms: How many terms began in it, of the replica group that had most.
        counts: Violations by kind, those of ``COUNTED`` always.
        rates: Replica group -> messages acknowledged in each bin of ``BIN_S``.
        not_struck: Faults that could not be struck, and why: such a round says nothing of them.
        judged: Whether what was acknowledged in it was looked for in the end.
        latencies_ms: The 99th percentile of each bin; None where nothing was acknowledged.
    """

    number: int
    seed: int
    faults: tuple[str, ...]
    repeat: str
    duration_s: float
    acknowledged: int = 0
    terms: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[ViolationText] = field(default_factory=list)
    outages: list[OutageSpan] = field(default_factory=list)
    fault_spans: list[FaultSpan] = field(default_factory=list)
    not_struck: list[str] = field(default_factory=list)
    judged: bool = True
    leaders: list[LeaderSpan] = field(default_factory=list)
    rates: dict[str, list[int]] = field(default_factory=dict)
    latencies_ms: list[float | None] = field(default_factory=list)

    @property
    def unavailable_ms(self) -> float:
        """The longest outage of any replica group; 0 when there was none."""
        return max((outage.duration_ms for outage in self.outages), default=0.0)

    @property
    def passed(self) -> bool:
        return not self.violations


@dataclass(slots=True)
class Report:
    """A drill.

    Attributes:
        version: Of dledger.
        started: ISO 8601 with time zone.
        settings: Of the private cluster, and the drill's options.
        wanted: Faults that were asked for.
        described: What each of them does.
        impossible: Those of them that this machine has no means for, and why.
        workloads: Name -> operations by outcome.
        violations: Those that belong to no round.
        interrupted: Whether it was ended before all rounds were run.
        problem: Why the drill itself could not go on; says nothing of the cluster.
    """

    version: str
    command: str
    seed: int
    started: str
    duration_s: float
    machine: MachineInfo
    settings: dict[str, Any] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    described: dict[str, str] = field(default_factory=dict)
    impossible: dict[str, str] = field(default_factory=dict)
    workloads: dict[str, dict[str, int]] = field(default_factory=dict)
    rounds: list[RoundReport] = field(default_factory=list)
    violations: list[ViolationText] = field(default_factory=list)
    interrupted: bool = False
    problem: str = ""

    @property
    def all_violations(self) -> list[ViolationText]:
        return [*self.violations, *(each for found in self.rounds for each in found.violations)]

    @property
    def broken(self) -> bool:
        """Whether a promise was."""
        return bool(self.violations) or not all(each.passed for each in self.rounds)

    @property
    def proving(self) -> list[RoundReport]:
        """Rounds that say something: what was to be struck was struck, and what was acknowledged was looked for."""
        return [each for each in self.rounds if each.judged and not each.not_struck]

    @property
    def passed(self) -> bool:
        return not self.problem and not self.broken and bool(self.proving)

    @property
    def not_reached(self) -> list[str]:
        """Faults that were possible, and that no round struck."""
        struck = {span.name for each in self.rounds for span in each.fault_spans}
        return [name for name in self.wanted if name not in struck and name not in self.impossible]
