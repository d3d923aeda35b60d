"""The picture of a round, as SVG: faults, leaders by term, acknowledged messages, latency, outages.

Owns the geometry.  The picture is as wide as ``WIDTH`` units; what a person points at is found by the page's script from the numbers that
stand on the picture as attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from dledger_drill.report.model import BIN_S, FaultSpan, LeaderSpan, OutageSpan, RoundReport

WIDTH, LEFT, LANE, CHART, GAP = 1000.0, 90.0, 18.0, 56.0, 6.0
AXIS = 18.0
COLOURS = ("#3b82c4", "#c47f3b", "#4fa36b", "#a35fa8", "#b0564f", "#6b7d8f")


def timeline(found: RoundReport) -> str:
    """An ``svg`` element."""
    picture = _Picture(found)
    body = "".join(picture.parts())
    rates = escape("|".join(f"{group}:{','.join(map(str, counts))}" for group, counts in sorted(found.rates.items())), quote=True)
    latencies = ",".join("" if value is None else f"{value:.1f}" for value in found.latencies_ms)
    label = escape(f"Timeline of round {found.number}: {', '.join(found.faults)}", quote=True)
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH:g} {picture.height:g}" role="img" tabindex="0" aria-label="{label}"'
        f' data-bin="{BIN_S:g}" data-left="{LEFT:g}" data-seconds="{found.duration_s:.3f}" data-rates="{rates}"'
        f' data-latencies="{latencies}">{body}</svg>'
    )


class _Picture:
    """Lanes from top to bottom; ``height`` is known once ``parts`` has made them."""

    def __init__(self, found: RoundReport) -> None:
        self._found = found
        self._groups = sorted({*found.rates, *(span.group for span in found.leaders)})
        self._scale = (WIDTH - LEFT) / max(found.duration_s, 0.001)
        self.height = 2 * LANE + GAP + len(self._groups) * (LANE + CHART + 2 * GAP) + CHART + AXIS

    def parts(self) -> Iterator[str]:
        top = 0.0
        yield from self._faults(top)
        top += 2 * LANE + GAP
        for group in self._groups:
            yield from self._leaders(group, top)
            yield from self._rate(group, top + LANE + GAP)
            top += LANE + CHART + 2 * GAP
        yield from self._latency(top)
        yield from self._axis(top + CHART)

    def _x(self, at_s: float) -> float:
        return LEFT + max(0.0, min(at_s, self._found.duration_s)) * self._scale

    def _bar(self, span: FaultSpan | LeaderSpan | OutageSpan, top: float, css: str, text: str, title: str, fill: str = "") -> str:
        """As wide as the ``span`` lasted; an outage is as high as the chart that it is in."""
        height = CHART if isinstance(span, OutageSpan) else LANE - 2
        left, width = self._x(span.start_s), max(1.5, self._x(span.end_s) - self._x(span.start_s))
        style = f' style="fill:{fill}"' if fill else ""
        shown = text if width > 7.5 * len(text) else ""
        return (
            f'<g><title>{escape(title)}</title><rect class="{css}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
            f'{style}/><text class="in" x="{left + 4:.1f}" y="{top + height - 5:.1f}">{escape(shown)}</text></g>'
        )

    def _label(self, text: str, top: float) -> str:
        return f'<text class="lane" x="0" y="{top + 13:.1f}">{escape(text)}</text>'

    def _faults(self, top: float) -> Iterator[str]:
        yield self._label("fault", top)
        for number, span in enumerate(self._found.fault_spans):
            text = f"{span.name} {' '.join(span.nodes)}".rstrip()
            title = f"{text}: {span.start_s:.2f} s to {span.end_s:.2f} s {span.note}".rstrip()
            yield self._bar(span, top + (number % 2) * LANE, "fault", text, title)

    def _leaders(self, group: str, top: float) -> Iterator[str]:
        yield self._label(f"{group} leader", top)
        for span in self._found.leaders:
            if span.group == group:
                text, colour = f"{span.node} term {span.term}", _colour(span.node)
                yield self._bar(span, top, "leader", text, f"{group}: {text}", colour)

    def _rate(self, group: str, top: float) -> Iterator[str]:
        counts = self._found.rates.get(group, [])
        most = max(counts, default=0)
        yield self._label(f"{group} acked/s", top)
        yield f'<text class="lane small" x="0" y="{top + 27:.1f}">max {most / BIN_S:,.0f}</text>'
        for outage in self._found.outages:
            if outage.group == group:
                text = f"{outage.duration_ms:,.0f} ms"
                yield self._bar(outage, top, "outage", text, f"{group}: no acknowledgement for {text}")
        yield self._line("rate", counts, most, top)

    def _latency(self, top: float) -> Iterator[str]:
        values = self._found.latencies_ms
        most = max((value for value in values if value is not None), default=0.0)
        yield self._label("p99 latency", top)
        yield f'<text class="lane small" x="0" y="{top + 27:.1f}">max {most:,.0f} ms</text>'
        run: list[float] = []
        for number, value in enumerate([*values, None]):
            if value is not None:
                run.append(value)
            elif run:
                yield self._line("latency", run, most, top, first=number - len(run))
                run = []

    def _line(self, css: str, values: Sequence[float], most: float, top: float, first: int = 0) -> str:
        points = [
            f"{self._x((first + number + 0.5) * BIN_S):.1f},{top + CHART - (CHART - 2) * value / most if most else top + CHART:.1f}"
            for number, value in enumerate(values)
        ]
        return f'<polyline class="{css}" points="{" ".join(points)}"/>'

    def _axis(self, top: float) -> Iterator[str]:
        seconds = self._found.duration_s
        step = next((each for each in (0.5, 1, 2, 5, 10, 20, 30, 60) if seconds / each <= 10), 120)
        for number in range(int(seconds / step) + 1):
            x = self._x(number * step)
            yield f'<line class="tick" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{top:.1f}"/>'
            yield f'<text class="axis" x="{x:.1f}" y="{top + 13:.1f}">{number * step:g} s</text>'


def _colour(node: str) -> str:
    """The same in every round."""
    digits = "".join(character for character in node if character.isdecimal())
    return COLOURS[(int(digits[-9:]) if digits else len(node)) % len(COLOURS)]
