"""Modes of a secured node's data folder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

WORK = """
import os, sys
from broker.process.private_folder import make_private
folder, log = sys.argv[1:]
make_private(folder, log)
os.makedirs(folder + "/later")
open(folder + "/later/file", "w").close()
"""


def test_what_is_there_and_what_comes_is_for_its_owner_only(tmp_path: Path) -> None:
    folder, log, elsewhere = tmp_path / "n0", tmp_path / "n0.log", tmp_path / "elsewhere"
    (folder / "config").mkdir(parents=True)
    for file in (folder / "config" / "security.json", log, elsewhere):
        file.write_text("x", encoding="utf-8")
        file.chmod(0o644)
    (folder / "link").symlink_to(elsewhere)
    folder.chmod(0o755)
    subprocess.run([sys.executable, "-c", WORK, str(folder), str(log)], check=True)
    for place, folders, files in os.walk(folder):
        modes = {name: stat.S_IMODE(os.lstat(os.path.join(place, name)).st_mode) for name in [*folders, *files] if name != "link"}
        assert modes == {**dict.fromkeys(folders, 0o700), **{name: 0o600 for name in files if name != "link"}}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o644  # what a link leads to is somebody else's
