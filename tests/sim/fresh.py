"""Seeds that nobody has run yet: others for every state of the code, the same ones for everybody who runs that code.

Owns how a run of the suite chooses where to look, and how far: ``DLEDGER_ALL_SEEDS=1`` (nightly) runs the whole of the counts in the tests,
every other run a quarter of each.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 5
SHARE = 1 if os.environ.get("DLEDGER_ALL_SEEDS") else 4
CODE = ("dledger_wire", "dledger", "store", "broker", "dledger_client", "tests/sim", "tests/checkers")


def base_seed(root: Path = ROOT) -> int:
    """Where the seeds of the code as it is begin."""
    number = 0
    for folder in CODE:
        for file in sorted((root / folder).rglob("*.py")):
            number = zlib.crc32(file.read_bytes(), number)
    return number & 0xFFFF_F000


def chunks(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """(scenario, first) for parametrizing tests: no seed is in them, so that all workers of a run call a test by the same name."""
    return [(scenario, first) for scenario, count in counts.items() for first in range(0, part_of(count), CHUNK)]


def part_of(count: int) -> int:
    """How many of ``count`` seeds this run of the suite takes: at least one."""
    return -(-count // SHARE)
