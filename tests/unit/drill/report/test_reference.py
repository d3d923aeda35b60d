"""Every field of the document stands on its page of the reference, and nothing else does."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dledger_drill.checkers.model import ViolationKind
from dledger_drill.report.document import write_document
from dledger_drill.report.model import FaultSpan, LeaderSpan, MachineInfo, OutageSpan, Report, RoundReport, ViolationText
from dledger_drill.report.promises import Promise, PromiseState
from dledger_drill.report.statistics import FaultRow
from tests.unit.drill.report.made import made

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "drill-report.md"
CLASSES: dict[str, type[Any]] = {
    "A promise": Promise,
    "A row": FaultRow,
    "The report": Report,
    "The machine": MachineInfo,
    "A round": RoundReport,
    "A violation": ViolationText,
    "An outage": OutageSpan,
    "A fault span": FaultSpan,
    "A leader span": LeaderSpan,
}


def described() -> dict[str, list[str]]:
    """Heading -> fields in the first column of its table."""
    found = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        rows = re.findall(r"^\| (`[^|]*) \|[^|]+\|[^|]+\|$", part, re.MULTILINE)
        found[part.partition("\n")[0]] = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    return found


def test_every_part_of_the_document_has_a_table() -> None:
    assert list(described()) == ["The document", *CLASSES]


@pytest.mark.parametrize("heading", CLASSES)
def test_the_page_has_the_fields_of_each_class(heading: str) -> None:
    added = ["passed", "unavailable_ms"] if CLASSES[heading] is RoundReport else []
    assert sorted(described()[heading]) == sorted([*added, *(each.name for each in fields(CLASSES[heading]))])


def test_the_page_has_the_fields_that_are_written(tmp_path: Path) -> None:
    write_document(made(20, failing=0.3), tmp_path / "drill.json")
    document = json.loads((tmp_path / "drill.json").read_text(encoding="utf-8"))
    known, seen = described(), {"The document": document, "The report": document["report"], "The machine": document["report"]["machine"]}
    rounds = document["report"]["rounds"]
    broken = next(each for each in rounds if each["violations"])
    seen |= {"A promise": document["promises"][0], "A row": document["by_fault"][0], "A round": broken}
    seen |= {"A violation": broken["violations"][0], "An outage": broken["outages"][0]}
    seen |= {"A fault span": broken["fault_spans"][0], "A leader span": broken["leaders"][0]}
    assert {heading: sorted(found) for heading, found in seen.items()} == {heading: sorted(names) for heading, names in known.items()}
    assert document["by_pair"][0].keys() == document["by_fault"][0].keys()
    assert [each["passed"] for each in rounds] == [not each["violations"] for each in rounds]
    for each in rounds:
        assert each["unavailable_ms"] == pytest.approx(1000 * max(span["end_s"] - span["start_s"] for span in each["outages"]))


def test_the_page_has_all_states_and_kinds() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [each for each in (*ViolationKind, *PromiseState) if f"`{each}`" not in text] == []
