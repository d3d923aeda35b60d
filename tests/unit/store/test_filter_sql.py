"""The SQL92 property filter: RocketMQ's operators, three-valued logic, and errors that point at a column."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import encode_properties
from store.queues.sql92 import MAX_TERMS
from store.queues.sql_filter import SqlFilter

PROPERTIES = {
    "amount": "12.5",
    "region": "eu'west",
    "TAGS": "paid",
    "big": "1e3",
    "flag": "true",
    "word": "alphabet",
    "in_stock": "3",
    "id": "9007199254740993",
    "notation": "x",
    "limit": "9",
    "price": "10",
    "exact": "10.0",
    "next_id": "9007199254740994",
}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("amount = 12.5", True),
        ("amount <> 12.5", False),
        ("amount > 12 AND amount < 13", True),
        ("amount >= 12.5 and amount <= 12.5", True),
        ("big = 1000", True),
        ("region = 'eu''west'", True),
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
        ("id = 9007199254740993", True),
        ("id = 9007199254740992", False),
        ("notation = 'x' AND NOT(in_stock<3)", True),
        ("NOT NOT word IS NULL", False),
        ("word IN (1, 'alphabet')", True),
        ("word NOT IN (1)", False),
        ("in_stock IN (1, 2, 3)", True),
        ("in_stock = 3L and in_stock <> 4l", True),
        ("(in_stock) = 3 AND in_stock = (3)", True),
        ("((in_stock)) = ((3)) AND ((flag))", True),
        ("(in_stock = 3) = TRUE", True),
        ("(missing = 1) IS NULL AND (in_stock = 3) IS NOT NULL", True),
        ("(in_stock) IN (3) AND (word) CONTAINS ('alpha')", True),
        ("in_stock > - 5 AND - in_stock < -2 AND -in_stock = - + 3", True),
        ("- - - in_stock = -3 AND - - in_stock = 3", True),
        ("-word = 1 OR -missing = 1 OR -TRUE = 1", False),
        ("price > limit AND price >= limit AND NOT price < limit AND NOT price <= limit", True),
        ("limit > price OR limit >= price", False),
        ("next_id > id AND id < next_id AND NOT id > next_id", True),
        ("price BETWEEN limit AND amount", True),
        ("price NOT BETWEEN limit AND 11", False),
        ("big BETWEEN limit AND price", False),
        ("price >= exact AND price <= exact", True),
        ("price = exact", False),
        ("price <> exact", True),
        ("(price) > (limit) AND -limit > -price AND 10 > limit", True),
        ("price > missing OR missing > price OR NOT price > missing", False),
        ("price > word OR word > price OR NOT price > word OR price BETWEEN word AND big", False),
        ("price > flag OR flag < price OR (price = 10) > (limit = 8)", False),
        ("in_stock = 3 -- and so on", True),
        ("in_stock /* = 4 */ = /* or\n rather */ 3 -- three\n AND flag", True),
        ("TAGS = '-- paid' OR TAGS = '/* paid */'", False),
    ],
)
def test_expressions(expression: str, expected: bool) -> None:
    assert SqlFilter(expression).matches(PROPERTIES) is expected


@pytest.mark.parametrize(
    ("expression", "column", "text"),
    [
        ("amount >", 9, "the expression ends too early; expected a property name, a text in quotes, a number"),
        ("amount ** 3", 8, "unexpected '** 3'; expected a comparison, AND, OR, )"),
        ("TAGS = 'open", 8, "a text without its closing quote"),
        ("(amount > 1", 12, "the expression ends too early; expected )"),
        ("", 1, "the expression ends too early"),
        ("amount BETWEEN 1", 17, "the expression ends too early; expected AND"),
        ("a = 1 b", 7, "unexpected 'b'; expected AND, OR"),
        ("a =\n1 b", 7, "unexpected 'b'"),
        ("region > 'a'", 8, "> compares numbers, 'a' is none"),
        ("a > ('x')", 3, "> compares numbers, 'x' is none"),
        ("a = 12Lx", 7, "unexpected 'Lx'"),
        ("a = /* 1", 5, "unexpected '/* 1'"),
        ("a between 'x' AND 3", 3, "BETWEEN compares numbers, 'x' is none"),
    ],
)
def test_errors_point_at_the_column(expression: str, column: int, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        SqlFilter(expression)
    assert caught.value.message.startswith(f"filter: column {column}: {text}")
    assert caught.value.details["column"] == str(column)


def test_an_overlong_or_too_deep_expression_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="characters"):
        SqlFilter("a = 1 OR " * 1000 + "a = 1")
    with pytest.raises(InvalidArgumentError, match="nested"):
        SqlFilter("(" * 100 + "a = 1" + ")" * 100)


def test_what_costs_much_is_refused_or_done_without_recursion() -> None:
    assert SqlFilter("NOT " * 1000 + "flag").matches(PROPERTIES)
    assert SqlFilter("- " * 2000 + "in_stock = 3").matches(PROPERTIES)
    assert SqlFilter(" OR ".join(["missing = 1"] * (MAX_TERMS - 1)) + " OR flag").matches(PROPERTIES)
    assert SqlFilter(f"in_stock IN ({', '.join(map(str, range(MAX_TERMS)))})").matches(PROPERTIES)
    for expression in (
        " OR ".join(["a = 1"] * (MAX_TERMS + 1)),
        " AND ".join(["a BETWEEN 1 AND 2"] * (MAX_TERMS + 1)),
        f"a IN ({', '.join(map(str, range(MAX_TERMS + 1)))})",
    ):
        with pytest.raises(InvalidArgumentError, match=f"filter: more than {MAX_TERMS} comparisons and values in lists"):
            SqlFilter(expression)


def test_verdicts_are_remembered_but_for_the_unique_id() -> None:
    ids = [f"{number:032X}" for number in range(3000)]
    texts = [encode_properties({"UNIQ_KEY": key, "amount": str(place % 3)}) for place, key in enumerate(ids)]
    assert SqlFilter("amount = 1").chosen(texts) == list(range(1, 3000, 3))
    assert SqlFilter(f"UNIQ_KEY = '{ids[7]}'").chosen(texts) == [7]
    plain = [encode_properties({"amount": str(number)}) for number in range(3000)]
    assert SqlFilter("amount BETWEEN 10 AND 12").chosen(plain) == [10, 11, 12]


@pytest.mark.parametrize("ids", [("m1", "m2"), ("", "0"), ("a" * 31, "b" * 31), ("a" * 33, "b" * 33), ("a" * 32, "b")])
def test_ids_of_any_length_do_not_mix_up_messages(ids: tuple[str, str]) -> None:
    """Of a client that is not ours; what stands behind the first property is the same in both messages from some byte on."""
    amounts = ("50", "05")
    for expression, expected in (("amount > 10", [0]), ("amount < 10", [1])):
        for order in (1, -1):
            texts = [
                encode_properties({"UNIQ_KEY": key, "amount": amount, "region": "europe-west", "x": "y" * 10})
                for key, amount in zip(ids, amounts, strict=True)
            ][::order]
            assert SqlFilter(expression).chosen(texts) == (expected if order == 1 else [1 - expected[0]])


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        outcome = SqlFilter(text).matches(PROPERTIES)
    except InvalidArgumentError:
        return
    assert outcome in (True, False)


def differences() -> list[tuple[str, dict[str, str], str, str]]:
    """(expression, properties, what RocketMQ does, what is done here) of the table in docs/reference/sql-filters.md."""
    document = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "sql-filters.md").read_text(encoding="utf-8")
    table = document.split("| expression | properties | RocketMQ | here |\n|---|---|---|---|\n")[1].split("\n\n")[0]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    return [(row[0], dict(pair.split("=", 1) for pair in row[1].split(", ") if "=" in pair), row[2], row[3]) for row in rows]


@pytest.mark.parametrize(("expression", "properties", "theirs", "here"), differences(), ids=lambda value: str(value))
def test_the_document_tells_what_differs_from_rocketmq(expression: str, properties: dict[str, str], theirs: str, here: str) -> None:
    try:
        found = "delivered" if SqlFilter(expression).matches(properties) else "not delivered"
    except InvalidArgumentError:
        found = "refused"
    assert found == here != theirs
