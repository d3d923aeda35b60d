"""Every fault once on real machines, under load: each really does what it says, and nothing acknowledged is lost.

With root in one drill of all faults; and as a drill runs where there is none.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from dledger_drill.cluster.machines_cluster import MachinesCluster
from dledger_drill.faults.catalogue import CATALOGUE
from dledger_drill.hosts.capabilities import Capabilities, probe
from dledger_drill.plan.model import DrillOptions, Need
from dledger_drill.report.model import Report, RoundReport
from dledger_drill.report.terminal import Lines
from dledger_drill.run.runner import Drill
from dledger_drill.workloads.spec import DEFAULT_WORKLOADS
from tests import needs
from tests.cluster.harness import ROOT
from tests.unit.drill.report.made import read_document

pytestmark = pytest.mark.cluster

LIMIT_S = 1500
# What a node's log says of a fault that struck it.
TOLD = {
    "full-disk": "the disk is full",
    "damage": "the log is repaired",
    "clock-leader": "the clock is off",
    "failing-disk": "Input/output error",
}


@pytest.mark.drills
@pytest.mark.timeout(LIMIT_S)
def test_every_fault_is_struck_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    if missing := probe().why_not:
        needs.lacking("; ".join(missing.values()))
    options = ["--replica-groups", "1", "--seed", "1", "--rounds", str(len(CATALOGUE) - 1)]
    command = [sys.executable, "-P", "-m", "dledger_cli", "drill", *options]
    done = subprocess.run(
        [*command, "--keep", "kept", "--json", "drill.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(done.stderr)
    assert done.returncode == 0, done.stdout
    report = read_document(tmp_path / "drill.json")
    assert report.passed
    assert Counter(each.faults for each in report.rounds) == Counter((name,) for name in CATALOGUE if name != "partition-bridge")
    assert [line for each in report.rounds for line in each.not_struck] == []
    assert report.impossible == {"partition-bridge": "takes --nodes 5"}
    check_effects(report, tmp_path / "kept" / "cluster")


def check_effects(report: Report, folder: Path) -> None:
    """What was struck shows it, in the logs of nodes or in what clients saw."""
    by_fault = {each.faults[0]: each for each in report.rounds}
    logs = {node: (folder / f"{node}.log").read_text(encoding="utf-8", errors="replace") for node in ("n0", "n1", "n2")}
    for family in ("full-disk", "failing-disk", "damage"):
        told = Counter(node for name, each in by_fault.items() if CATALOGUE[name].family == family for node in nodes_of(each))
        for node, times in told.items():
            assert logs[node].count(TOLD[family]) >= (times if family == "damage" else 1), (family, node)
    assert TOLD["clock-leader"] in logs[nodes_of(by_fault["clock-forward-leader"])[0]]
    for name in ("kill-leader", "pause-leader", "partition-leader", "partition-mute", "power-all", "transfer", "replace-leader"):
        assert by_fault[name].terms >= 1, name
    assert by_fault["pause-leader"].unavailable_ms > 150  # the least election timeout, less the time since the last heartbeat
    killed = by_fault["kill-all"].fault_spans[0]
    assert by_fault["kill-all"].unavailable_ms > 1000 * (killed.end_s - killed.start_s)
    for name in ("slow-disk-all", "delay"):
        longer_ms = float(by_fault[name].fault_spans[0].note.split()[0])
        assert slowest(by_fault[name]) > longer_ms, name


def nodes_of(found: RoundReport) -> tuple[str, ...]:
    return found.fault_spans[0].nodes


def slowest(found: RoundReport) -> float:
    """The longest wait for an acknowledgement, milliseconds; an outage is one, too."""
    return max([found.unavailable_ms, *(wait_ms for wait_ms in found.latencies_ms if wait_ms is not None)])


@pytest.mark.timeout(LIMIT_S)
def test_without_root_the_rest_is_done_on_loopback(tmp_path: Path) -> None:
    missing: Mapping[Need, str] = {need: "takes root" for need in (Need.NAMESPACES, Need.LOOP_DISKS)}
    why_not = {**probe().why_not, **missing}
    faults = ("kill-leader", "partition-leader-peers", "partition-leader", "power-all", "full-disk-follower", "transfer")
    options = DrillOptions(faults=faults, workloads=DEFAULT_WORKLOADS, seed=3, rounds=4, groups=1)
    capabilities = Capabilities(why_not)
    drill = Drill(
        options,
        tmp_path,
        lambda _: "dledger drill",
        Lines(Console(stderr=True)),
        lambda: MachinesCluster(tmp_path / "cluster", options, capabilities),
        why_not,
    )
    report = drill.run()
    assert report.passed, report.violations
    assert report.impossible == {"partition-leader": "takes root", "power-all": "takes root"}
    assert {each.faults for each in report.rounds} == {(name,) for name in faults if name not in report.impossible}
    assert [line for each in report.rounds for line in each.not_struck] == []
    addresses = re.findall(r"address: (\S+):", (tmp_path / "cluster" / "cluster.yaml").read_text())
    assert set(addresses) == {"127.0.0.1"}
