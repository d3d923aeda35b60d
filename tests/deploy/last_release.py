"""An earlier build, as sources: unpacked from git, and run with the interpreter and the dependencies of these tests.

There is no release yet, so it is the commit from which on files and wire are kept compatible; move it when there is one.  It can do one
feature level less than this build, as a release before a new level.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "93a4907bfbb620d5c3fc39a8fb4dcda03ac547ec"
LEVELS = Path("dledger_wire/feature_levels.py")
HIGHEST, LOWER = "MAX_LEVEL: Final = 1\n", "MAX_LEVEL: Final = 0\n"


def unpack(folder: Path) -> Path:
    """The root of its sources, under ``folder``."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", COMMIT]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()} (the history is needed: git fetch --unshallow)"
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    levels = (folder / LEVELS).read_text(encoding="utf-8")
    assert levels.count(HIGHEST) == 1
    (folder / LEVELS).write_text(levels.replace(HIGHEST, LOWER), encoding="utf-8")
    return folder
