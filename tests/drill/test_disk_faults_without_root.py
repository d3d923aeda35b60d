"""Nodes in plain folders: the preloaded library makes the full disk there, and what takes root is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_drill.faults.disks import full_disk, power_loss
from dledger_drill.faults.roles import Role
from dledger_drill.plan.model import FaultChoice
from dledger_wire.errors import InvalidArgumentError
from tests.drill.disk_nodes import DiskCluster, Load
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DiskCluster]:
    made = DiskCluster(tmp_path, loop=False)
    try:
        for name in made.names:
            made.start_node(name)
        made.wait_healthy()
        yield made
    finally:
        made.close()


def test_full_disks_stop_the_group_and_nothing_acknowledged_is_lost(cluster: DiskCluster) -> None:
    choice = FaultChoice("full-disk-all", cluster.group, 0.0, 1.0, 1)
    load = Load(cluster, "t")
    try:
        load.wait_for(100)
        strike = full_disk(Role.ALL)(cluster, choice, random.Random(1))
        for name in cluster.names:
            wait_until(lambda name=name: "the disk is full" in cluster.inner.log_text(name), f"{name} telling of its disk")  # type: ignore[misc]
        strike.heal()
        cluster.wait_healthy()
        load.wait_for(100)
    finally:
        load.end()
    assert [body for body in load.stored() if body in set(load.acknowledged)] == load.acknowledged
    with pytest.raises(InvalidArgumentError, match="takes root"):
        power_loss(Role.ALL)(cluster, choice, random.Random(1))
    assert all(machine.process and machine.process.poll() is None for machine in cluster.machines.values())
