"""The folder of a drill, which goes when the drill ends, unless somebody is to look into it.

Owns that it goes in the end also when the drill was killed: a running drill holds a lock on a file in its folder, and the next one removes
folders whose lock nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import typer

from dledger_cli.output import note

PREFIX, LOCK = "dledger-drill-", "drill.lock"


class DrillFolder:
    """``keep``: where the person wants it, in a folder that is made; None: below the folder for temporary files.

    ``kept``: it stays after ``close``.
    """

    def __init__(self, keep: Path | None) -> None:
        self.kept = False
        self.path = _new(keep) if keep is not None else Path(tempfile.mkdtemp(prefix=PREFIX))
        # It has its name when it is locked: no other drill takes it for one that was left behind.
        making = self.path / f"{LOCK}.new"
        self._lock = os.open(making, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        making.rename(self.path / LOCK)

    def close(self) -> None:
        """Remove it, or say where it is."""
        if self.kept:
            (self.path / LOCK).unlink(missing_ok=True)
            note(f"logs and histories: {self.path}")
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left_behind() -> list[Path]:
    """Folders of this user's drills that were killed; returns those that are gone."""
    gone = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # no drill's, or removed just now
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(folder)
        except BlockingIOError:  # it runs
            continue
        finally:
            os.close(lock)
    return gone


def _new(keep: Path) -> Path:
    try:
        keep.mkdir(parents=True)
    except FileExistsError:
        raise typer.BadParameter(f"{keep} exists already", param_hint="--keep") from None
    except OSError as error:
        raise typer.BadParameter(f"{keep}: {error.strerror}", param_hint="--keep") from None
    return keep.absolute()
