"""A failing plan is made smaller, and what remains can be run again."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.scenarios import run
from tests.sim.shrink import Times, parse_times, shrunk, times_text


def test_faults_pairs_and_times_that_are_not_needed_go() -> None:
    def fails(keep: Sequence[int], times: Times) -> bool:
        """Fault 1, long enough; 3 and 4 only matter together: one of them hides what the other does."""
        return 1 in keep and times.get(1, (1.0, 1.0))[1] >= 0.25 and (3 in keep) == (4 in keep)

    assert shrunk(6, fails) == ([1], {1: (0.0, 0.25)})


def test_a_shortened_plan_is_run_again_by_what_the_command_says() -> None:
    times = {1: (0.0, 0.25)}
    assert parse_times(times_text(times)) == times
    whole, shorter = run("everything", 5, keep=[1]), run("everything", 5, keep=[1], times=times)
    assert [one == other for one, other in zip(whole.faults, shorter.faults, strict=True)].count(False) == 1
    assert whole.trace_hash != shorter.trace_hash
    assert run("core-swarm", 5, times=times).faults != run("core-swarm", 5).faults
