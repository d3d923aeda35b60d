"""Each fault of disks, power, damage and clocks once on real nodes under load: what was acknowledged is stored once, replicas are equal."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

import pytest

from dledger_drill.faults import clocks, damage, disks
from dledger_drill.faults.base import Target
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


def effects(cluster: DiskCluster, family: str) -> dict[str, int]:
    """Node -> how often it showed that its disk was slow, full or repaired, or that it has ended, so far."""
    if family == "full-disk":
        return {name: cluster.inner.log_text(name).count("the disk is full") for name in cluster.names}
    if family == "damage":
        return {name: cluster.inner.log_text(name).count("the log is repaired") for name in cluster.names}
    if family == "slow-disk":
        return {name: machine.preload.struck for name, machine in cluster.machines.items()}
    return {name: int(running(machine) is None) for name, machine in cluster.machines.items()}


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_acknowledged_is_lost(cluster: DiskCluster, name: str) -> None:
    fault = FAULTS[name]
    target: Target = cluster
    load = Load(cluster, name)
    try:
        load.wait_for(400)
        before, since = effects(cluster, fault.family), time.monotonic()
        strike = fault.strike(target, FaultChoice(name, cluster.group, 0.0, fault.hold_s[0], 1), random.Random(name))
        if fault.family in ("slow-disk", "full-disk", "failing-disk", "power"):
            wait_until(lambda: all(effects(cluster, fault.family)[node] > before[node] for node in strike.nodes), f"an effect of {name}")
        else:
            load.wait_for(300)
        strike.heal()
        strike.heal()
        cluster.wait_healthy()
        load.wait_for(100)
        if fault.family == "damage":
            assert all(effects(cluster, fault.family)[node] > before[node] for node in strike.nodes)
    finally:
        load.end()
    gap = load.longest_gap_ms(since)
    print(
        f"{name:24} {gap:7.0f} ms  {len(load.acknowledged):5} acknowledged  {len(load.unknown)} unknown  {strike.nodes} {strike.note}",
        file=sys.stderr,
    )
    judge(cluster, load)


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
