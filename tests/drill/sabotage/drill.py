"""A whole drill against a sabotaged build: ``python -m tests.drill.sabotage.drill NAME [ROUNDS [SEED [FAULTS]]]``.

Exit status 0 when the drill found the broken promise.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from dledger_drill.cluster.machines_cluster import MachinesCluster
from dledger_drill.command.choices import chosen
from dledger_drill.faults.catalogue import CATALOGUE, families
from dledger_drill.hosts.capabilities import probe
from dledger_drill.plan.model import DrillOptions, Need
from dledger_drill.report.model import Report
from dledger_drill.report.statistics import verdict
from dledger_drill.report.terminal import Lines
from dledger_drill.run.runner import Drill
from dledger_drill.workloads.spec import DEFAULT_WORKLOADS

ROUNDS = 20
SHOWN = 10


def drill_sabotaged(name: str, folder: Path, *, rounds: int = ROUNDS, seed: int = 1, faults: str = "all", groups: int = 2) -> Report:
    """``name``: of the broken promise; "" is the product as it is."""
    options = DrillOptions(
        faults=chosen(faults, CATALOGUE, families(), "fault"), workloads=DEFAULT_WORKLOADS, seed=seed, rounds=rounds, groups=groups
    )
    folder.mkdir(exist_ok=True)
    command = (sys.executable, "-P", "-m", "tests.drill.sabotage", name) if name else (sys.executable, "-P", "-m", "dledger_cli")
    capabilities = probe()
    missing = dict(capabilities.why_not) | {Need.FIVE_NODES: "three nodes", Need.TLS: "no TLS"}
    shown = Lines(Console(stderr=True))
    return Drill(
        options,
        folder,
        lambda _: "",
        shown,
        lambda: MachinesCluster(folder / "cluster", options, capabilities, command=command),
        missing,
    ).run()


def main(name: str, rounds: str = str(ROUNDS), seed: str = "", faults: str = "all") -> int:
    with tempfile.TemporaryDirectory(prefix="dledger-drill-") as folder:
        drawn = int(seed) if seed else random.randrange(1 << 31)
        found = drill_sabotaged(name, Path(folder), rounds=int(rounds), seed=drawn, faults=faults)
    print(verdict(found))
    for each in [*found.violations, *(violation for round_ in found.rounds for violation in round_.violations)][:SHOWN]:
        print(f"  {each.kind}: {each.text}")
    return 0 if found.rounds and not found.passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
