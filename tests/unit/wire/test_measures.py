"""Distributions: which bucket a value falls into, one by one and as an array."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dledger_wire.measures import Histogram


@given(st.lists(st.integers(0, 2000)))
def test_values_count_below_the_first_bound_they_do_not_exceed(values: list[int]) -> None:
    one_by_one, at_once = Histogram((1, 10, 100)), Histogram((1, 10, 100))
    for value in values:
        one_by_one.observe(value)
    at_once.observe_all(np.array(values, ">u4"))
    limits = [-1, 1, 10, 100, 10_000]
    expected = [sum(low < value <= high for value in values) for low, high in pairwise(limits)]
    assert one_by_one.counts == at_once.counts == expected
    assert one_by_one.total == at_once.total == sum(values)
    assert one_by_one.count == len(values)
