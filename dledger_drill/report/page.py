"""The report as one HTML file: no other file and no network is needed to read it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from dledger_drill.report.model import COUNTED, Report, RoundReport
from dledger_drill.report.statistics import by_fault, outage_percentiles, promises, verdict
from dledger_drill.report.timeline import timeline

PICTURES = 200  # rounds whose timeline is in the page: those that failed first, then those with the longest outages
MAX_VIOLATIONS = 20  # of a round


def page(report: Report) -> str:
    """The file's text.  What comes from outside, such as names of nodes, is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "ms": _ms,
        "gib": lambda size: f"{size / (1 << 30):.1f} GiB",
        "span": _span,
        "figure": lambda value: "–" if value is None else f"{value:g}",
    }
    folder = resources.files("dledger_drill.report") / "templates"
    template = environment.from_string((folder / "report.html.j2").read_text(encoding="utf-8"))
    pictured = _pictured(report.rounds)
    return template.render(
        report=report,
        verdict=verdict(report),
        kind="pass" if report.passed and report.rounds else "fail",
        rows=by_fault(report.rounds),
        promises=promises(report),
        percentiles=outage_percentiles(report.rounds),
        counted=COUNTED,
        timelines={each.number: Markup(timeline(each)) for each in report.rounds if each.number in pictured},  # noqa: S704 - escaped there
        max_violations=MAX_VIOLATIONS,
        style=Markup((folder / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        script=Markup((folder / "report.js").read_text(encoding="utf-8")),  # noqa: S704 - our own file
    )


def write_page(report: Report, path: Path) -> None:
    """Write it, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(page(report), encoding="utf-8")
    part.replace(path)


def _pictured(rounds: list[RoundReport]) -> set[int]:
    worst = sorted(rounds, key=lambda each: (each.passed, -each.unavailable_ms))
    return {each.number for each in worst[:PICTURES]}


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
