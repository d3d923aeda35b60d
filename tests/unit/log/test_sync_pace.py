"""When the event loop syncs by itself: never on a slow disk, and for a while not on one that stood still."""

from __future__ import annotations

from itertools import count

import pytest

from dledger.runtime.real_blocked_time import BlockedTime
from dledger.runtime.sync_pace import CALM, FAST_S, HOLD_OFF_S, LOOKED_AT, MAX_HOLD_OFF_S, SHARE, SLOW_ALLOWED, STALL_S, SyncPace

FAST, SLOW, STALL = FAST_S / 2, FAST_S * 2, STALL_S * 2


class Timed:
    """A pace in a time of its own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pace = SyncPace(lambda: self.now_s)

    def took(self, *durations_s: float) -> bool:
        for duration_s in durations_s:
            self.pace.took(duration_s)
        return self.pace.is_fast


def test_a_disk_is_fast_once_enough_syncs_of_the_thread_were() -> None:
    timed = Timed()
    assert not timed.pace.is_fast
    for number in range(1, LOOKED_AT + 1):
        assert timed.took(FAST) is (number == LOOKED_AT)


def test_a_few_slow_ones_among_fast_ones_do_not_count_and_one_more_does() -> None:
    timed = Timed()
    timed.took(*[FAST] * LOOKED_AT, *[SLOW] * SLOW_ALLOWED)
    timed.now_s += 1
    assert timed.pace.is_fast
    timed.took(SLOW)
    timed.now_s += 1
    assert not timed.pace.is_fast
    assert timed.took(*[FAST] * (LOOKED_AT - SLOW_ALLOWED))


@pytest.mark.parametrize("duration_s", [FAST_S + 0.001, STALL_S])
def test_after_a_slow_sync_of_the_loop_the_thread_syncs_for_many_times_as_long_as_it_was_too_slow(duration_s: float) -> None:
    timed = Timed()
    assert timed.took(*[FAST] * LOOKED_AT)
    assert not timed.took(duration_s)
    timed.now_s += SHARE * (duration_s - FAST_S) - 0.01
    assert not timed.took(*[FAST] * LOOKED_AT)
    timed.now_s += 0.02
    assert timed.pace.is_fast


def test_a_disk_that_is_always_slow_never_holds_the_loop_up() -> None:
    timed = Timed()
    assert not any(timed.took(SLOW) for _ in range(1000))
    assert not any(timed.took(STALL) for _ in range(1000))


def test_after_a_stall_the_thread_syncs_for_a_while_however_fast_the_disk_is_again() -> None:
    timed = Timed()
    assert not timed.took(*[FAST] * LOOKED_AT, STALL, *[FAST] * LOOKED_AT)
    timed.now_s += HOLD_OFF_S * 0.99
    assert not timed.took(FAST)
    timed.now_s += HOLD_OFF_S * 0.02
    assert timed.pace.is_fast


def test_each_stall_of_the_loop_is_followed_by_twice_the_time_without_one_up_to_a_limit() -> None:
    timed = Timed()
    expected_s = HOLD_OFF_S
    for _ in range(10):
        assert not timed.took(*[FAST] * LOOKED_AT, STALL, *[FAST] * LOOKED_AT)
        timed.now_s += expected_s - 0.01
        assert not timed.pace.is_fast
        timed.now_s += 0.02
        assert timed.pace.is_fast
        expected_s = min(2 * expected_s, MAX_HOLD_OFF_S)


def test_stalls_of_the_thread_prolong_the_time_and_do_not_double_it() -> None:
    timed = Timed()
    timed.took(*[FAST] * LOOKED_AT, STALL)
    for _ in range(20):
        timed.now_s += HOLD_OFF_S / 2
        assert not timed.took(STALL, *[FAST] * LOOKED_AT)
    timed.now_s += HOLD_OFF_S + 0.01
    assert timed.pace.is_fast


def test_after_a_long_calm_a_stall_counts_as_the_first_one() -> None:
    timed = Timed()
    for _ in range(3):
        timed.took(*[FAST] * LOOKED_AT, STALL)
        timed.now_s += 4 * HOLD_OFF_S
    timed.now_s += CALM * 4 * HOLD_OFF_S
    timed.took(*[FAST] * LOOKED_AT, STALL, *[FAST] * LOOKED_AT)
    timed.now_s += HOLD_OFF_S + 0.01
    assert timed.pace.is_fast


def test_time_spent_computing_is_not_time_blocked() -> None:
    blocked = BlockedTime()
    assert sum(range(2_000_000)) > 0
    spent_s = BlockedTime()._began_s - blocked._began_s
    assert 0.0 <= blocked.so_far_s() < max(spent_s / 2, 0.005)


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_a_disk_that_stalls_now_and_then_holds_the_loop_up_ever_more_rarely(share: float) -> None:
    """A message every 2 ms for ten minutes; of the syncs a share takes 50 ms, on whatever thread."""
    timed, at_once, stalled = Timed(), 0, 0
    every = round(1 / share)
    for number in count():
        duration_s = 0.05 if number % every == every - 1 else FAST
        if timed.pace.is_fast:
            at_once += 1
            stalled += duration_s > STALL_S
        timed.took(duration_s)
        timed.now_s += 0.002 + duration_s
        if timed.now_s > 700:
            break
    assert stalled <= 15
