"""Columns of properties are what a regular expression finds in each text alone, whatever foreign producers have stored."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dledger_client.fetch.property_columns import PropertyColumns

names = st.sampled_from(["TAGS", "KEYS", "AGS", "T", ""])
whole = st.builds("{}\x01{}\x02".format, names, st.text("TAGS\x01é =", max_size=6))
texts = st.lists(whole, max_size=4).map("".join)
broken = st.text("TAGS\x01\x02é", max_size=12)


def columns(stored: list[str]) -> PropertyColumns:
    return PropertyColumns(pa.array(stored, pa.string()))


@given(st.lists(texts, min_size=1, max_size=6) | st.lists(texts | broken, min_size=1, max_size=6))
def test_the_first_value_of_a_name(stored: list[str]) -> None:
    found = columns(stored)
    for name in ("TAGS", "KEYS"):
        matches = [re.search(f"(?:^|\x02){name}\x01([^\x02]*)", text) for text in stored]
        assert found.values(name).to_pylist() == [match.group(1) if match else None for match in matches]


@given(st.lists(texts, min_size=1, max_size=6) | st.lists(texts | broken, min_size=1, max_size=6))
def test_all_properties(stored: list[str]) -> None:
    pairs = [[pair.partition("\x01") for pair in text.split("\x02") if "\x01" in pair] for text in stored]
    maps = columns(stored).maps()
    assert maps.type == pa.map_(pa.string(), pa.string())
    assert maps.to_pylist() == [[(name, value) for name, _, value in each] for each in pairs]


def test_no_messages() -> None:
    assert columns([]).values("TAGS").to_pylist() == []
    assert columns([]).maps().to_pylist() == []
