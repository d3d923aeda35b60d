"""Each seed that failed once names scripted tests, and they exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.sim.failed_once import CORES, NODES

ROOT = Path(__file__).resolve().parents[2]
TWINS = sorted({twin for twins in (*NODES.values(), *CORES.values()) for twin in twins})


@cache
def _tests_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("twin", TWINS)
def test_the_twin_of_a_seed_exists(twin: str) -> None:
    path, _, name = twin.partition("::")
    assert name.startswith("test_")
    assert name in _tests_in(path), f"{path} has no {name}: give the seeds in tests/sim/failed_once.py another scripted test"


def test_seeds_of_defects_have_twins() -> None:
    assert len(TWINS) >= 18
