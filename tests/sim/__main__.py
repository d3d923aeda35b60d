"""Runs scenarios from the command line: one seed with its trace, or many seeds for a soak.

python -m tests.sim kill-the-leader --seed 17 --trace
python -m tests.sim everything --seeds 0:5000
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim.scenarios import SCENARIOS, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sim", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument("--seed", type=int, help="run this one and show what came of it")
    parser.add_argument("--seeds", default="0:100", metavar="FROM:TO", help="run all of these (TO is not one of them)")
    parser.add_argument("--trace", action="store_true", help="print every delivery and fault")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        result = run(arguments.scenario, arguments.seed, readable=arguments.trace, sink=print if arguments.trace else None)
        print(result)
        return 1 if result.anomalies else 0
    first, upto = (int(part) for part in arguments.seeds.split(":"))
    start, bad = time.monotonic(), 0
    for seed in range(first, upto):
        try:
            result = run(arguments.scenario, seed)
            problems = list(result.anomalies)
        except BaseException as error:  # the seed matters more than the kind
            if isinstance(error, KeyboardInterrupt):
                raise
            problems = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]
        if problems:
            bad += 1
            print(f"seed {seed}: " + "\n  ".join(problems), flush=True)
    took_s = time.monotonic() - start
    print(f"{arguments.scenario}: {upto - first} seeds, {bad} bad, {took_s:.1f} s ({took_s / max(1, upto - first) * 1e3:.0f} ms a seed)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
