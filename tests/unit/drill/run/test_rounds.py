"""A round on a cluster that writes down what is done to it: faults overlap, fail, and are taken back each by itself."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dledger_drill.cluster.cluster import Cluster
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.plan.model import FaultChoice, RoundPlan
from dledger_drill.run.rounds import Round
from dledger_wire.errors import DeadlineExceededError
from tests.unit.drill.faults.recorded import RecordedCluster


def run(cluster: RecordedCluster, *names: str) -> list[Operation]:
    """What the round writes."""
    written: list[Operation] = []
    choices = tuple(FaultChoice(name, "g0", 0.001 * number, 0.001, number) for number, name in enumerate(names))
    Round(cast(Cluster, cluster), RoundPlan(1, 1, choices), written.append, lambda _: None).run()
    return written


def test_faults_that_overlap_are_struck_and_taken_back() -> None:
    cluster = RecordedCluster()
    written = run(cluster, "kill-follower", "partition-leader")
    assert sorted((each.kind, each.outcome, each.data["name"]) for each in written) == [
        (OperationKind.FAULT, Outcome.OK, "kill-follower"),
        (OperationKind.FAULT, Outcome.OK, "partition-leader"),
    ]
    assert all(each.returned_ns is not None and each.returned_ns > each.invoked_ns for each in written)
    assert cluster.recorded_links.lost == set()
    assert [line.split()[0] for line in cluster.done] == ["kill", "start"]


def test_a_fault_that_cannot_be_struck_is_told_and_the_round_goes_on() -> None:
    cluster = RecordedCluster()

    def fails(*_: Any) -> None:
        raise DeadlineExceededError("no leader")

    cluster.transfer_leader = fails  # type: ignore[assignment, method-assign]
    transfer, kill = sorted(run(cluster, "transfer", "kill-leader"), key=lambda each: str(each.outcome))
    assert (transfer.outcome, transfer.data["name"], transfer.data["note"]) == (Outcome.FAILED, "transfer", "no leader")
    assert (kill.outcome, kill.data["name"]) == (Outcome.OK, "kill-leader")
    assert cluster.done[-1] == "start n0"


def test_clients_that_stood_still_are_in_the_history() -> None:
    fault, pause = run(RecordedCluster(), "pause-clients")
    assert (fault.kind, pause.kind, pause.data) == (OperationKind.FAULT, OperationKind.PAUSE, {"processes": ["*"]})


@pytest.mark.parametrize("name", ["full-disk-leader", "kill-leader"])
def test_a_node_that_ended_by_itself_is_not_started_in_silence(name: str) -> None:
    """Neither one that the fault did not strike, nor the one that it strikes when it is dead already."""
    for victim in ("n2", "n0"):
        cluster = RecordedCluster()
        cluster.leader = lambda group, timeout_s=30.0: "n0"  # type: ignore[method-assign]
        process = cluster.machines[victim].process
        assert process is not None
        process.terminate(1)
        run(cluster, name)
        assert cluster.machines.ended() == [victim]
        assert f"start {victim}" not in cluster.done or victim == "n0"


def test_a_node_whose_disk_did_not_work_is_started_again() -> None:
    cluster = RecordedCluster()
    disk = cluster.machines["n0"].disk
    filled = disk.fill

    def ends(leave_bytes: int) -> None:
        filled(leave_bytes)
        process = cluster.machines["n0"].process
        assert process is not None
        process.terminate(1)

    disk.fill = ends  # type: ignore[method-assign]
    run(cluster, "full-disk-leader")
    assert cluster.machines.ended() == []
    assert cluster.done == ["fill n0", "stop n0", "free n0", "start n0"]


def test_a_fault_that_nothing_came_of_was_not_struck() -> None:
    cluster = RecordedCluster()
    cluster.machines["n0"].disk.calls = 0
    (fault,) = run(cluster, "slow-disk-leader")
    assert fault.outcome is Outcome.FAILED
    assert fault.data["note"].endswith(": n0 wrote nothing meanwhile")
