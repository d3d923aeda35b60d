"""What is in a wheel, and that the command works where a user's own folders have the names of our packages."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, PackagePath, files
from pathlib import Path

import pytest

from dledger_drill.hosts.ports import free_ports
from tests.waiting import LIMIT_S

CLUSTER = """\
cluster: one
groups:
  - name: g0
    nodes:
      - {{id: n0, address: "127.0.0.1:{0}"}}
"""


def run(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("DLEDGER_CONFIG", "PYTHONPATH")}
    if path:
        environment["PYTHONPATH"] = path
    command = [str(Path(sys.executable).parent / "dledger"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.docs
def test_without_a_cluster_file_the_command_takes_the_shipped_one(tmp_path: Path) -> None:
    done = run(tmp_path, "status", "--json")
    assert '"groups"' in done.stdout, done.stderr
    assert "cannot read" not in done.stderr


def installed_files(name: str) -> list[PackagePath]:
    try:
        return files(name) or []
    except PackageNotFoundError:
        return []


@pytest.mark.docs
def test_wheels_have_no_tests_and_what_type_checkers_look_for() -> None:
    names = {str(file) for name in ("dledger", "dledger-client") for file in installed_files(name)}
    assert not [name for name in names if name.startswith("tests/")]
    if "dledger_cli/app.py" in names:  # not so in an editable install
        assert {"dledger_cli/local-3.yaml", "dledger_client/py.typed"} <= names


@pytest.mark.cluster
@pytest.mark.parametrize("path", ["", "here"], ids=["in the folder", "on PYTHONPATH"])
def test_a_users_own_broker_and_store_are_not_imported(tmp_path: Path, path: str) -> None:
    for name in ("broker", "store", "dledger" if not path else "unrelated"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    (tmp_path / "cluster.yaml").write_text(CLUSTER.format(*free_ports(1)))
    try:
        done = run(tmp_path, "up", "--config", "cluster.yaml", path=str(tmp_path) if path else "")
        assert done.returncode == 0, done.stderr
        assert "1 of 1 node up" in done.stdout
    finally:
        run(tmp_path, "down", "--kill")
