"""What a simulated run came to, and the command that shows it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dledger_wire.check import InvariantBrokenError
from dledger_wire.errors import StorageDamagedError
from tests.sim.shrink import Times, times_text


class LivenessError(AssertionError):
    """All is well again, and nothing happens."""


# What checkers, invariants and the product's own assertions say; a node that calls a disk damaged on which nobody has damaged anything is
# one of them.  Everything else may be raised by any broken code, and proves nothing of those who look.
FINDINGS = (AssertionError, InvariantBrokenError, StorageDamagedError)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run was: two runs of one seed must be equal in every field."""

    seed: int
    trace_hash: int
    events: int
    steps: int
    virtual_s: float
    acknowledged: int
    read: int
    leaders: int
    committed: int
    faults: tuple[str, ...]
    anomalies: tuple[str, ...]
    strays: tuple[str, ...] = ()  # those among the anomalies that are errors of no checker's or invariant's making
    happened: dict[str, int] = field(default_factory=dict)  # what of coverage.ALL did, and how often

    @property
    def findings(self) -> tuple[str, ...]:
        """What checkers and invariants have to say."""
        return tuple(anomaly for anomaly in self.anomalies if anomaly not in self.strays)


def replay_command(name: str, seed: int, keep: Sequence[int] | None = None, times: Times | None = None) -> str:
    kept = f" --keep {','.join(map(str, keep)) or 'none'}" if keep is not None else ""
    shortened = f" --times {times_text(times)}" if times else ""
    return f"scripts/sim --scenario {name} --seed {seed}{kept}{shortened} --trace trace.txt"
