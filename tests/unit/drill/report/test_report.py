"""The report: figures by fault, the verdict, a page that nothing breaks out of, a document that can be read back."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dledger_drill.report.document import read_document, write_document
from dledger_drill.report.model import OutageSpan
from dledger_drill.report.page import page, write_page
from dledger_drill.report.statistics import TWO, by_fault, outage_percentiles, verdict
from dledger_wire.errors import InvalidArgumentError
from tests.unit.drill.report.made import FAULTS, HOSTILE, made


class Found(HTMLParser):
    """Elements of a page, and its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

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
        assert own[0] <= rows[fault].median_ms <= own[-1]
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
    assert set(found.sources) == {"data:,"}
    assert found.tags.count("svg") == 12
    assert "By fault" in found.texts
    assert ("<script>alert" in text) is False
    assert any(HOSTILE[:20] in each for each in found.texts) is hostile
    assert f"<title>{verdict(made(12, failing=0.3))}</title>" in text


def test_a_page_of_a_hundred_rounds_is_small_and_one_of_a_thousand_is_bounded() -> None:
    assert len(page(made(100)).encode()) < 2_000_000
    large = page(made(1000, failing=0.01))
    assert len(large.encode()) < 6_000_000
    assert Found(large).tags.count("svg") == 200


def test_a_document_can_be_read_back(tmp_path: Path) -> None:
    report, file = made(5, failing=0.5, hostile=True), tmp_path / "drill.json"
    write_document(report, file)
    assert read_document(file) == report
    document = json.loads(file.read_text())
    assert (document["format"], document["passed"], document["verdict"]) == (1, report.passed, verdict(report))
    write_page(report, tmp_path / "drill.html")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["drill.html", "drill.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "report": {"rounds": 3}}'])
def test_what_is_no_document_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"bad\.json"):
        read_document(tmp_path / "bad.json")
