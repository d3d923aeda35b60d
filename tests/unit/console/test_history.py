"""Series, rates and samplers of the web console, and the words it shows numbers with."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus
from dledger_client.admin.consumer_groups import ConsumerGroupDescription, QueueLag
from dledger_client.admin.group_progress import GroupProgress
from dledger_console.history.cluster import ClusterHistory, furthest_behind
from dledger_console.history.groups import GroupRates
from dledger_console.history.sampler import Sampler
from dledger_console.history.series import Rate, Series
from dledger_console.layout import words
from dledger_wire.errors import PermissionDeniedError, UnreachableError
from tests.waiting import until


def test_a_series_keeps_its_newest_points() -> None:
    series = Series(3)
    for at_ms in range(5):
        series.add(at_ms, at_ms * 2.0)
    assert series.points() == [(2, 4.0), (3, 6.0), (4, 8.0)]
    assert series.last == 8.0


def test_a_rate_has_gaps_where_the_counter_began_again_or_was_not_known() -> None:
    rate = Rate()
    for at_ms, total, process in (
        (0, 100, "a"),
        (2_000, 300, "a"),
        (4_000, 10, "b"),
        (6_000, 30, "b"),
        (8_000, None, ""),
        (10_000, 50, "b"),
    ):
        rate.add(at_ms, total, process)
    assert [value for _, value in rate.series.points()] == [None, 100.0, None, 10.0, None, None]


def test_a_rate_is_not_that_of_the_time_in_which_nobody_looked() -> None:
    rate = Rate()
    for at_ms, total in ((0, 0), (2_000, 200), (3_600_000, 300), (3_602_000, 500)):
        rate.add(at_ms, total)
    assert [value for _, value in rate.series.points()] == [None, 100.0, None, 100.0]


def _group(at_s: int, leader: str = "n0") -> ReplicaGroupStatus:
    nodes = tuple(
        NodeStatus(
            "g0", node, "", True, role="leader" if node == leader else "follower", committed_index=100 - lag, messages_in_total=total * at_s
        )
        for node, lag, total in (("n0", 0, 50), ("n1", 7, 0))
    )
    return ReplicaGroupStatus("g0", nodes, nodes[0], ("n0", "n1"), (), frozenset({"n0", "n1"}))


def test_a_replica_group_has_the_rates_of_its_nodes_and_what_is_gone_is_dropped() -> None:
    history = ClusterHistory()
    history.take_status(0, [_group(0)])
    history.take_status(1_000, [_group(1)])
    assert history.messages_in["g0"].last == 50.0
    assert history.entries_behind["n1"].last == 7
    history.take_status(2_000, [])
    assert not history.messages_in
    assert not history.entries_behind


def _consumers(**lags: int) -> list[ConsumerGroupDescription]:
    return [
        ConsumerGroupDescription(name, (), (QueueLag("orders", "g0", 0, 0, 0, lag), QueueLag("other", "g0", 0, 0, 0, 1 if lag else 0)))
        for name, lag in lags.items()
    ]


def _progress(groups: list[ConsumerGroupDescription]) -> list[GroupProgress]:
    return [GroupProgress(group, 0) for group in groups]


def test_lags_that_nobody_tells_are_a_gap() -> None:
    history = ClusterHistory()
    history.take_consumers(0, _consumers(slow=10))
    history.take_consumers(5_000, [], complete=False)
    assert history.consumer_lag["slow"].points() == [(0, 11), (5_000, None)]
    history.take_consumers(10_000, [])
    assert not history.consumer_lag


def test_the_rate_of_a_group_comes_from_its_positions() -> None:
    def at(**offsets: int | None) -> list[ConsumerGroupDescription]:
        return [ConsumerGroupDescription(name, (), (QueueLag("t", "g0", 0, offset, 0, 99),)) for name, offset in offsets.items()]

    rates = GroupRates()
    rates.take(0, at(fast=10, back=50, new=None))
    assert rates.rate("fast") is None
    rates.take(5_000, at(fast=60, back=20, new=7))
    assert [rates.rate(name) for name in ("fast", "back", "new", "nobody")] == [10.0, 0.0, None, None]
    for at_ms in (10_000, 15_000, 20_000):
        rates.take(at_ms, at(fast=60, back=20, new=7))
    assert rates.rate("fast") == 0.0
    rates.take(900_000, at(fast=99, back=20, new=7))
    assert rates.rate("fast") is None


def test_the_groups_that_are_behind_most_come_first_and_say_where_and_whether_it_grows() -> None:
    history = ClusterHistory()
    for at_ms, slow in ((0, 10), (5_000, 20), (10_000, 30)):
        found = _consumers(slow=slow, stuck=1_000, done=0)
        history.take_consumers(at_ms, found)
    behind = furthest_behind(_progress(found), history)
    assert [(each.name, each.lag, each.topic, each.growing) for each in behind] == [
        ("stuck", 1_001, "orders", False),
        ("slow", 31, "orders", True),
    ]


def test_a_sampler_asks_only_while_somebody_looks() -> None:
    async def work() -> None:
        asked: list[int] = []
        taken: list[int] = []
        again = asyncio.Event()

        async def poll() -> int:
            asked.append(len(asked))
            if len(asked) == 2:
                raise UnreachableError("nobody answers")
            again.set()
            return len(asked)

        sampler = Sampler(poll, lambda _at_ms, answer: taken.append(answer), interval_s=0.0)
        await asyncio.sleep(0)
        assert not asked
        with sampler.watched(), sampler.watched():
            await sampler.first()
            assert (sampler.newest, sampler.error) == (1, None)
            await until(lambda: sampler.turns >= 2)
            assert sampler.error is not None
            assert sampler.newest == 1  # what was seen stays
            again.clear()
            await again.wait()
        count = len(asked)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(asked) == count
        assert taken[0] == 1

    asyncio.run(work())


def test_a_group_is_compared_with_a_minute_ago_and_not_with_the_last_visit() -> None:
    history = ClusterHistory()
    for at_ms, lag in ((0, 5), (3_600_000, 100), (3_630_000, 90)):
        found = _consumers(slow=lag)
        history.take_consumers(at_ms, found)
    assert [each.growing for each in furthest_behind(_progress(found), history)] == [False]
    history.take_consumers(9_000_000, found)
    assert [each.growing for each in furthest_behind(_progress(found), history)] == [None], "nothing is known of the last minute"


def test_a_sampler_goes_on_after_any_error_and_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        asked = 0

        async def poll() -> int:
            nonlocal asked
            asked += 1
            if asked <= 3:
                raise KeyError("a fault of the console")
            return asked

        sampler = Sampler(poll, interval_s=0.0)
        with sampler.watched():
            await sampler.first()
            assert str(sampler.error) == "the console failed to ask the cluster (KeyError); its log says more"
            await until(lambda: sampler.newest == 4)
            assert sampler.error is None

    asyncio.run(work())
    assert [record.message for record in caplog.records] == ["the cluster could not be asked"]


def test_what_a_user_may_not_see_is_not_asked_for_again_and_again() -> None:
    async def work() -> None:
        async def refused() -> int:
            raise PermissionDeniedError("user clerk may not describe the cluster")

        async def silent() -> int:
            raise UnreachableError("nobody answers")

        of_refused, of_silent = Sampler(refused, interval_s=0.0), Sampler(silent, interval_s=0.0)
        with of_refused.watched(), of_silent.watched():
            await until(lambda: of_silent.turns >= 5)
            assert of_refused.turns == 1
            assert isinstance(of_refused.error, PermissionDeniedError)

    asyncio.run(work())


def test_what_was_seen_long_ago_is_not_shown_as_new() -> None:
    async def work() -> None:
        answers = asyncio.Queue[int]()
        sampler = Sampler(answers.get, interval_s=0.0)
        answers.put_nowait(1)
        with sampler.watched():
            await sampler.first()
            assert not sampler.is_late()
        with sampler.watched():
            assert sampler.newest == 1, "a moment ago"
        sampler.at_ms -= 60_000
        assert sampler.is_late()
        with sampler.watched():
            assert sampler.newest is None
            seen = sampler.turns
            answers.put_nowait(2)
            await sampler.first()
            assert sampler.newest == 2
            assert sampler.turns > seen, "a page that has shown the first answer shows this one too"

    asyncio.run(work())


def test_points_after_a_time() -> None:
    series = Series(3)
    for at_ms in (1, 2, 3, 4):
        series.add(at_ms, float(at_ms))
    assert (series.newest_ms, series.since(3), series.since(0)) == (4, [(4, 4.0)], [(2, 2.0), (3, 3.0), (4, 4.0)])


def test_numbers_sizes_and_times_are_short() -> None:
    assert words.number(1_234_567) == "1\u202f234\u202f567"
    assert (words.number(0.25), words.number(3.0), words.number(None)) == ("0.2", "3", "–")
    assert (words.size(512), words.size(1536), words.size(5 << 40)) == ("512 B", "1.5 KiB", "5.0 TiB")
    assert [words.span(span) for span in (5, 1_500, 45_000, 600_000, 7_200_000, 400_000_000)] == [
        "5 ms",
        "1.5 s",
        "45 s",
        "10 min",
        "2 h",
        "5 days",
    ]
