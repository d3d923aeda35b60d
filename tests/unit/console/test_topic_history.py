"""Rates of topics out of two looks: what is not known is no number, and a node that was started anew does not count."""

from __future__ import annotations

from dledger_client.admin.calls import Listed
from dledger_client.admin.diagnostics import NodeTraffic, TopicCounts
from dledger_client.aio import QueueRange
from dledger_console.data.topic_history import TopicRates, TopicsSeen
from dledger_wire.errors import UnreachableError


def seen(written: int, *nodes: tuple[str, int, int], silent: bool = False) -> TopicsSeen:
    """``nodes``: (id, when it was started, messages out)."""
    unanswered = {"g1": UnreachableError("no answer")} if silent else {}
    totals = {"t": Listed([QueueRange("g0", 0, 0, written, written)], unanswered)}
    traffic = [NodeTraffic("g0", node, started, {"t": TopicCounts(0, 0, out, 0)}) for node, started, out in nodes]
    return TopicsSeen(Listed(), totals, traffic)


def test_rates_are_over_the_last_ten_seconds() -> None:
    rates = TopicRates()
    assert (rates.rate("t"), rates.rate_out("t")) == (None, None)
    for second in range(0, 60, 5):
        rates.take(second * 1000, seen(100 * second, ("n0", 1, 10 * second), ("n1", 1, 20 * second)))
    assert (rates.rate("t"), rates.rate_out("t")) == (100, 30)
    assert (rates.rate("other"), rates.rate_out("other")) == (None, 0)
    for second in range(60, 80, 5):
        rates.take(second * 1000, seen(5500, ("n0", 1, 550), ("n1", 1, 1100)))
    assert (rates.rate("t"), rates.rate_out("t")) == (0, 0)


def test_what_is_not_known_is_no_rate() -> None:
    rates = TopicRates()
    rates.take(0, seen(1000, ("n0", 1, 500), ("n1", 1, 700)))
    rates.take(5_000, seen(500, ("n0", 2, 3), ("n1", 1, 750), silent=True))
    assert rates.rate("t") is None
    assert rates.rate_out("t") == 10  # of n1 alone: n0 was started anew
    rates = TopicRates()
    rates.take(0, seen(1000, ("n0", 1, 500)))
    rates.take(5_000, seen(400, ("n0", 2, 3)))  # deleted and made again
    assert (rates.rate("t"), rates.rate_out("t")) == (None, None)


def test_rates_begin_anew_after_a_time_without_looks() -> None:
    """Nobody had the page open for an hour: what was counted meanwhile is no rate of now."""
    rates = TopicRates()
    rates.take(0, seen(0, ("n0", 1, 0)))
    rates.take(3_600_000, seen(10, ("n0", 1, 10)))
    assert (rates.rate("t"), rates.rate_out("t")) == (None, None)
    rates.take(3_605_000, seen(510, ("n0", 1, 260)))
    assert (rates.rate("t"), rates.rate_out("t")) == (100, 50)
