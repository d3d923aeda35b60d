"""Counters of ten thousand names in fifty series: nothing is lost, and none of them goes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.metrics.catalog import OTHERS
from broker.metrics.top import RANK_MS, TopCounters, top_pairs


def test_ten_thousand_topics_make_fifty_one_series_that_sum_to_the_whole() -> None:
    top = TopCounters(50, 2)
    top.update({f"t{number}": (number, 2 * number) for number in range(10_000)}, 0)
    series = top.series()
    assert len(series) == 51
    assert [sum(column) for column in zip(*series.values(), strict=True)] == [sum(range(10_000)), 2 * sum(range(10_000))]


def test_after_a_while_those_with_the_most_traffic_have_the_series() -> None:
    top = TopCounters(2, 1)
    top.update({"early": (1,), "also": (1,), "busy": (100,), "busier": (500,)}, 0)
    assert set(top.series()) == {"early", "also", OTHERS}
    top.update({"busy": (200,), "busier": (600,)}, RANK_MS)
    assert dict(top.series()) == {"busy": [0], "busier": [0], OTHERS: [800]}  # what came before stays where it was counted
    top.update({"busy": (201,), "early": (5,)}, RANK_MS + 1)
    assert dict(top.series()) == {"busy": [1], "busier": [0], OTHERS: [804]}


def test_a_topic_that_was_made_anew_counts_from_the_beginning() -> None:
    top = TopCounters(2, 1)
    top.update({"t": (10,)}, 0)
    top.update({"t": (3,)}, 1)
    assert dict(top.series()) == {"t": [13]}
    top.forget_all_but(())
    assert dict(top.series()) == {}


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 100), st.integers(0, RANK_MS)), max_size=60))
def test_what_is_summed_under_other_never_goes_back_and_no_count_is_lost(steps: list[tuple[str, int, int]]) -> None:
    top, counts, now_ms, others, lost = TopCounters(2, 1), dict.fromkeys("abcdef", 0), 0, 0, 0
    for name, more, later_ms in steps:
        before = {shown: values[0] for shown, values in top.series().items()}
        counts[name] += more
        now_ms += later_ms
        top.update({name: (counts[name],)}, now_ms)
        after = {shown: values[0] for shown, values in top.series().items()}
        assert len(after.keys() - {OTHERS}) <= 2
        assert after.get(OTHERS, 0) >= others
        others = after.get(OTHERS, 0)
        assert all(after[shown] >= before[shown] for shown in before.keys() & after.keys())
        gone = before.keys() - after.keys()
        lost += sum(before[shown] + (more if shown == name else 0) for shown in gone)
        assert sum(after.values()) + lost == sum(counts.values())


def test_of_many_pairs_the_oldest_and_those_with_the_most_messages_to_go_are_told() -> None:
    lags = {(f"t{number}", "g"): number for number in range(1000)}
    ages = dict.fromkeys(lags, 1.0) | {("t1", "g"): 172_800.0}  # one message, two days old
    assert top_pairs(lags, ages, 4) == [("t1", "g"), ("t0", "g"), ("t999", "g"), ("t998", "g")]
    assert top_pairs(lags, {}, 2) == [("t999", "g"), ("t998", "g")]
    assert set(top_pairs(lags, ages, 1000)) == set(lags)
