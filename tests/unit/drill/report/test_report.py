"""The report: figures by fault, the verdict, a page that nothing breaks out of, a document that can be read back."""

from __future__ import annotations

import json
import statistics
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dledger_drill.report.document import write_document
from dledger_drill.report.model import FaultSpan, LeaderSpan, OutageSpan, ViolationText
from dledger_drill.report.page import MAX_SHOWN, PICTURES, page, write_page
from dledger_drill.report.statistics import TWO, by_fault, by_pair, outage_percentiles, verdict
from dledger_drill.report.timeline import colours, timeline
from tests.unit.drill.report.made import FAULTS, HOSTILE, made, read_document


class Found(HTMLParser):
    """Elements of a page, and its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.ids: list[str] = []
        self.classes: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.classes += [value or "" for name, value in attrs if name == "class"]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_figures_by_fault_are_those_of_the_rounds() -> None:
    rounds = made(40, failing=0.2).rounds
    rows = {row.fault: row for row in by_fault(rounds)}
    assert sum(row.rounds for row in rows.values()) == 40
    assert list(rows)[-1] == TWO
    for fault in FAULTS:
        own = sorted(each.unavailable_ms for each in rounds if each.faults == (fault,))
        assert rows[fault].worst_ms == own[-1]
        assert rows[fault].median_ms == statistics.median(own)
        assert rows[fault].counts["lost"] == sum(each.counts["lost"] for each in rounds if each.faults == (fault,))
    assert sum(row.failed for row in rows.values()) == sum(not each.passed for each in rounds) > 0
    assert list(outage_percentiles(rounds)) == [50, 90, 99]
    assert outage_percentiles([]) == {}


def test_the_verdict_is_one_sentence() -> None:
    report = made(3)
    report.rounds[1].outages = [OutageSpan("g1", 1.0, 9.5)]
    assert verdict(report) == (
        "PASS 3 rounds, seed 1: no acknowledged message lost, doubled, changed or reordered; longest pause of writes 8.50 s"
    )
    report.interrupted = True
    assert "3 rounds, seed 1 (ended early):" in verdict(report)
    failed = made(9, failing=1.0)
    assert verdict(failed) == "FAIL 9 rounds, seed 1: 9 x lost in rounds 1, 2, 3, 4, 5 ..."
    report.rounds = []
    assert verdict(report) == "NOTHING WAS PROVED: no round was struck and judged, seed 1 (ended early)"


def test_rounds_that_prove_nothing_are_no_success() -> None:
    report = made(2)
    report.rounds[0].not_struck = ["kill-leader: no leader"]
    report.rounds[0].outages = [OutageSpan("g1", 0.0, 60.0)]
    assert verdict(report).startswith("PASS 1 round, seed 1: ")
    assert max(outage_percentiles(report.rounds).values()) < 60_000
    report.rounds[1].judged = False
    assert verdict(report) == "NOTHING WAS PROVED: no round was struck and judged, seed 1 (1 not judged)"
    assert not report.passed
    (row,) = by_fault(report.rounds[:1])
    assert (row.median_ms, row.worst_ms, row.not_struck) == (None, None, 1)
    report.problem = "the drill could not go on: no space left"
    assert verdict(report) == "STOPPED after 0 rounds, seed 1: the drill could not go on: no space left"
    report.rounds.pop()
    assert "<td>–</td>" in page(report)


def test_faults_that_no_round_struck_are_named() -> None:
    report = made(1)
    struck = report.rounds[0].fault_spans[0].name
    report.wanted, report.impossible = [struck, "kill-all", "power-all"], {"power-all": "takes root"}
    assert report.not_reached == [name for name in ("kill-all",) if name not in report.rounds[0].faults]
    assert "1 of 3 faults were not reached" in page(report)


@pytest.mark.parametrize("hostile", [False, True])
def test_a_page_needs_nothing_else_and_nothing_breaks_out_of_it(hostile: bool) -> None:
    text = page(made(12, failing=0.3, hostile=hostile))
    found = Found(text)
    assert found.tags.count("script") == 1
    assert {each for each in found.sources if not each.startswith("#")} == {"data:,"}
    assert {each[1:] for each in found.sources if each.startswith("#")} <= set(found.ids)
    assert found.classes.count("picture") == 12
    assert "By fault" in found.texts
    assert ("<script>alert" in text) is False
    assert any(HOSTILE[:20] in each for each in found.texts) is hostile
    assert f"<title>{verdict(made(12, failing=0.3))}</title>" in text


def test_a_page_of_a_hundred_rounds_is_small_and_one_of_a_thousand_is_bounded() -> None:
    assert len(page(made(100)).encode()) < 2_000_000
    report = made(1000, failing=0.01)
    worst = max(report.rounds, key=lambda each: each.unavailable_ms).number
    large = page(report)
    assert len(large.encode()) < 10_000_000
    found = Found(large)
    assert found.classes.count("picture") == PICTURES
    assert {f"round-{each.number}" for each in report.rounds} <= set(found.ids)
    assert found.classes.count("fold block") == 10
    for number in (1, worst, *(each.number for each in report.rounds if not each.passed)):
        part = large[large.index(f'id="round-{number}"') :]
        assert 'class="picture"' in part[: part.index("</details>")]


def test_long_evidence_is_cut() -> None:
    report = made(60, failing=1.0)
    for each in report.rounds:
        each.violations = [ViolationText("lost", "x" * 9000, ("y" * 9000,) * 30)] * 500
    text = page(report)
    assert len(text.encode()) < 2_000_000
    assert text.count('class="violation"') == MAX_SHOWN
    assert "480 more are in the JSON document" in text


def test_a_round_that_lasts_an_hour_has_a_small_picture() -> None:
    (found,) = made(1).rounds
    found.duration_s, found.rates["g0"], found.latencies_ms = 3600.0, [7] * 36_000, [3.0, None] * 18_000
    found.outages = [OutageSpan("g0", number, number + 0.3) for number in range(3000)]
    drawn = timeline(found, colours([found]))
    (_, _, chart), _ = drawn.groups
    assert (drawn.bin_s, chart.values.split(",")[1], chart.scale) == (6.0, "70", ("100", "50", "0"))
    assert len(chart.path) + len(drawn.latency.path) < 20_000
    assert len(chart.outages) < 100


def test_a_picture_has_its_bars_where_they_were() -> None:
    (found,) = made(1).rounds
    found.duration_s = 10.0
    found.fault_spans = [FaultSpan("a", (), 1, 3), FaultSpan("b", ("n0",), 2, 12, "why"), FaultSpan("c", (), 3, 4)]
    found.leaders = [LeaderSpan("g0", "n10", 3, 0, 2), LeaderSpan("g0", "n2", 4, 5, 10), LeaderSpan("g1", "n2", 1, 0, 10)]
    found.latencies_ms = [None, 5.0, None, 2.0, 3.0]
    colour = colours([found])
    assert colour == {("g0", "n2"): 0, ("g0", "n10"): 1, ("g1", "n2"): 0}
    drawn = timeline(found, colour)
    assert [[(bar.left, bar.width, bar.text) for bar in lane] for lane in drawn.faults] == [
        [(10, 20, "a"), (30, 10, "c")],
        [(20, 80, "b n0")],
    ]
    assert drawn.faults[1][0].title == "b n0: 2.00 s to 12.00 s (why)"
    (_, leaders, _), _ = drawn.groups
    assert [(bar.left, bar.width, bar.css) for bar in leaders] == [(0, 20, "leader c1"), (50, 50, "leader c0")]
    assert drawn.latency.scale == ("5", "2.5", "0")
    assert drawn.latency.path == "M1,0h1M3.5,60L4.5,40"
    assert drawn.ticks[:2] == [(0, "0 s"), (20, "2 s")]


def test_two_at_once_are_told_in_detail_and_every_kind_is_counted() -> None:
    report = made(40, failing=0.3)
    pairs = by_pair(report.rounds)
    assert sum(row.rounds for row in pairs) == sum(len(each.faults) == 2 for each in report.rounds) > 0
    assert all(row.fault == " + ".join(sorted(row.fault.split(" + "))) for row in pairs)
    rows = by_fault(report.rounds)
    assert sum(row.others.get("stale read", 0) for row in rows) == sum(not each.passed for each in report.rounds)
    for row in rows:
        assert len(row.numbers) == row.rounds
        assert row.worst_round in row.numbers
    text = page(report)
    assert "x stale read" in text
    assert f"what {FAULTS[0]} does" in text
    assert f"{len(pairs)} pairs" in text


def test_a_document_can_be_read_back(tmp_path: Path) -> None:
    report, file = made(5, failing=0.5, hostile=True), tmp_path / "drill.json"
    write_document(report, file)
    assert read_document(file) == report
    document = json.loads(file.read_text())
    assert (document["format"], document["passed"], document["verdict"]) == (1, report.passed, verdict(report))
    write_page(report, tmp_path / "drill.html")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["drill.html", "drill.json"]
