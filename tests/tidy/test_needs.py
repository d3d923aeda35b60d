"""What a machine lacks is skipped, and fails where nothing may be left out; no test skips itself past that."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import needs
from tests.tidy.source import ROOT

SCRIPT = ROOT / "scripts" / "test"
COMMANDS = ("bash", "sh", "dirname", "basename", "cat", "sed", "head", "id")


def test_what_is_missing_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(needs.WHOLE_RUN, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no no-such-program on PATH"):
        needs.program("no-such-program")
    monkeypatch.setenv(needs.WHOLE_RUN, "1")
    with pytest.raises(pytest.fail.Exception, match="leaves nothing out"):
        needs.program("no-such-program")
    assert needs.program("sh")


def test_tests_are_skipped_through_needs_alone() -> None:
    """Else ``scripts/test --all`` could pass without them."""
    files = [file for file in (ROOT / "tests").rglob("*.py") if file.name not in ("needs.py", "test_needs.py")]
    assert [str(file.relative_to(ROOT)) for file in files if "pytest.skip(" in file.read_text(encoding="utf-8")] == []


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``scripts/test`` where there are a shell and its tools alone."""
    for command in COMMANDS:
        (tmp_path / command).symlink_to(needs.program(command))
    environment = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": ""}
    return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_one_line_for_each_part_that_is_left_out_and_a_named_layer_has_to_run(tmp_path: Path) -> None:
    done = run(tmp_path, "browser")
    assert done.stdout == "left out: browser, the web console: no chromium (sudo apt-get install chromium)\n"
    assert (done.returncode, done.stderr) == (1, "test: a layer that was named cannot run here\n")


def test_with_all_nothing_is_left_out(tmp_path: Path) -> None:
    done = run(tmp_path, "--all", "cluster")
    assert "left out: cluster, alerts and boards: no prometheus (sudo apt-get install prometheus)\n" in done.stdout
    assert (done.returncode, done.stderr) == (1, "test: --all leaves nothing out\n")


def test_ci_leaves_nothing_out() -> None:
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").endswith("exec scripts/test --all\n")
