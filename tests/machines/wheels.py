"""Wheels for hosts without internet: of the project as it stands, and of all that it needs to run.

Owns which versions: those of requirements.lock.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.machines.base import base_tree, made_once

ROOT = Path(__file__).resolve().parents[2]
_SOURCE_ONLY = ("pysyncobj",)  # pure Python, and only its sources are published


def wheelhouse(folder: Path, *, version: str | None = None, extras: tuple[str, ...] = ()) -> Path:
    """Fill ``folder`` with wheels: ``pip install --no-index --find-links FOLDER dledger`` works on a host then.

    Args:
        version: What the project's wheels call themselves; None: that of pyproject.toml.
        extras: Of pyproject.toml, whose packages are to be there, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in needed_wheels(extras).glob("*.whl"):
        shutil.copy(wheel, folder)
    environment = dict(os.environ) if version is None else {**os.environ, "DLEDGER_VERSION": version}
    _run([str(ROOT / "scripts" / "wheels"), str(folder)], environment)
    return folder


def needed_wheels(extras: tuple[str, ...] = ()) -> Path:
    """The folder with the wheels of what the project needs, fetched once for each lock file."""
    python = _python_of(base_tree())
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(each for name in extras for each in project["optional-dependencies"][name])]
    digest = hashlib.sha256("\n".join([python, lock, *wanted]).encode()).hexdigest()[:12]

    def make(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
        source_only = [line for line in lock.splitlines() if line.startswith(_SOURCE_ONLY)]
        _run([*pip, "wheel", "--no-deps", "-w", str(folder), *source_only])
        target = ["--python-version", python, "--implementation", "cp", "--only-binary", ":all:"]
        _run([*pip, "download", *target, "--find-links", str(folder), "-d", str(folder), "-c", str(ROOT / "requirements.lock"), *wanted])

    return made_once(f"wheels-{digest}", make)


def _python_of(tree: Path) -> str:
    """The version of Python that hosts have, such as ``3.11``."""
    found = re.fullmatch(r"python(3\.\d+)", os.path.basename(os.path.realpath(tree / "usr" / "bin" / "python3")))
    assert found, f"{tree}: no python3"
    return found[1]


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
