"""Every fault of the catalogue does something to the nodes it names, and takes it back when it is healed, also when that is asked twice."""

from __future__ import annotations

import random

import pytest

from dledger_drill.faults.base import Strike
from dledger_drill.faults.catalogue import CATALOGUE, LEADING, families, impossible
from dledger_drill.hosts.machine import LinkShape
from dledger_drill.plan.model import FaultChoice, Need
from dledger_wire.errors import DledgerError
from tests.unit.drill.faults.recorded import RecordedCluster

AT_ONCE = {"rolling-restart", "transfer", "replace-follower", "replace-leader", "certificates-rotated"}
UNDONE = {"kill": "start", "pause": "resume", "power off": "power on", "fill": "free", "slow": "fast", "fail": "mend", "shift": "restore"}


def struck(cluster: RecordedCluster, name: str, seed: int = 1) -> Strike:
    return CATALOGUE[name].strike(cluster, FaultChoice(name, "g0", 0.0, 1.0, seed), random.Random(seed))


def of_files() -> list[str]:
    """Faults that look into the files of a node are tried on real ones."""
    return [name for name, fault in CATALOGUE.items() if fault.family == "damage"]


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - set(of_files())))
def test_a_fault_strikes_and_is_taken_back_once(name: str, nodes: int) -> None:
    cluster = RecordedCluster(nodes)
    found = struck(cluster, name)
    links = cluster.recorded_links
    before = list(cluster.done)
    assert before or links.lost or links.shaped or "flapping" in name
    found.heal()
    assert (links.lost, links.shaped) == (set(), set())
    after = cluster.done[len(before) :]
    assert bool(after) != (name in AT_ONCE or CATALOGUE[name].family in ("partition", "link"))
    for line in before:
        begun = next((word for word in sorted(UNDONE, key=len, reverse=True) if line.startswith(f"{word} ")), None)
        node = line.split()[-2 if begun in ("slow", "shift") else -1]
        if begun is not None and not (name in AT_ONCE or name == "kill-leader-twice"):
            assert f"{UNDONE[begun]} {node}" in after, (line, after)
    assert all(machine.process is not None and machine.process.poll() is None for machine in cluster.machines.values())
    healed = len(cluster.done)
    found.heal()
    assert len(cluster.done) == healed


def test_partitions_have_their_shapes() -> None:
    shapes = {}
    for name in families()["partition"]:
        if name != "partition-flapping":
            cluster = RecordedCluster(5)
            struck(cluster, name)
            shapes[name] = cluster.recorded_links.lost
    others = ["n1", "n2", "n3", "n4"]
    assert shapes["partition-deaf"] == {(other, "n0") for other in others}
    assert shapes["partition-mute"] == {("n0", other) for other in others}
    assert shapes["partition-leader"] == {pair for other in [*others, "clients"] for pair in (("n0", other), (other, "n0"))}
    assert shapes["partition-partial"] == {("n0", "n1"), ("n1", "n0")}
    assert len(shapes["partition-all"]) == 20
    assert not any("n1" in pair for pair in shapes["partition-bridge"])
    assert len(shapes["partition-bridge"]) == 8, "two nodes on each side"
    assert len({frozenset(shape) for shape in shapes.values()}) == len(shapes)


def test_the_flapping_link_breaks_more_than_once() -> None:
    cluster = RecordedCluster()
    found = struck(cluster, "partition-flapping")
    assert cluster.recorded_links.restored.wait(30)
    found.heal()
    assert cluster.recorded_links.lost == set()


def test_overlapping_faults_of_links_are_taken_back_each_by_itself() -> None:
    cluster = RecordedCluster()
    links = cluster.recorded_links
    apart, deaf, slow = (struck(cluster, name) for name in ("partition-leader-peers", "partition-deaf", "delay"))
    apart.heal()
    assert links.lost == {("n1", "n0"), ("n2", "n0")}
    assert {("n0", "n1"), ("n0", "n2")} <= links.shaped
    deaf.heal()
    assert (links.lost, links.shaped) == (set(), {pair for other in ("n1", "n2") for pair in (("n0", other), (other, "n0"))})
    slow.heal()
    assert links.shaped == set()


def test_a_partition_that_fails_half_way_is_taken_back() -> None:
    cluster = RecordedCluster()
    shaped = cluster.recorded_links.shape

    def fails(source: str, target: str, shape: LinkShape) -> None:
        if target == "n2":
            raise DledgerError("the switch has ended")
        shaped(source, target, shape)

    cluster.recorded_links.shape = fails  # type: ignore[method-assign]
    with pytest.raises(DledgerError):
        struck(cluster, "partition-leader")
    assert cluster.recorded_links.lost == set()


def test_names_are_unique_and_end_with_whom_they_strike() -> None:
    assert len(CATALOGUE) >= 40
    assert all(fault.name == name and fault.help and fault.hold_s[0] <= fault.hold_s[1] for name, fault in CATALOGUE.items())
    assert {"kill", "pause", "partition", "link", "slow-disk", "full-disk", "failing-disk", "power", "damage", "clock"} <= set(families())
    assert [name for name, fault in CATALOGUE.items() if fault.harmless] == ["pause-clients", "rolling-restart", "transfer"]


def test_one_fault_of_each_family_leads_it() -> None:
    leading = [[name for name in names if name in LEADING] for names in families().values()]
    assert [len(names) for names in leading] == [1] * len(families())
    assert sum(map(len, leading)) == len(LEADING)


def test_what_a_machine_has_no_means_for_is_told() -> None:
    assert impossible(["kill-leader", "loss"], {Need.NAMESPACES: "takes root"}) == {"loss": "takes root"}
