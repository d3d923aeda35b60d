"""Every deliberate fault is found by the simulators; docs/contributing/simulation.md says by which scenario and how soon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim import mutations
from tests.sim.mutations import MUTATIONS, NOT_APPLICABLE, Mutation, is_found_by_its_test, seeds_until_found
from tests.sim.result import RunResult
from tests.sim.test_runs import quiet

__all__ = ["quiet"]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "contributing" / "simulation.md"
QUICK = [mutation for mutation in MUTATIONS if not mutation.slow]
LIST = range(1, 41)


@pytest.mark.parametrize("mutation", QUICK, ids=lambda mutation: mutation.name)
def test_a_fault_put_in_on_purpose_is_found(mutation: Mutation) -> None:
    if mutation.is_simulated:
        assert seeds_until_found(mutation) is not None
    else:
        assert is_found_by_its_test(mutation)


HARMLESS = Mutation("", "nothing is broken", lambda _patch: None, "rot", 3)


def _runs(monkeypatch: pytest.MonkeyPatch, *, anomalies: tuple[str, ...] = (), strays: tuple[str, ...] = ()) -> None:
    result = RunResult(0, 0, 0, 0, 0.0, 0, 0, 0, 0, (), anomalies, strays)
    monkeypatch.setattr(mutations, "run", lambda _name, _seed: result)


def test_a_scenario_that_fails_without_the_fault_too_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _runs(monkeypatch, anomalies=("lost",))
    with pytest.raises(AssertionError, match="without the fault too"):
        seeds_until_found(HARMLESS)


def test_errors_that_broken_code_raises_are_no_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    _runs(monkeypatch, anomalies=("n0: TypeError()",), strays=("n0: TypeError()",))
    assert seeds_until_found(HARMLESS) is None

    def broken(_name: str, _seed: int) -> RunResult:
        raise TimeoutError

    monkeypatch.setattr(mutations, "run", broken)
    assert seeds_until_found(HARMLESS) is None


def test_the_document_tells_of_every_fault_put_in() -> None:
    rows = [tuple(cell.strip() for cell in line.strip("| \n").split("|")) for line in DOCUMENT.read_text(encoding="utf-8").splitlines()]
    told = {row[1]: row for row in rows if len(row) == 4}
    for mutation in MUTATIONS:
        number, _, finder, seeds = told[mutation.name]
        assert (number, finder) == (mutation.number or "-", f"`{mutation.finder}`")
        if not mutation.is_simulated:
            assert seeds == "-"
        elif not mutation.slow:
            count, _, first = seeds.partition(" from seed ")
            assert 0 < int(count) <= mutation.limit
            assert int(first or 0) == mutation.first
    for number, (name, _why) in NOT_APPLICABLE.items():
        assert told[name][0] == number


def test_every_number_of_the_list_is_accounted_for() -> None:
    numbers = {int(number) for mutation in MUTATIONS for number in mutation.number.split(",") if number}
    assert numbers | {int(number) for number in NOT_APPLICABLE} >= set(LIST)
