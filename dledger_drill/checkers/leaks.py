"""Resources of nodes that rise round after round.

Robust against what a single round does: the slope is the median over all pairs of rounds (Theil and Sen), and the medians of the first and
the last third of the rounds agree that it is growth.  The first rounds, in which caches fill, do not count, nor does what a leader has for
the clients that are connected to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dledger_drill.checkers.model import Limits, Violation, ViolationKind
from dledger_drill.history.records import Operation

WARM_UP = 0.2  # of the rounds
NEAR = 3  # rounds on each side of a change of roles, from which its step is taken
MOST_ROUNDS = 500  # more are thinned out: pairs grow with their square


@dataclass(slots=True)
class LeakCheck:
    """``seen``: the last sample of each round, by node, and whether it led."""

    limits: Limits
    seen: dict[str, dict[int, tuple[Operation, bool]]] = field(default_factory=dict)

    def take(self, operation: Operation, *, leads: bool) -> None:
        self.seen.setdefault(operation.data["node"], {})[operation.round] = operation, leads

    def finish(self) -> Iterator[Violation]:
        for node, by_round in sorted(self.seen.items()):
            rounds = sorted(by_round)
            if len(rounds) < self.limits.leak_rounds:
                continue
            counted = rounds[int(len(rounds) * WARM_UP) :]
            samples = [by_round[number][0] for number in counted]
            leads = np.array([by_round[number][1] for number in counted])
            for name, bound in (
                ("rss_bytes", self.limits.leak_rss_bytes),
                ("files", self.limits.leak_files),
                ("threads", self.limits.leak_threads),
            ):
                values = np.array([sample.data[name] for sample in samples], dtype=float)
                growth = steady_growth(np.array(counted), _as_follower(values, leads))
                if growth > bound:
                    text = f"{node}: {name} rose by {growth:.0f} over {len(counted)} rounds, {growth / len(counted):.1f} a round"
                    yield Violation(ViolationKind.LEAK, counted[-1], text, (samples[0], samples[len(samples) // 2], samples[-1]))


def _as_follower(values: np.ndarray, leads: np.ndarray) -> np.ndarray:
    """Without what leading takes, which is a step when a node is elected and stays: the usual one where its role changes."""
    bounds = [0, *(np.flatnonzero(leads[1:] != leads[:-1]) + 1), len(leads)]
    steps = [
        (np.median(values[at : min(end, at + NEAR)]) - np.median(values[max(begin, at - NEAR) : at])) * (1 if leads[at] else -1)
        for begin, at, end in zip(bounds, bounds[1:], bounds[2:], strict=False)
    ]
    return values - leads * (np.median(steps) if steps else 0.0)


def steady_growth(rounds: np.ndarray, values: np.ndarray) -> float:
    """How much ``values`` rose over ``rounds``; 0 where only a part of them rose, or one jump did."""
    step = -(-len(rounds) // MOST_ROUNDS)
    rounds, values = rounds[::step], values[::step]
    first, second = np.triu_indices(len(rounds), k=1)
    slope = float(np.median((values[second] - values[first]) / (rounds[second] - rounds[first])))
    third = len(values) // 3
    by_thirds = float(np.median(values[-third:]) - np.median(values[:third]))
    return max(0.0, min(slope * float(rounds[-1] - rounds[0]), by_thirds * 1.5))
