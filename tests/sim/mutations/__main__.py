"""Counts how many seeds find each deliberate fault: ``python -m tests.sim.mutations [--list] [WORD ...]`` prints the table.

``--list`` prints it without running anything; WORDs choose faults by their names."""

from __future__ import annotations

import logging
import sys

from tests.sim.mutations import MUTATIONS, NOT_APPLICABLE, seeds_until_found


def main() -> int:
    logging.disable(logging.CRITICAL)
    missed, only = 0, [word for word in sys.argv[1:] if word != "--list"]
    lists = "--list" in sys.argv[1:]
    print("| no. | fault put in | found by | seeds until found |\n|---|---|---|---:|")
    for mutation in MUTATIONS:
        if only and not any(word in mutation.name for word in only):
            continue
        found = "-"
        if mutation.is_simulated and not lists:
            seeds = seeds_until_found(mutation)
            missed += seeds is None
            found = str(seeds or f"not in {mutation.limit}")
        print(f"| {mutation.number or '-'} | {mutation.name} | `{mutation.finder}` | {found} |", flush=True)
    for number, why in NOT_APPLICABLE.items():
        print(f"| {number} | {why[0]} | - | {why[1]} |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
