"""The report as a JSON document, for programs.  ``format`` rises when a field changes its meaning or goes; new fields may come."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dledger_drill.report.model import Report, RoundReport
from dledger_drill.report.promises import promises
from dledger_drill.report.statistics import by_fault, by_pair, outage_percentiles, verdict

FORMAT = 1


def write_document(report: Report, path: Path) -> None:
    """Write it, whole or not at all."""
    document = {
        "format": FORMAT,
        "verdict": verdict(report),
        "passed": report.passed,
        "promises": [asdict(each) for each in promises(report)],
        "by_fault": [asdict(row) for row in by_fault(report.rounds)],
        "by_pair": [asdict(row) for row in by_pair(report.rounds)],
        "outage_ms": {f"p{name}": value for name, value in outage_percentiles(report.rounds).items()},
        "report": asdict(report) | {"rounds": [_round(each) for each in report.rounds]},
    }
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
    part.replace(path)


def _round(found: RoundReport) -> dict[str, Any]:
    return {"passed": found.passed, "unavailable_ms": found.unavailable_ms, **asdict(found)}
