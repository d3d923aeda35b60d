"""The table by fault of one drill or several, in Markdown: ``python -m benchmarks.drill_table FILE.json ...``."""

from __future__ import annotations

import sys
from pathlib import Path

from dledger_drill.report.document import read_document
from dledger_drill.report.model import COUNTED
from dledger_drill.report.statistics import by_fault, outage_percentiles, verdict

HEAD = ("fault", "rounds", "unavailable median / worst, ms", "new terms median / worst", *COUNTED, "other", "failed", "not struck")


def main(*files: str) -> None:
    reports = [read_document(Path(file)) for file in files]
    rounds = [each for report in reports for each in report.rounds]
    print("|", " | ".join(HEAD), "|")
    print("|" + "---|" * len(HEAD))
    for row in by_fault(rounds):
        if row.median_ms is None or row.worst_ms is None:
            continue  # none was struck
        figures = (f"{row.median_ms:,.0f} / {row.worst_ms:,.0f}", f"{row.terms_median:g} / {row.terms_worst}")
        print("|", " | ".join((row.fault, str(row.rounds), *figures, *map(str, row.columns), str(row.not_struck))), "|")
    percentiles = ", ".join(f"p{name} {value:,.0f}" for name, value in outage_percentiles(rounds).items())
    print(f"\n{len(rounds)} rounds; longest pause of writes over all rounds, ms: {percentiles}", file=sys.stderr)
    for report in reports:
        print(f"{report.started} {report.version} {report.command}: {verdict(report)}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
