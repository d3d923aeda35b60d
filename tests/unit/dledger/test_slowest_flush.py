"""How long the slowest write of late took: what ``dledger status`` calls a slow disk."""

from __future__ import annotations

from dledger.measures import SlowestFlush


class Watch:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_slowest_of_the_last_half_minute_counts_and_one_under_way() -> None:
    watch = Watch()
    flushes = SlowestFlush(watch)
    for took_s in (0.01, 2.0, 0.02):
        flushes.began()
        watch.now_s += took_s
        flushes.ended()
    assert round(flushes.took_s, 3) == 2.0
    watch.now_s += SlowestFlush.WINDOW_S
    assert round(flushes.took_s, 3) == 2.0
    watch.now_s += SlowestFlush.WINDOW_S
    assert flushes.took_s == 0.0
    flushes.began()
    watch.now_s += 3.0
    assert flushes.took_s == 3.0


def test_only_a_write_that_the_event_loop_waited_for_held_it_up() -> None:
    watch = Watch()
    flushes = SlowestFlush(watch)
    for took_s, on_loop in ((2.0, True), (5.0, False)):
        flushes.began()
        watch.now_s += took_s
        flushes.ended(on_loop=on_loop)
    assert flushes.held_loop_s(within_s=6.0) == 2.0
    assert flushes.held_loop_s(within_s=4.0) == 0.0
