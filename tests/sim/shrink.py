"""Makes a failing plan smaller: fewer faults, shorter ones, sooner.

Owns the order of attempts; whoever asks runs them.  What remains is not the smallest plan there is, but each step from it was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Times = Mapping[int, tuple[float, float]]  # position -> factors of a fault's delay and duration
Fails = Callable[[Sequence[int], Times], bool]
FACTORS = (0.0, 0.25, 0.5)
MOST_FOR_PAIRS = 10


def shrunk(faults: int, fails: Fails) -> tuple[list[int], dict[int, tuple[float, float]]]:
    """The faults of the plan that are needed, and how much shorter they may be; with all of them it fails."""
    keep = _without(list(range(faults)), 1, lambda fewer: fails(fewer, {}))
    if len(keep) <= MOST_FOR_PAIRS:
        keep = _without(keep, 2, lambda fewer: fails(fewer, {}))
    times: dict[int, tuple[float, float]] = {}
    for position in keep:
        for which in (0, 1):
            for factor in FACTORS:
                delay, duration = times.get(position, (1.0, 1.0))
                tried = {**times, position: (factor, duration) if which == 0 else (delay, factor)}
                if fails(keep, tried):
                    times = tried
                    break
    return keep, times


def _without(keep: list[int], count: int, fails: Callable[[list[int]], bool]) -> list[int]:
    """Leave out so many at once, as long as it still fails."""
    for left_out in combinations(list(keep), count):
        fewer = [position for position in keep if position not in left_out]
        if len(fewer) == len(keep) - count and fails(fewer):
            keep = fewer
    return keep


def times_text(times: Times) -> str:
    """For the command line: ``3:0:0.25`` is fault 3 at once and for a quarter of its time."""
    return ",".join(f"{position}:{delay:g}:{duration:g}" for position, (delay, duration) in sorted(times.items()))


def parse_times(text: str) -> dict[int, tuple[float, float]]:
    parts = [part.split(":") for part in text.split(",")]
    return {int(position): (float(delay), float(duration)) for position, delay, duration in parts}
