"""The world of ``transacting.py`` over many seeds: committed once or never, and the check ends what nobody ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.sim import transacting

SEEDS_A_TEST = 4


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, 8, SEEDS_A_TEST))
def test_each_transaction_is_published_once_or_never_and_ends(first: int) -> None:
    """docs/reference/semantics, row X1."""
    worlds = [transacting.run(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert all(len(world.decided) > transacting.TRANSACTIONS for world in worlds)
    assert sum(world.asked for world in worlds) > 0


def test_transactions_end_as_decided_while_the_clocks_of_masters_leap_by_years() -> None:
    """docs/reference/semantics, row C1."""
    for seed in range(SEEDS_A_TEST):
        transacting.run(seed, leaps=True)
