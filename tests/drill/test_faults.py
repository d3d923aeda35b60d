"""Every fault once on real machines, under load: each really does what it says, and nothing acknowledged is lost.

With root in one drill of all faults; and as a drill runs where there is none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from dledger_drill.cluster.private import PrivateCluster
from dledger_drill.faults.catalogue import CATALOGUE
from dledger_drill.hosts.capabilities import Capabilities, probe
from dledger_drill.plan.model import DrillOptions, Need
from dledger_drill.report.document import read_document
from dledger_drill.report.model import Report, RoundReport
from dledger_drill.report.terminal import Lines
from dledger_drill.run.runner import Drill
from dledger_drill.workloads.spec import DEFAULT_WORKLOADS
from tests.cluster.harness import ROOT

pytestmark = pytest.mark.cluster

LIMIT_S = 1500
# What a node's log says of a fault that struck it.
TOLD = {
    "full-disk": "the disk is full",
    "damage": "the log is repaired",
    "clock-leader": "the clock is off",
    "failing-disk": "Input/output error",
}


@pytest.fixture(scope="module")
def drilled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """The report of a drill, and the folder of its cluster."""
    if missing := probe().why_not:
        pytest.skip("; ".join(missing.values()))
    folder = tmp_path_factory.mktemp("drill")
    command = [sys.executable, "-P", "-m", "dledger_cli", "drill", "--groups", "1", "--seed", "1", "--rounds", str(len(CATALOGUE) - 1)]
    done = subprocess.run(
        [*command, "--keep", "kept", "--json", "drill.json"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(done.stderr)
    assert done.returncode == 0, done.stdout
    return read_document(folder / "drill.json"), folder / "kept" / "cluster"


@pytest.mark.timeout(LIMIT_S)
def test_every_fault_is_struck_and_nothing_acknowledged_is_lost(drilled: tuple[Report, Path]) -> None:
    report, _ = drilled
    assert report.passed
    assert Counter(each.faults for each in report.rounds) == Counter((name,) for name in CATALOGUE if name != "partition-bridge")
    assert [line for each in report.rounds for line in each.not_struck] == []
    assert report.impossible == {"partition-bridge": "takes --nodes 5"}


def test_what_was_struck_shows_it(drilled: tuple[Report, Path]) -> None:
    report, folder = drilled
    by_fault = {each.faults[0]: each for each in report.rounds}
    logs = {node: (folder / f"{node}.log").read_text(encoding="utf-8", errors="replace") for node in ("n0", "n1", "n2")}
    for family in ("full-disk", "failing-disk", "damage"):
        told = Counter(node for name, each in by_fault.items() if CATALOGUE[name].family == family for node in nodes_of(each))
        for node, times in told.items():
            assert logs[node].count(TOLD[family]) >= (times if family == "damage" else 1), (family, node)
    assert TOLD["clock-leader"] in logs[nodes_of(by_fault["clock-forward-leader"])[0]]
    for name in ("kill-leader", "pause-leader", "partition-leader", "partition-mute", "power-all", "transfer", "replace-leader"):
        assert by_fault[name].terms >= 1, name
    for name in ("kill-follower", "partition-follower", "pause-short-follower", "certificates-rotated"):
        assert by_fault[name].terms == 0, name
    assert by_fault["pause-leader"].unavailable_ms > 500
    assert by_fault["kill-all"].unavailable_ms > by_fault["kill-all"].fault_spans[0].end_s - by_fault["kill-all"].fault_spans[0].start_s
    for name in ("slow-disk-all", "delay"):
        assert slowest(by_fault[name]) > 3 * usual(report), name


def nodes_of(found: RoundReport) -> tuple[str, ...]:
    return found.fault_spans[0].nodes


def slowest(found: RoundReport) -> float:
    """The longest wait for an acknowledgement, milliseconds; an outage is one, too."""
    return max([found.unavailable_ms, *(wait_ms for wait_ms in found.latencies_ms if wait_ms is not None)])


def usual(report: Report) -> float:
    waits = sorted(wait_ms for each in report.rounds for wait_ms in each.latencies_ms if wait_ms is not None)
    return waits[len(waits) // 2]


def test_what_nodes_say_of_faults_is_in_their_log_once_a_line(drilled: tuple[Report, Path]) -> None:
    """A log that a person reads after such a day: no traceback, no line that is no JSON but what the process said when it ended."""
    _, folder = drilled
    for file in folder.glob("*.log"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if not line.startswith("dledger: "):
                assert "Traceback" not in json.dumps(json.loads(line)), (file.name, line)


@pytest.mark.timeout(LIMIT_S)
def test_without_root_the_rest_is_done_on_loopback(tmp_path: Path) -> None:
    missing: Mapping[Need, str] = {need: "takes root" for need in (Need.NAMESPACES, Need.LOOP_DISKS)}
    why_not = {**probe().why_not, **missing}
    faults = ("kill-leader", "partition-leader-peers", "partition-leader", "power-all", "full-disk-follower", "transfer")
    options = DrillOptions(faults=faults, workloads=DEFAULT_WORKLOADS, seed=3, rounds=4, groups=1)
    capabilities = Capabilities(why_not)
    drill = Drill(
        options,
        capabilities,
        tmp_path,
        "dledger drill",
        Lines(Console(stderr=True)),
        lambda: PrivateCluster(tmp_path / "cluster", options, capabilities),
        why_not,
    )
    report = drill.run()
    assert report.passed, report.violations
    assert report.impossible == {"partition-leader": "takes root", "power-all": "takes root"}
    assert {each.faults for each in report.rounds} == {(name,) for name in faults if name not in report.impossible}
    assert [line for each in report.rounds for line in each.not_struck] == []
    addresses = re.findall(r"address: (\S+):", (tmp_path / "cluster" / "cluster.yaml").read_text())
    assert set(addresses) == {"127.0.0.1"}
