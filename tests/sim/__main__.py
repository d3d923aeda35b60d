"""Runs scenarios: one seed with its trace, a range of seeds, or fresh seeds for as long as told.

scripts/sim --scenario kill-the-leader --seed 17 --trace trace.txt
scripts/sim --scenario everything --seeds 0:1000
scripts/sim --list
scripts/soak --minutes 30
scripts/soak --scenario core-one-world --fresh 5000
"""

from __future__ import annotations

import argparse
import inspect
import logging
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from tests.sim.catalog import WHAT
from tests.sim.result import replay_command
from tests.sim.scenarios import NAMES, ONE_WORLD_WITH, run
from tests.sim.shrink import Times, parse_times, shrunk
from tests.sim.worlds import WORLDS

WORKERS = 2
BATCH = 60
ONE_WORLD = ("core-one-world", "one-world")  # every second run of a soak of all scenarios


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed, as it travels between processes; no problems: it passed."""

    scenario: str
    seed: int
    steps: int
    events: int
    problems: tuple[str, ...]


def outcome_of(scenario: str, seed: int, keep: Sequence[int] | None = None, times: Times | None = None) -> Outcome:
    """Run it, and take whatever it raises for a problem."""
    try:
        result = run(scenario, seed, keep=keep, times=times)
    except Exception as error:  # the seed matters more than the kind
        return Outcome(scenario, seed, 0, 0, (f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])))
    return Outcome(scenario, seed, result.steps, result.events, result.anomalies)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names, which = (*NAMES, *ONE_WORLD_WITH), "which (a soak without it takes all in turn, after each one world)"
    parser.add_argument("--scenario", choices=names, metavar="NAME", help=which)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="print what happens in each scenario")
    what.add_argument("--seed", type=int, help="run this one and show what came of it")
    what.add_argument("--seeds", metavar="FROM:TO", help="run all of these (TO is not one of them); 0:100 unless told")
    what.add_argument("--minutes", type=float, help="run fresh seeds for so long")
    what.add_argument("--fresh", type=int, metavar="N", help="run so many fresh seeds")
    parser.add_argument("--trace", metavar="FILE", nargs="?", const="-", help="with --seed: write all that happens there (-: print)")
    parser.add_argument("--keep", metavar="N,N", help="with --seed: carry out only these faults of the plan (none: no fault)")
    parser.add_argument("--shrink", action="store_true", help="with --seed: leave faults out and shorten them as long as it still fails")
    parser.add_argument("--times", metavar="N:D:L,...", help="with --seed: scale the delay and duration of these faults, as --shrink says")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{name:<20} {text}" for name, text in WHAT.items()))
        return 0
    logging.disable(logging.CRITICAL)  # what dying nodes log helps nobody; the trace does
    sys.unraisablehook = _tell_unraisable
    if arguments.seed is None:
        return _run_many(_jobs(arguments), by=None if arguments.minutes is None else time.monotonic() + arguments.minutes * 60)
    if arguments.scenario is None:
        parser.error("--seed needs --scenario")
    keep = _positions(arguments.keep)
    if arguments.scenario in WORLDS and (arguments.shrink or keep is not None or arguments.times):
        parser.error(f"faults of {arguments.scenario} strike its own actors too: none can be left out")
    if arguments.shrink:
        return shrink(arguments.scenario, arguments.seed)
    times = parse_times(arguments.times) if arguments.times else None
    return _run_one(arguments.scenario, arguments.seed, keep, times, arguments.trace)


def _tell_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """As Python does it, but for coroutines of killed processes: they are freed unfinished, and what they raise then is no error."""
    if not (inspect.iscoroutine(unraisable.object) or inspect.isasyncgen(unraisable.object)):
        sys.__unraisablehook__(unraisable)


def _positions(text: str | None) -> list[int] | None:
    if text is None:
        return None
    return [] if text == "none" else [int(part) for part in text.split(",")]


def _run_one(scenario: str, seed: int, keep: Sequence[int] | None, times: Times | None, trace: str | None) -> int:
    lines: list[str] = []
    sink: Callable[[str], None] = print if trace == "-" else lines.append
    try:
        result = run(scenario, seed, keep=keep, times=times, readable=trace is not None, sink=sink if trace is not None else None)
    finally:
        if trace not in (None, "-"):
            Path(trace).write_text("\n".join(lines) + "\n")
            print(f"{len(lines)} lines in {trace}")
    for position, fault in enumerate(result.faults):
        print(f"fault {position}: {fault}")
    print(f"{result.acknowledged} acknowledged, {result.read} read meanwhile, {result.committed} entries, {result.leaders} leaders")
    print(f"{result.events} events, {result.steps} core steps, {result.virtual_s:.3f} s, trace {result.trace_hash:08x}")
    for anomaly in result.anomalies:
        print(f"ANOMALY {anomaly}")
    return 1 if result.anomalies else 0


# Many seeds


def _jobs(arguments: argparse.Namespace) -> Iterator[tuple[str, int]]:
    names = [arguments.scenario] if arguments.scenario is not None else list(NAMES)
    if arguments.minutes is not None or arguments.fresh is not None:
        yield from islice(_fresh_jobs(names), arguments.fresh)
        return
    first, upto = (int(part) for part in (arguments.seeds or "0:100").split(":"))
    for seed in range(first, upto):
        yield from ((name, seed) for name in names)


def _fresh_jobs(names: Sequence[str]) -> Iterator[tuple[str, int]]:
    fresh = random.SystemRandom()
    if len(names) > 1:
        worlds = [ONE_WORLD[place % len(ONE_WORLD)] for place in range(len(names))]
        names = list(chain.from_iterable(zip(names, worlds, strict=True)))
    while True:
        yield from ((name, fresh.randrange(1 << 32)) for name in names)


def _run_many(jobs: Iterator[tuple[str, int]], *, by: float | None) -> int:
    """On all cores; every failing seed at once, with the command that shows it, and in the end how many of each scenario there were."""
    start, steps, events = time.monotonic(), 0, 0
    done: Counter[str] = Counter()
    failed: list[Outcome] = []
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        while (batch := list(islice(jobs, BATCH))) and (by is None or time.monotonic() < by):
            for outcome in pool.imap_unordered(_job, batch):
                done[outcome.scenario] += 1
                steps, events = steps + outcome.steps, events + outcome.events
                if outcome.problems:
                    failed.append(outcome)
                    print("\n  ".join([f"FAILED {replay_command(outcome.scenario, outcome.seed)}", *outcome.problems]), flush=True)
    took_s = time.monotonic() - start
    print("\n".join(summary(done, failed)))
    seeds = done.total()
    rates = f"{seeds / took_s:.1f} seeds, {steps / took_s:.0f} core steps, {events / took_s:.0f} events a second"
    print(f"{seeds} seeds, {len(failed)} bad, {took_s:.1f} s: {rates}")
    return 1 if failed else 0


def summary(done: Counter[str], failed: Sequence[Outcome]) -> list[str]:
    """How many seeds of each scenario ran and failed, and the command that shows each failure."""
    bad = Counter(outcome.scenario for outcome in failed)
    width = max(map(len, done), default=0)
    lines = [f"{scenario:{width}} {done[scenario]:6} seeds {bad[scenario]:4} bad" for scenario in sorted(done)]
    return lines + [replay_command(outcome.scenario, outcome.seed) for outcome in failed]


def _job(job: tuple[str, int]) -> Outcome:
    return outcome_of(*job)


# Shrinking


def shrink(scenario: str, seed: int) -> int:
    """Leave out faults, and make the others shorter, as long as the run still fails; says what remains."""
    faults = len(run(scenario, seed, keep=[]).faults)
    if not outcome_of(scenario, seed).problems:
        print("it does not fail")
        return 0
    keep, times = shrunk(faults, lambda keep, times: bool(outcome_of(scenario, seed, keep, times).problems))
    problems = outcome_of(scenario, seed, keep, times).problems
    print("\n  ".join([f"{len(keep)} of {faults} faults are needed: {replay_command(scenario, seed, keep, times)}", *problems]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
