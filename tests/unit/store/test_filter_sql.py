"""The SQL92 property filter: RocketMQ's operators, three-valued logic, and errors that point at a column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_wire.errors import InvalidArgumentError
from store.filter_sql import SqlFilter

PROPERTIES = {"amount": "12.5", "region": "eu'west", "TAGS": "paid", "big": "1e3", "flag": "true", "word": "alphabet", "in_stock": "3"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("amount = 12.5", True),
        ("amount <> 12.5", False),
        ("amount > 12 AND amount < 13", True),
        ("amount >= 12.5 and amount <= 12.5", True),
        ("big = 1000", True),
        ("region = 'eu''west'", True),
        ("region > 'a'", False),
        ("amount BETWEEN 12 AND 13", True),
        ("amount NOT BETWEEN 12 AND 13", False),
        ("TAGS IN ('created', 'paid')", True),
        ("TAGS NOT IN ('created', 'paid')", False),
        ("missing IS NULL", True),
        ("amount IS NOT NULL", True),
        ("missing = 1", False),
        ("NOT missing = 1", False),
        ("missing = 1 OR TAGS = 'paid'", True),
        ("NOT (TAGS = 'created')", True),
        ("NOT TAGS = 'created' AND amount > 1", True),
        ("region > 5", False),
        ("NOT region > 5", False),
        ("flag = TRUE", True),
        ("flag", True),
        ("flag = FALSE", False),
        ("word CONTAINS 'phab'", True),
        ("word STARTSWITH 'alpha' AND word ENDSWITH 'bet'", True),
        ("word NOT CONTAINS 'x'", True),
        ("in_stock > 2", True),
        ("12 < amount", True),
        ("amount > -1", True),
    ],
)
def test_expressions(expression: str, expected: bool) -> None:
    assert SqlFilter(expression).matches(PROPERTIES) is expected


@pytest.mark.parametrize(
    ("expression", "column"),
    [("amount >", 9), ("amount ** 3", 8), ("TAGS = 'open", 8), ("(amount > 1", 12), ("", 1), ("amount BETWEEN 1", 17)],
)
def test_errors_point_at_the_column(expression: str, column: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"column {column}\b"):
        SqlFilter(expression)


def test_an_overlong_or_too_deep_expression_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="characters"):
        SqlFilter("a = 1 OR " * 1000 + "a = 1")
    with pytest.raises(InvalidArgumentError, match="nested"):
        SqlFilter("(" * 100 + "a = 1" + ")" * 100)


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        outcome = SqlFilter(text).matches(PROPERTIES)
    except InvalidArgumentError:
        return
    assert outcome in (True, False)
