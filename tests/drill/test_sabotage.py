"""Each sabotaged build really breaks its promise, and the checkers see it; the product under the same treatment does not.

What is done to them here is the shortest way to the fault.  That a drill finds them is a test of the drill.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger_drill.checkers.check import check_all
from dledger_drill.checkers.model import ViolationKind
from dledger_drill.hosts.loop_disk import LoopDisk
from tests.drill.recorded import Clients
from tests.drill.sabotage.cluster import SabotagedCluster
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.cluster

KILLS = 20
Clusters = Callable[..., SabotagedCluster]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Clusters]:
    made: list[SabotagedCluster] = []

    def make(sabotage: str, *, nodes: int = 3, data: Path = tmp_path) -> SabotagedCluster:
        made.append(SabotagedCluster(data, sabotage, nodes=nodes))
        made[-1].start()
        made[-1].cli_ok("topic", "create", "t", "--queues", "1")
        return made[-1]

    yield make
    for cluster in made:
        cluster.end()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    made = LoopDisk(tmp_path / "disk", None)
    yield made
    made.close()


def broken(clients: Clients) -> set[ViolationKind]:
    return {violation.kind for violation in check_all(clients.history()).violations}


def test_a_node_that_forgot_its_term_ends_when_it_starts_again(make_cluster: Clusters) -> None:
    cluster = make_cluster("forget-term-and-vote", nodes=1)
    cluster.kill("n0")
    cluster.start("n0", wait=False)
    assert cluster.processes["n0"].wait(LIMIT_S) == 1
    assert "hardstate says term 0, but the log has entries of term 1" in cluster.log_text("n0")


def test_leaders_that_forget_producers_store_what_is_sent_again_twice(make_cluster: Clusters) -> None:
    cluster = make_cluster("forget-producers")
    kills = 0
    with Clients(cluster.bootstrap) as load:
        load.produce_without_waiting("load", 0.002)
        # While it goes on, what was sent since the queue was read counts as changed.
        while ViolationKind.DOUBLED not in broken(load):
            assert (kills := kills + 1) <= KILLS
            load.go_on(50)
            kill_leader(cluster)
            load.go_on(50)
    assert broken(load) == {ViolationKind.DOUBLED}


def test_leaders_that_remember_producers_store_it_once(make_cluster: Clusters) -> None:
    cluster = make_cluster("")
    with Clients(cluster.bootstrap) as load:
        load.produce_without_waiting("load", 0.002)
        for _ in range(3):
            load.go_on(50)
            kill_leader(cluster)
            load.go_on(50)
    assert broken(load) == set()


def kill_leader(cluster: SabotagedCluster) -> None:
    """And start it again."""
    leader = cluster.leader()
    cluster.kill(leader)
    cluster.start(leader)


@pytest.mark.parametrize(("sabotage", "found"), [("", set()), ("acknowledge-before-sync", {ViolationKind.LOST})])
def test_what_is_acknowledged_before_it_is_synced_is_lost_with_the_power(
    disk: LoopDisk, make_cluster: Clusters, sabotage: str, found: set[ViolationKind]
) -> None:
    cluster = make_cluster(sabotage, nodes=1, data=disk.path)
    subprocess.run(["sync", "-f", disk.path], check=True, timeout=LIMIT_S)  # the cluster file and the topic
    with Clients(cluster.bootstrap) as load:
        load.produce_without_waiting("load", 0.002)
        load.go_on(200)
    disk.power_off()
    cluster.kill("n0")
    disk.power_on()
    cluster.start("n0")
    assert broken(load) == found
