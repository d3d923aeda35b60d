"""A drill finds each sabotaged build, and finds nothing in the product as it is under the same faults.

Only the faults that matter are struck here.  Twenty rounds of all of them: ``python -m tests.drill.sabotage.drill NAME``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger_drill.checkers.model import ViolationKind
from dledger_drill.faults.catalogue import CATALOGUE, LEADING
from dledger_drill.hosts.capabilities import probe
from dledger_drill.report.model import Report
from dledger_drill.run import segments
from tests import needs
from tests.drill.sabotage.drill import drill_sabotaged
from tests.drill.sabotage.promises import SABOTAGES

pytestmark = [pytest.mark.cluster, pytest.mark.drills]

# Build -> a fault that shows it, and how.
FOUND = {
    "acknowledge-before-sync": ("power-all", ViolationKind.LOST),
    "forget-term-and-vote": ("kill-leader", ViolationKind.NOT_RECOVERED),
    "forget-producers": ("kill-leader", ViolationKind.DOUBLED),
}


ROUNDS, DRILLS = 20, 5  # a drill judges when its rounds are over
HEALTHY_S = 30.0  # a sabotaged build that never becomes whole again is not waited for as long as the product would be


def kinds(report: Report) -> set[str]:
    return {each.kind for each in report.violations} | {each.kind for found in report.rounds for each in found.violations}


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_drill_finds_a_promise_that_is_broken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "HEALTHY_S", HEALTHY_S)
    fault, kind = FOUND[name]
    assert fault in LEADING, "a drill of twenty rounds has it"
    missing = probe().why_not
    if reasons := [missing[need] for need in CATALOGUE[fault].needs if need in missing]:
        needs.lacking("; ".join(reasons))
    for number in range(DRILLS):
        if kind in kinds(drill_sabotaged(name, tmp_path / str(number), rounds=ROUNDS // DRILLS, seed=number, faults=fault, groups=1)):
            return
    pytest.fail(f"{ROUNDS} rounds did not find {name}")


def test_a_drill_finds_nothing_in_the_product_as_it_is(tmp_path: Path) -> None:
    if missing := probe().why_not:
        needs.lacking("; ".join(missing.values()))
    report = drill_sabotaged("", tmp_path, rounds=4, faults="power-all,kill-leader", groups=1)
    assert (len(report.rounds), kinds(report)) == (4, set())
