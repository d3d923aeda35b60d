"""Faults that strike the same machine at once: each takes back its own, and a process starts when none keeps it down."""

from __future__ import annotations

import pytest

from tests.unit.drill.faults.recorded import RecordedCluster, RecordedProcess


def cluster_with_two() -> tuple[RecordedCluster, list[str]]:
    cluster = RecordedCluster()
    return cluster, cluster.done


def process_of(cluster: RecordedCluster, node: str) -> RecordedProcess:
    process = cluster.machines[node].process
    assert process is not None
    return process


def test_a_process_starts_when_no_fault_keeps_it_down() -> None:
    cluster, done = cluster_with_two()
    one, other = cluster.machines.hold(), cluster.machines.hold()
    one.kill("n0")
    other.kill("n0")
    one.release("n0")
    assert done == ["kill n0"]
    other.release("n0")
    assert done == ["kill n0", "start n0"]


def test_one_without_power_is_not_started_by_another_fault() -> None:
    cluster, done = cluster_with_two()
    power, kill = cluster.machines.hold(), cluster.machines.hold()
    power.power_off("n0")
    power.kill("n0")
    kill.kill("n0")
    kill.release("n0")
    power.release("n0")
    assert done == ["power off n0", "kill n0", "power on n0", "start n0"]


def test_power_that_was_cut_and_not_followed_by_a_kill_is_taken_back() -> None:
    cluster, done = cluster_with_two()
    power = cluster.machines.hold()
    power.power_off("n0")
    power.release("n0")
    assert done == ["power off n0", "kill n0", "power on n0", "start n0"]


def test_the_slower_disk_counts_and_clocks_add_up() -> None:
    cluster, done = cluster_with_two()
    one, other = cluster.machines.hold(), cluster.machines.hold()
    one.slow("n0", 100.0, 10.0)
    other.slow("n0", 50.0, 5.0)
    one.jump("n0", 30.0)
    other.jump("n0", -10.0)
    one.release("n0")
    other.release("n0")
    assert done == ["slow n0 100", "slow n0 100", "shift n0 30", "shift n0 20", "slow n0 50", "shift n0 -10", "fast n0", "restore n0"]


@pytest.mark.parametrize(("strike", "begun", "undone"), [("fail", "fail n0", "mend n0"), ("pause", "pause n0", "resume n0")])
def test_the_last_fault_takes_it_back(strike: str, begun: str, undone: str) -> None:
    cluster, done = cluster_with_two()
    one, other = cluster.machines.hold(), cluster.machines.hold()
    getattr(one, strike)("n0")
    getattr(other, strike)("n0")
    other.release("n0")
    assert done == [begun, begun]
    one.release("n0")
    assert done == [begun, begun, undone]


def test_one_that_starts_while_it_is_to_stand_still_is_paused() -> None:
    cluster, done = cluster_with_two()
    kill, pause = cluster.machines.hold(), cluster.machines.hold()
    kill.kill("n0")
    pause.pause("n0")
    kill.release("n0")
    pause.release("n0")
    assert done == ["kill n0", "start n0", "pause n0", "resume n0"]


def test_nothing_is_kept_of_faults_that_are_over() -> None:
    cluster, _ = cluster_with_two()
    for _ in range(3):
        held = cluster.machines.hold()
        held.kill("n0")
        held.release("n0")
        held.release("n0")
    assert cluster.machines.all_wanted("n0") == []
    assert cluster.machines.ended() == []


def test_one_that_its_full_disk_has_ended_is_started_again_before_the_round_is_over() -> None:
    cluster, done = cluster_with_two()
    full, replaced = cluster.machines.hold(), cluster.machines.hold()
    full.fill("n0", 0)
    replaced.kill("n0")
    replaced.release("n0")
    process_of(cluster, "n0").kill()  # it ended by itself: no room
    full.release("n0")
    del done[:]
    cluster.machines.start_if_excused("n0")
    cluster.machines.start_if_excused("n0")
    assert done == ["start n0"]


def test_one_that_ended_without_such_a_fault_is_not_started_again() -> None:
    cluster, done = cluster_with_two()
    process_of(cluster, "n0").kill()
    del done[:]
    cluster.machines.start_if_excused("n0")
    assert done == []
    assert cluster.machines.ended() == ["n0"]
