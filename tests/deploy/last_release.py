"""The last release, as sources: unpacked from git, and run with the interpreter and the dependencies of these tests.

Clones have no tags here, so the commit is named.  Move it when there is a release.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "15ca5d4e547bbc7035531305ced2b16af060f639"  # the last one before feature levels


def unpack(folder: Path) -> Path:
    """The root of its sources, under ``folder``."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", COMMIT]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()} (the history is needed: git fetch --unshallow)"
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
