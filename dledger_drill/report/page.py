"""The report as one HTML file: no other file and no network is needed to read it.

Owns what is left out of a page of many rounds, so that it stays a few megabytes: pictures, violations, and the length of their texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dledger_drill.report.model import COUNTED, Report, RoundReport
from dledger_drill.report.promises import PromiseState, promises
from dledger_drill.report.statistics import FaultRow, by_fault, by_pair, outage_percentiles, verdict
from dledger_drill.report.timeline import COLOURS, Timeline, colours, timeline

PICTURES = 300  # rounds whose timeline is in the page
MAX_VIOLATIONS = 20  # of a round
MAX_SHOWN = 400  # violations of a page
MAX_TEXT = 400  # characters of a violation, or of an operation that shows it
MAX_OPERATIONS = 5
A_BLOCK = 100  # rounds that fold together, in a page of more than two such blocks
LINKED = 20  # broken rounds that are linked from the top


@dataclass(frozen=True, slots=True)
class Block:
    """Rounds that follow one another; ``title`` is empty when all rounds of the drill are in one block."""

    title: str
    rounds: tuple[RoundReport, ...]
    failed: int
    worst_ms: float


def page(report: Report) -> str:
    """The file's text.  What comes from outside, such as names of nodes, is escaped."""
    environment = Environment(
        loader=PackageLoader("dledger_drill.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "ms": lambda value: "–" if value is None else f"{value:,.0f}",
        "gib": lambda size: f"{size / (1 << 30):.1f} GiB",
        "span": _span,
        "figure": lambda value: "–" if value is None else f"{value:g}",
        "cut": lambda text: text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ...",
    }
    folder = resources.files("dledger_drill.report") / "templates"
    rows, pairs, kept = by_fault(report.rounds), by_pair(report.rounds), promises(report)
    return environment.get_template("report.html.j2").render(
        report=report,
        verdict=verdict(report),
        kind="bad" if report.broken else "good" if report.passed else "open",
        rows=rows,
        pairs=pairs,
        promises=kept,
        states={state: sum(each.state is state for each in kept) for state in PromiseState},
        percentiles=outage_percentiles(report.rounds),
        counted=COUNTED,
        broken=[each.number for each in report.rounds if not each.passed],
        linked=LINKED,
        blocks=_blocks(report.rounds),
        names=sorted({name for each in report.rounds for name in each.faults}),
        shown=_shown(report),
        max_operations=MAX_OPERATIONS,
        timelines=_timelines(report.rounds, [*rows, *pairs]),
        colours=COLOURS,
        style=Markup((folder / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        script=Markup((folder / "report.js").read_text(encoding="utf-8")),  # noqa: S704 - our own file
    )


def write_page(report: Report, path: Path) -> None:
    """Write it, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(page(report), encoding="utf-8")
    part.replace(path)


def _timelines(rounds: list[RoundReport], rows: list[FaultRow]) -> dict[int, Timeline]:
    """By number of the round: of those that broke a promise, of the worst of each fault, then of the first ones."""
    worst = {row.worst_round for row in rows}
    ordered = sorted(rounds, key=lambda each: (each.passed, each.number not in worst, each.number))
    colour = colours(rounds)
    return {each.number: timeline(each, colour) for each in ordered[:PICTURES]}


def _shown(report: Report) -> dict[int, int]:
    """Number of the round -> how many of its violations the page tells; 0 is the whole drill."""
    shown, left = {}, MAX_SHOWN
    for number, found in ((0, report.violations), *((each.number, each.violations) for each in report.rounds)):
        shown[number] = min(len(found), MAX_VIOLATIONS, left)
        left -= shown[number]
    return shown


def _blocks(rounds: list[RoundReport]) -> list[Block]:
    size = A_BLOCK if len(rounds) > 2 * A_BLOCK else max(1, len(rounds))
    return [
        Block(
            title=f"Rounds {part[0].number} to {part[-1].number}" if size < len(rounds) else "",
            rounds=part,
            failed=sum(not each.passed for each in part),
            worst_ms=max(each.unavailable_ms for each in part),
        )
        for part in (tuple(rounds[at : at + size]) for at in range(0, len(rounds), size))
    ]


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
