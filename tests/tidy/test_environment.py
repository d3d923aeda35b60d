"""``scripts/lib/environment.sh``: which packages each script installs into .venv, and when."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIP = 'case "$*" in *pip*) echo "$*" >> pip.log ;; esac\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a .venv whose Python notes what pip is to install."""
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text("numpy==2\n")
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "pip"):
        (folder / name).write_text(f"#!/bin/sh\n{PIP}")
        (folder / name).chmod(0o755)
    return tmp_path


def installed(checkout: Path, *parts: str) -> list[str]:
    """What pip was asked for by ``prepare_python`` with these arguments."""
    log = checkout / "pip.log"
    log.write_text("")
    script = f"set -euo pipefail; . '{ROOT}/scripts/lib/environment.sh'; prepare_python {' '.join(parts)}"
    subprocess.run(["bash", "-c", script], cwd=checkout, check=True, capture_output=True, timeout=60)
    return [line.partition("--disable-pip-version-check ")[2] for line in log.read_text().splitlines()]


PROJECT = "-c requirements.lock --no-build-isolation --config-settings editable_mode=compat -e "


def test_running_needs_neither_spark_nor_tools(checkout: Path) -> None:
    assert installed(checkout, "run") == ["-c requirements.lock setuptools", f"{PROJECT}."]
    assert installed(checkout, "run") == []
    assert installed(checkout, "spark") == ["-c requirements.lock setuptools", f"{PROJECT}.[spark]"]
    assert installed(checkout, "run") == []
    assert installed(checkout) == ["-r requirements.lock", f"{PROJECT}."]
    for part in ("run", "spark", ""):
        assert installed(checkout, part) == [], part


def test_a_new_lock_is_installed_by_each(checkout: Path) -> None:
    installed(checkout)
    (checkout / "requirements.lock").write_text("numpy==3\n")
    assert installed(checkout, "run") == ["-c requirements.lock setuptools", f"{PROJECT}."]
    assert installed(checkout) == ["-r requirements.lock", f"{PROJECT}."]
