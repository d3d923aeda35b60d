"""The folder of a drill, which goes when the drill ends, however it ends, unless somebody is to look into it."""

from __future__ import annotations

import shutil
from pathlib import Path

import typer

from dledger_cli.local.swept_folder import SweptFolder
from dledger_cli.output import note


class DrillFolder:
    """``keep``: where the person wants it, in a folder that is made; None: below the folder for temporary files.

    ``kept``: it stays after ``close``.
    """

    def __init__(self, keep: Path | None) -> None:
        self.kept = False
        self._swept: SweptFolder | None = None
        if keep is not None:
            self.path = _new(keep)
        else:
            self._swept = SweptFolder("dledger-drill-")
            self.path = self._swept.path

    def close(self) -> None:
        """Remove it, or say where it is."""
        if self.kept:
            note(f"logs and histories: {self.path}")
        if self._swept is not None:
            if self.kept:
                self._swept.keep()
            self._swept.close()
        elif not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)


def _new(keep: Path) -> Path:
    try:
        keep.mkdir(parents=True)
    except FileExistsError:
        raise typer.BadParameter(f"{keep} exists already", param_hint="--keep") from None
    except OSError as error:
        raise typer.BadParameter(f"{keep}: {error.strerror}", param_hint="--keep") from None
    return keep.absolute()
