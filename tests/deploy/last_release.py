"""An earlier build, as sources: unpacked from git, and run with the interpreter and the dependencies of these tests.

There is no release yet, so it is the commit from which on files and wire are kept compatible; move it when there is one.  It is upgraded
to this build with one feature level more.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from tests.levels import NEXT_LEVEL

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "6c667b10d35a64bf617a76422664e8c52e60fb81"
LEVELS = Path("dledger_wire/feature_levels.py")
TABLE_END, NEXT = "),)  # a level", f"), {NEXT_LEVEL})  # a level"


def unpack(folder: Path) -> Path:
    """The root of its sources, under ``folder``."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", COMMIT]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()} (the history is needed: git fetch --unshallow)"
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
        archive.extractall(folder, **safe)  # noqa: S202
    return folder


def next_release(folder: Path) -> Path:
    """The root of this build's sources, under ``folder``, with one feature level more: as the release after a new level."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True).stdout.decode()
    for name in names.split("\0")[:-1]:
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    levels = (folder / LEVELS).read_text(encoding="utf-8")
    assert levels.count(TABLE_END) == 1
    (folder / LEVELS).write_text(levels.replace(TABLE_END, NEXT), encoding="utf-8")
    return folder
