"""Each fault of disks, power, damage and clocks once on real nodes under load: what was acknowledged is stored once, replicas are equal."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

import pytest

from dledger_drill.faults import clocks, damage, disks
from dledger_drill.faults.base import Fault, Target
from dledger_drill.faults.roles import Role, running
from dledger_drill.hosts import loop_disk
from dledger_drill.plan.model import FaultChoice
from tests.drill.disk_nodes import DiskCluster, Load
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster

FAULTS = {fault.name: fault for fault in (*disks.FAULTS, *clocks.FAULTS, *damage.FAULTS)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskCluster]:
    if reason := loop_disk.missing():
        pytest.skip(reason)
    made = DiskCluster(tmp_path_factory.mktemp("nodes"))
    try:
        for name in made.names:
            made.start_node(name)
        made.wait_healthy()
        yield made
    finally:
        made.close()


def judge(cluster: DiskCluster, load: Load) -> None:
    stored = load.stored()
    acknowledged = set(load.acknowledged)
    assert [body for body in stored if body in acknowledged] == load.acknowledged
    assert acknowledged <= set(stored)
    assert set(stored) <= acknowledged | set(load.unknown)
    cluster.inner.wait_equal()
    cluster.inner.cli_ok("verify", "--online")


def saw_it(cluster: DiskCluster, fault: Fault, nodes: list[str], before: dict[str, int]) -> bool:
    """Whether the fault had its effect on every node that it struck, by now."""
    machines = [cluster.machines[node] for node in nodes]
    if fault.family in ("failing-disk", "power"):
        return all(running(machine) is None for machine in machines)
    if fault.family in ("slow-disk", "full-disk"):
        return fault.family == "full-disk" or all(machine.preload.struck > before[machine.name] for machine in machines)
    return True


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_acknowledged_is_lost(cluster: DiskCluster, name: str) -> None:
    fault = FAULTS[name]
    target: Target = cluster
    load = Load(cluster, name)
    try:
        load.wait_for(400)
        before = {machine.name: machine.preload.struck for machine in cluster.machines.values()}
        since = time.monotonic()
        strike = fault.strike(target, FaultChoice(name, cluster.group, 0.0, fault.hold_s[0], 1), random.Random(name))
        wait_until(lambda: saw_it(cluster, fault, strike.nodes, before), f"the effect of {name} on {strike.nodes}")
        if fault.family not in ("failing-disk", "power"):
            end = time.monotonic() + fault.hold_s[0]
            wait_until(lambda: time.monotonic() >= end, "the end of the fault", limit_s=60)
        strike.heal()
        strike.heal()
        cluster.wait_healthy()
        load.wait_for(100)
    finally:
        load.end()
    gap = load.longest_gap_ms(since)
    print(
        f"{name:24} {gap:7.0f} ms  {len(load.acknowledged):5} acknowledged  {len(load.unknown)} unknown  {strike.nodes} {strike.note}",
        file=sys.stderr,
    )
    judge(cluster, load)


def test_flips_were_repaired(cluster: DiskCluster) -> None:
    repaired = [name for name in cluster.names if "the log is repaired" in cluster.inner.log_text(name)]
    assert repaired


def test_a_leader_whose_clock_jumped_lets_another_lead(cluster: DiskCluster) -> None:
    leader = cluster.leader(cluster.group)
    strike = clocks.clock_jump(Role.LEADER, 1)(cluster, FaultChoice("", cluster.group, 0.0, 1.0, 1), random.Random(1))
    try:
        assert strike.nodes == [leader]
        wait_until(lambda: cluster.leader(cluster.group) != leader, "another leader")
        assert "the clock is off from that of the group's majority" in cluster.inner.log_text(leader)
    finally:
        strike.heal()
    cluster.wait_healthy()
