"""tests/unit/core/conformance.md matches the tests: one row per scenario, and every test that a row names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TABLE = Path(__file__).with_name("conformance.md")

SCENARIOS = {
    "E": (1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23),
    "V": (2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18),
    "P": (2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23),
    "A": (1, 3, 4, 6, 7, 9, 10, 11, 12, 13, 15, 16, 18, 19, 21, 22),
    "C": (1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20),
    "F": (2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18),
    "S": (1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20),
    "M": (2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23, 24),
    "T": (2, 3, 5, 6, 8, 9, 11, 12),
    "R": (2, 3, 5, 6, 8, 9, 11),
    "D": (1, 3, 4, 6, 7, 9, 10, 12, 13, 15),
    "K": (1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19),
    "N": tuple(range(1, 17)),
}
IDS = [f"{letter}{number}" for letter, numbers in SCENARIOS.items() for number in numbers]


def rows() -> list[tuple[str, str, list[str]]]:
    found = re.findall(r"^\| ([A-Z]\d+) \| (.*?) \| (.*) \|$", TABLE.read_text(), re.MULTILINE)
    return [(scenario, statement, re.findall(r"`(\w+)`", shown)) for scenario, statement, shown in found]


def existing_tests() -> dict[str, Path]:
    return {
        name: path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }


def test_every_scenario_has_one_row_in_order() -> None:
    assert [scenario for scenario, _statement, _tests in rows()] == IDS


def test_every_row_says_something_and_names_tests_that_exist() -> None:
    existing = existing_tests()
    for scenario, statement, tests in rows():
        assert statement.endswith("."), scenario
        assert tests, scenario
        missing = [name for name in tests if name not in existing]
        assert not missing, (scenario, missing)


def test_a_test_named_after_a_scenario_of_the_table_stands_in_its_row() -> None:
    named = {scenario: tests for scenario, _statement, tests in rows()}
    for name in existing_tests():
        scenario = re.match(r"test_([A-Z]\d+)_", name)
        if scenario is not None and scenario[1] in named:
            assert named[scenario[1]], name


def test_each_row_not_marked_otherwise_is_shown_by_a_test_of_its_own_or_beside_what_it_tests() -> None:
    """A row must not borrow the test of another scenario, unless it says that it does not apply."""
    for scenario, statement, tests in rows():
        borrowed = [name for name in tests if re.match(r"test_[A-Z]\d+_", name) and not name.startswith(f"test_{scenario}_")]
        assert not borrowed or statement.startswith("Does not apply"), (scenario, borrowed)
