"""What a simulated run came to, and the command that shows it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class LivenessError(AssertionError):
    """All is well again, and nothing happens."""


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
    copies: int
    faults: tuple[str, ...]
    anomalies: tuple[str, ...]


def replay_command(name: str, seed: int, keep: Sequence[int] | None = None) -> str:
    kept = f" --keep {','.join(map(str, keep)) or 'none'}" if keep is not None else ""
    return f"scripts/sim --scenario {name} --seed {seed}{kept} --trace trace.txt"
