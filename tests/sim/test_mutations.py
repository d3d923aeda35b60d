"""Every deliberate fault is found by the simulators (docs/contributing/simulation.md)."""

from __future__ import annotations

import pytest

from tests.sim import mutations
from tests.sim.mutations import MUTATIONS, NOT_APPLICABLE, Mutation, is_found_by_its_test, seeds_until_found
from tests.sim.result import RunResult
from tests.sim.test_runs import quiet

__all__ = ["quiet"]

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


def test_every_number_of_the_list_is_accounted_for() -> None:
    numbers = {int(number) for mutation in MUTATIONS for number in mutation.number.split(",") if number}
    assert numbers | {int(number) for number in NOT_APPLICABLE} >= set(LIST)
