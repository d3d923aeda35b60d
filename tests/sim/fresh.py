"""Seeds that nobody has run yet: others for every commit, the same ones for everybody who looks at that commit.

Owns how a run of the suite chooses where to look.  Outside a checkout the date takes the commit's place.
"""

from __future__ import annotations

import datetime
import subprocess
import zlib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 10


def base_seed(root: Path = ROOT) -> int:
    """Where this commit's seeds begin."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
        version = done.stdout if done.returncode == 0 else ""
    except OSError:
        version = ""
    return zlib.crc32((version or datetime.datetime.now(datetime.UTC).date().isoformat()).encode()) & 0xFFFF_F000


def chunks(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """(scenario, first) for parametrizing tests: no seed is in them, so that all workers of a run call a test by the same name."""
    return [(scenario, first) for scenario, count in counts.items() for first in range(0, count, CHUNK)]
