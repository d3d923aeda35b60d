"""When a frame arrives over one direction of a link."""

from __future__ import annotations

import itertools

from dledger_drill.hosts.switch import Link


def arrivals(link: Link, count: int, *, step_s: float = 0.0, size: int = 1000) -> list[float | None]:
    return [link.arrival(100.0 + number * step_s, size) for number in range(count)]


def test_a_link_that_was_told_nothing_carries_at_once() -> None:
    assert arrivals(Link(), 3, step_s=1.0) == [100.0, 101.0, 102.0]


def test_a_cut_link_and_one_that_loses_all_carry_nothing() -> None:
    assert arrivals(Link(cut=True), 3) == [None] * 3
    assert arrivals(Link(loss=1.0), 3) == [None] * 3


def test_loss_is_a_share() -> None:
    lost = arrivals(Link(loss=0.25), 10_000).count(None)
    assert 2200 < lost < 2800


def test_jitter_stays_in_its_bounds_and_keeps_the_order() -> None:
    link = Link(delay_s=1.0, jitter_s=0.5)
    found = [arrival for arrival in arrivals(link, 1000, step_s=0.1) if arrival is not None]
    assert len(found) == 1000
    assert all(one <= other for one, other in itertools.pairwise(found))
    assert all(0.5 <= arrival - (100.0 + number * 0.1) <= 1.5 + 1e-9 for number, arrival in enumerate(found))


def test_a_reordered_frame_is_overtaken() -> None:
    link = Link(delay_s=0.1, reorder=1.0)
    late = link.arrival(100.0, 100)
    link.reorder = 0.0
    after = link.arrival(100.001, 100)
    assert late is not None
    assert after is not None
    assert after < late


def test_a_limited_rate_lets_frames_through_one_after_the_other_and_drops_what_would_wait_too_long() -> None:
    link = Link(bytes_per_s=1_000_000.0)
    found = arrivals(link, 1000)
    through = [arrival - 100.0 for arrival in found if arrival is not None]
    assert [round(each, 6) for each in through[:3]] == [0.001, 0.002, 0.003]
    assert 245 <= len(through) <= 255, "a quarter of a second is queued"
    assert link.arrival(101.0, 1000) == 101.001, "the queue is empty again"


def test_a_slow_link_queues_what_a_burst_has() -> None:
    through = [arrival for arrival in arrivals(Link(bytes_per_s=10_000.0), 1000) if arrival is not None]
    assert 128 <= len(through) <= 136, "128 KiB"
