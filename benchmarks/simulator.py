"""How much the simulators get done: core events a second on one core, invariants on, pure cores and whole nodes.

python -m benchmarks.simulator --seconds 20
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time

from tests.sim.scenarios import NAMES, run


def measure(scenario: str, seconds: float) -> str:
    """Run seeds of one scenario one after the other in this process."""
    steps = events = seeds = 0
    virtual_s = 0.0
    start = time.perf_counter()
    for seed in itertools.count():
        result = run(scenario, seed)
        if result.anomalies:
            raise SystemExit(f"{scenario} {seed}: {result.anomalies}")
        seeds, steps, events, virtual_s = seeds + 1, steps + result.steps, events + result.events, virtual_s + result.virtual_s
        took_s = time.perf_counter() - start
        if took_s > seconds:
            break
    per_minute = steps / took_s * 60 / 1e6
    rates = f"{steps / took_s:8.0f} core events/s ({per_minute:.2f} million a minute), {events / took_s:8.0f} events/s"
    return f"{scenario:16} {rates}, {seeds / took_s:6.1f} seeds/s, {virtual_s / took_s:6.0f} virtual s/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each scenario")
    parser.add_argument("--scenario", choices=NAMES, help="only this one")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for scenario in NAMES if arguments.scenario is None else (arguments.scenario,):
        print(measure(scenario, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
