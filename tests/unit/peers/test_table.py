"""The table of the peers' benchmark: medians, what is compared with what, and that a loss is called one."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.figures import Figure
from benchmarks.peers.table import Column, markdown

WAYS = {"produce": {"single": "send"}, "consume": {"single": "fetch"}}
COLUMNS = [
    Column("dledger", "on disk", True, "dledger 1", WAYS),
    Column("Kafka", "in the page cache", False, "Kafka 1", WAYS),
    Column("Kafka flush=1", "on disk", True, "Kafka 1", WAYS),
]


def figure(system: str, work: str = "produce", way: str = "single", took_s: float = 1.0, **more: Any) -> Figure:
    given: dict[str, Any] = {"size": "100", "messages": 100_000, "client_cpu_s": 0.2, "servers_cpu_s": 0.4}
    given |= {"acknowledged": 100_000} if work == "produce" else {}
    given |= {"distinct": 100_000, "doubled": 0, "strange": 0} if work == "consume" else {}
    return Figure(system=system, work=work, way=way, took_s=took_s, **(given | more))


def rows(figures: list[Figure]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in markdown(figures, COLUMNS).splitlines():
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        found.setdefault(name.strip("*"), cells)
    return found


def test_a_line_has_the_figures_of_all_and_says_who_is_ahead() -> None:
    table = rows([figure("dledger", took_s=0.5), figure("Kafka", took_s=0.25), figure("Kafka flush=1", took_s=1.0)])
    assert table["produce 100 B, message by message, k msg/s"] == [
        "200.0",
        "400.0",
        "100.0",
        "**loses**: 0.50 of Kafka",
        "2.00 of Kafka flush=1",
    ]
    assert table["client's CPU, s per million"] == ["2.0", "2.0", "2.0", "", ""]
    assert table["servers' CPU, s per million"] == ["4.0", "4.0", "4.0", "", ""]
    assert table["acknowledged means"][:3] == ["on disk", "in the page cache", "on disk"]


def test_rounds_are_a_median_with_its_spread() -> None:
    table = rows([figure("dledger", took_s=seconds) for seconds in (1.0, 0.5, 0.8)])
    assert table["produce 100 B, message by message, k msg/s"] == ["125.0 (100.0-200.0)", "-", "-", "", ""]


def test_a_system_with_one_way_is_compared_in_the_lines_of_both() -> None:
    table = rows([figure("dledger"), figure("dledger", way="many", took_s=0.1), figure("Kafka")])
    assert table["produce 100 B, many at once, k msg/s"] == ["1000.0", "100.0", "-", "10.00 of Kafka", ""]


def test_the_load_of_the_machine_is_told() -> None:
    table = rows([figure("dledger", load=1.5), figure("dledger", load=3.0), figure("dledger", load=2.0)])
    assert table["load of the machine meanwhile"][:2] == ["2.0 (1.5-3.0)", "-"]


def test_less_is_better_for_times() -> None:
    table = rows(
        [
            figure("dledger", "latency", p50_ms=1.0, p99_ms=2.0),
            figure("Kafka", "latency", p50_ms=0.5, p99_ms=4.0),
            figure("dledger", "failover", pause_s=0.1, lost=0, doubled=0),
            figure("Kafka", "failover", pause_s=10.0, lost=0, doubled=0),
        ]
    )
    assert table["one message at a time, 1024 B, p50 ms"] == ["1.00", "0.50", "-", "**loses**: 0.50 of Kafka", ""]
    assert table["p99 ms"][3] == "2.00 of Kafka"
    assert table["kill -9 of the leader to the next acknowledged write, s"] == ["0.10", "10.00", "-", "100.00 of Kafka", ""]
    assert table["of the acknowledged messages lost"] == ["0", "0", "-", "", ""]


def test_a_rate_of_messages_that_are_not_all_there_is_not_shown() -> None:
    table = rows([figure("dledger", acknowledged=99_999), figure("Kafka"), figure("Kafka", "consume", distinct=99_990)])
    assert table["produce 100 B, message by message, k msg/s"][:2] == ["-", "100.0"]
    assert table["checked"][0] == "99999 of 100000 acknowledged; **problem**: 1 of 100000 not acknowledged"
    assert "**problem**: 10 of 100000 did not come" in table["checked"][1]


def test_what_was_lost_in_a_failover_is_a_problem() -> None:
    lossy = figure("Kafka", "failover", pause_s=1.0, lost=3, doubled=1, strange=0, acknowledged=5)
    assert lossy.problem() == "3 acknowledged messages lost; 1 doubled"
    assert figure("Kafka", "failover").problem() == "no write was acknowledged after the kill"
    assert "1 kills: 5 acknowledged, 3 lost, 1 doubled" in rows([lossy])["checked"][1]


def test_a_way_that_nobody_has_gets_no_line() -> None:
    table = rows([figure("dledger"), figure("dledger", "consume"), figure("Kafka", way="many")])
    assert "produce 100 B, many at once, k msg/s" in table
    assert "consume 100 B, many at once, k msg/s" not in table
