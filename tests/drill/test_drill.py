"""The whole drill by its command, with real machines: rounds, report, repetition, and what is left when it is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from dledger_drill.report.document import read_document
from tests.cluster.harness import ROOT
from tests.waiting import LIMIT_S, wait_until

COMMAND = [sys.executable, "-P", "-m", "dledger_cli", "drill"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def drill(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S * 2, check=False
    )


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("drill")
    faults = "kill-leader,pause-leader,transfer"
    return folder, drill(folder, "--faults", faults, "--rounds", "3", "--seed", "7", "--report", "drill.html", "--json", "drill.json")


def test_rounds_are_run_judged_and_reported(three: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = three
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.startswith("PASS 3 rounds, seed 7: no acknowledged message lost, doubled, changed or reordered")
    assert len([line for line in done.stderr.splitlines() if line.startswith("round ")]) == 3
    report = read_document(folder / "drill.json")
    assert sorted(each.faults for each in report.rounds) == [("kill-leader",), ("pause-leader",), ("transfer",)]
    for each in report.rounds:
        assert each.acknowledged > 0
        assert set(each.rates) == {"g0", "g1"}
        assert each.fault_spans
        assert each.leaders
    worst = {each.faults[0]: each.unavailable_ms for each in report.rounds}
    assert worst["pause-leader"] > worst["transfer"]
    counts: dict[str, Any] = report.workloads
    assert {"send", "delayed", "transaction", "deliver", "read", "commit_offset", "stored"} <= set(counts)
    page = (folder / "drill.html").read_text()
    assert "<svg" in page
    assert len(page) < 200_000
    assert sorted(path.name for path in folder.iterdir()) == ["drill.html", "drill.json"]


def test_a_round_is_the_same_alone(three: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    whole = read_document(three[0] / "drill.json").rounds[1]
    words = whole.repeat.split()
    assert words[:2] == ["dledger", "drill"]
    done = drill(tmp_path, *words[2:], "--json", "one.json")
    assert done.returncode == 0, done.stderr + done.stdout
    (alone,) = read_document(tmp_path / "one.json").rounds
    assert (alone.number, alone.seed, alone.faults) == (whole.number, whole.seed, whole.faults)


def test_nothing_is_left_of_a_drill_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--rounds", "50", "--keep", str(tmp_path / "kept")], env=ENVIRONMENT, stderr=subprocess.DEVNULL
    ) as process:
        try:
            own = psutil.Process(process.pid)
            wait_until(lambda: len(own.children(recursive=True)) >= 10, "nodes and workloads run")
            children = own.children(recursive=True)
        finally:
            process.kill()
    wait_until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in children), "all processes end")
    wait_until(lambda: str(tmp_path) not in Path("/proc/mounts").read_text(), "nothing is mounted")
    wait_until(lambda: str(tmp_path) not in json.dumps(loop_files()), "no loop device is bound")


def loop_files() -> list[str]:
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.append(backing.read_text().strip())
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--faults", "kil"], "no fault 'kil'; did you mean kill"),
        (["--nodes", "4"], "expected 3 or 5"),
        (["--workloads", "plane"], "no workload 'plane'"),
        (["--report", "nowhere/drill.html"], "no such folder"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_started(tmp_path: Path, options: list[str], expected: str) -> None:
    done = drill(tmp_path, *options)
    assert done.returncode == 2
    assert expected in done.stderr
    assert list(tmp_path.iterdir()) == []
