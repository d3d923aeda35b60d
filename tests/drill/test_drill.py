"""The whole drill by its command, with real machines: rounds, report, repetition, and what is left when it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dledger_cli.context import nodes_of
from tests.cluster.harness import ROOT, Cluster
from tests.unit.drill.report.made import read_document
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.cluster

COMMAND = [sys.executable, "-P", "-m", "dledger_cli", "drill"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def drill(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S * 2, check=False
    )


@pytest.fixture(scope="module")
def three(module_folder: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    faults = "kill-leader,pause-leader,transfer"
    return module_folder, drill(
        module_folder, "--faults", faults, "--rounds", "3", "--seed", "7", "--report", "drill.html", "--json", "drill.json"
    )


@pytest.fixture
def in_use(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes of one group, as an operator starts them."""
    cluster = Cluster(tmp_path / "cluster")
    cluster.cli_ok("up", "--data", str(cluster.local.data))
    yield cluster
    cluster.end()


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
        assert each.terms >= 1
    assert any(each.unavailable_ms for each in report.rounds)
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


def test_an_interrupted_drill_takes_its_fault_back_and_reports_what_it_ran(tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches the drill and everything that it started in the terminal's process group."""
    options = ["--faults", "pause-short-leader", "--rounds", "50", "--replica-groups", "1", "--json", "drill.json"]
    with subprocess.Popen(
        # Programs that a shell starts in the background are started with SIGINT ignored, the tests may be among them.
        ["env", "--default-signal=INT", *COMMAND, *options],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        try:
            assert process.stderr.readline().startswith("round 1 ")
            os.killpg(process.pid, signal.SIGINT)
            said = process.stdout.read()
            assert process.wait(LIMIT_S) == 130
        finally:
            process.kill()
    assert "(ended early): no acknowledged message lost" in said
    report = read_document(tmp_path / "drill.json")
    assert report.interrupted
    assert 1 <= len(report.rounds) < 50
    assert report.passed


def test_a_cluster_in_use_is_only_struck_as_an_operator_does(in_use: Cluster, tmp_path: Path) -> None:
    file, data, asked = in_use.local.file, in_use.local.data, tmp_path / "asked"
    hook = tmp_path / "restart"
    hook.write_text(
        f"echo $DLEDGER_NODE $DLEDGER_ADDRESS >> {asked}\npid=$(cat {data}/$DLEDGER_NODE.pid)\nkill $pid\n"
        f"while kill -0 $pid 2>/dev/null; do sleep 0.05; done\n{sys.executable} -P -m dledger_cli up --config {file} --data {data}\n"
    )
    options = ["--against", str(file), "--rounds", "3", "--json", "drill.json", "--seed", "1"]
    done = drill(tmp_path, *options, "--restart-command", f"sh {hook}")
    assert done.returncode == 0, done.stderr + done.stdout
    report = read_document(tmp_path / "drill.json")
    assert sorted(each.faults for each in report.rounds) == [("pause-clients",), ("rolling-restart",), ("transfer",)]
    assert not any(each.not_struck for each in report.rounds)
    (nodes,) = nodes_of(in_use.local.config).values()
    assert sorted(asked.read_text().splitlines()) == [f"{node} {address}" for node, address in sorted(nodes.items())]
    assert "drill" not in in_use.cli_ok("topic", "list")
    assert "drill" not in in_use.cli_ok("group", "list")


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
        (["--workloads", "plain,delayed"], "workload delayed: expected together with push or orderly"),
        (["--report", "nowhere/drill.html"], "no such folder"),
        (["--against", "c.yaml", "--faults", "kill-leader"], "kill-leader: not on a cluster in use; expected pause-clients"),
        (["--against", "c.yaml", "--nodes", "5"], "applies to a private cluster"),
        (["--restart-command", "true"], "requires --against"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_started(tmp_path: Path, options: list[str], expected: str) -> None:
    done = drill(tmp_path, *options)
    assert done.returncode == 2
    assert expected in done.stderr
    assert list(tmp_path.iterdir()) == []
