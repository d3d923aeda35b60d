"""What a report says of each promise."""

from __future__ import annotations

from dledger_drill.checkers.model import ViolationKind
from dledger_drill.history.records import OperationKind
from dledger_drill.report.model import Report, ViolationText
from dledger_drill.report.page import page
from dledger_drill.report.promises import PromiseState, promises, promises_line
from dledger_drill.report.terminal import closing_lines
from tests.unit.drill.report.made import made


def whole(rounds: int = 30) -> Report:
    """Everything was done in it."""
    report = made(rounds)
    report.workloads = {str(kind): {"ok": 5} for kind in OperationKind}
    report.settings["workloads"] = "plain, orderly, pull"
    return report


def states(report: Report) -> dict[str, PromiseState]:
    return {each.text: each.state for each in promises(report)}


def unkept(report: Report) -> list[str]:
    return [text for text, state in states(report).items() if state is not PromiseState.KEPT]


def test_all_are_kept_where_all_was_checked() -> None:
    assert set(states(whole()).values()) == {PromiseState.KEPT}
    assert promises_line(whole()) == "13 of 13 promises kept"


def test_each_kind_of_violation_breaks_one_promise() -> None:
    for kind in ViolationKind:
        report = whole()
        report.rounds[3].violations = [ViolationText(str(kind), "what happened")] * 2
        (broken,) = [each for each in promises(report) if each.state is PromiseState.BROKEN]
        assert broken.violations == 2
        assert promises_line(report) == f"12 of 13 promises kept; broken: {broken.text} (2)"


def test_what_was_not_done_was_not_checked() -> None:
    assert [text for text, state in states(whole(29)).items() if state is not PromiseState.KEPT] == [
        "nodes leak no memory, files or threads"
    ]
    against = whole()
    del against.workloads["replica"], against.workloads["resource"]
    assert unkept(against) == ["replicas are equal", "nodes leak no memory, files or threads"]
    plain = whole()
    plain.settings["workloads"] = "plain, push, follower"
    assert unkept(plain) == [
        "an ordered queue has one consumer at a time",
        "a linearizable read has what was acknowledged before",
    ]
    failed = whole()
    failed.workloads["transaction"] = {"failed": 5}
    assert states(failed)["a transaction is there once or never"] is PromiseState.NOT_CHECKED
    assert all(each.why for each in promises(made(0)) if each.state is PromiseState.NOT_CHECKED)


def test_page_and_terminal_tell_them() -> None:
    report = whole(9)
    report.wanted, report.impossible = ["power-all"], {"power-all": "takes root\x1b[31m"}
    report.rounds[0].violations = [ViolationText("lost", "plain-0/17 is not stored")]
    assert closing_lines(report) == [
        "not possible here: power-all: takes root\\x1b[31m",
        "lost: plain-0/17 is not stored",
        "11 of 13 promises kept; broken: what was acknowledged is stored (1);"
        " not checked: nodes leak no memory, files or threads (takes 30 rounds with a private cluster)",
    ]
    text = page(report)
    assert "takes 30 rounds with a private cluster" in text
    assert "what was acknowledged is stored: broken 1 time<" in text
