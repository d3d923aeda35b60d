"""The picture of a round for the page's template: lanes of bars, and charts below them.

Owns the geometry: all positions are per cent of the round's time, so the page can be of any width, and a zoom stretches neither text nor
strokes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dledger_drill.report.model import BIN_S, FaultSpan, LeaderSpan, OutageSpan, RoundReport

COLOURS = 8  # classes of leaders in the page's style
MAX_BINS = 600  # of a chart: longer rounds have wider bins
MAX_BARS = 60  # of a lane
MAX_TICKS = 7  # their times stand side by side on a phone
_T = TypeVar("_T")
STEPS_S = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


@dataclass(frozen=True, slots=True)
class Bar:
    """A time in which something was so.  ``css``: its class; ``left`` and ``width`` are per cent."""

    css: str
    left: float
    width: float
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A line.  ``scale``: the numbers at its top, middle and bottom; ``path`` is as high as 100 and as wide as ``width``."""

    name: str
    unit: str
    scale: tuple[str, str, str]
    values: str
    path: str
    width: float
    outages: tuple[Bar, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """``faults``: lanes of bars that do not overlap.  ``ticks``: where times stand, and the times."""

    label: str
    seconds: float
    bin_s: float
    faults: list[list[Bar]]
    groups: list[tuple[str, list[Bar], Chart]]
    latency: Chart
    ticks: list[tuple[float, str]]


def colours(rounds: Iterable[RoundReport]) -> dict[tuple[str, str], int]:
    """Replica group and node -> number of its colour: its place among those that led the group, so it is the same in every round."""
    led: dict[str, set[str]] = {}
    for each in rounds:
        for span in each.leaders:
            led.setdefault(span.group, set()).add(span.node)
    return {
        (group, node): place % COLOURS
        for group, nodes in led.items()
        for place, node in enumerate(sorted(nodes, key=lambda name: (len(name), name)))
    }


def timeline(found: RoundReport, colour: Mapping[tuple[str, str], int]) -> Timeline:
    """The picture of one round."""
    return _Drawing(found).draw(colour)


class _Drawing:
    def __init__(self, found: RoundReport) -> None:
        self._found = found
        self._seconds = max(found.duration_s, 0.001)
        bins = max([len(found.latencies_ms), *map(len, found.rates.values())])
        self._merged = max(1, math.ceil(bins / MAX_BINS))
        self._bin_s = self._merged * BIN_S

    def draw(self, colour: Mapping[tuple[str, str], int]) -> Timeline:
        found = self._found
        groups = sorted({*found.rates, *(span.group for span in found.leaders)})
        return Timeline(
            label=f"Timeline of round {found.number}: {', '.join(found.faults)}",
            seconds=self._seconds,
            bin_s=self._bin_s,
            faults=self._faults(),
            groups=[(group, self._leaders(group, colour), self._rate(group)) for group in groups],
            latency=self._latency(),
            ticks=self._ticks(),
        )

    def _bar(self, span: FaultSpan | LeaderSpan | OutageSpan, css: str, text: str, title: str) -> Bar:
        left, right = (100 * max(0.0, min(at_s, self._seconds)) / self._seconds for at_s in (span.start_s, span.end_s))
        return Bar(css, round(left, 2), round(right - left, 2), text, title)

    def _faults(self) -> list[list[Bar]]:
        lanes: list[list[Bar]] = [[]]
        for span in sorted(self._found.fault_spans, key=lambda each: each.start_s)[:MAX_BARS]:
            text = f"{span.name} {' '.join(span.nodes)}".rstrip()
            note = f" ({span.note})" if span.note else ""
            bar = self._bar(span, "fault", text, f"{text}: {span.start_s:.2f} s to {span.end_s:.2f} s{note}")
            free = next((lane for lane in lanes if not lane or lane[-1].left + lane[-1].width <= bar.left), None)
            if free is None:
                lanes.append([bar])
            else:
                free.append(bar)
        return lanes

    def _leaders(self, group: str, colour: Mapping[tuple[str, str], int]) -> list[Bar]:
        bars = []
        for span in [each for each in self._found.leaders if each.group == group][:MAX_BARS]:
            text = f"{span.node} term {span.term}"
            bars.append(self._bar(span, f"leader c{colour[group, span.node]}", text, f"{group}: {span.node} leads term {span.term}"))
        return bars

    def _rate(self, group: str) -> Chart:
        counts = [sum(part) for part in self._parts(self._found.rates.get(group, []))]
        longest = sorted((span for span in self._found.outages if span.group == group), key=lambda each: -each.duration_ms)[:MAX_BARS]
        outages = []
        for number, span in enumerate(longest):
            took = f"{span.duration_ms:,.0f} ms"
            late = " late" if span.start_s > self._seconds * 0.6 else ""  # its text grows to the left
            outages.append(self._bar(span, f"outage{late}", "" if number else took, f"{group}: nothing acknowledged for {took}"))
        return self._chart(group, "acked/s", [round(count / self._bin_s) for count in counts], tuple(outages))

    def _latency(self) -> Chart:
        parts = self._parts(self._found.latencies_ms)
        known = [[value for value in part if value is not None] for part in parts]
        return self._chart("p99", "ms", [max(part) if part else None for part in known])

    def _parts(self, values: Sequence[_T]) -> list[Sequence[_T]]:
        return [values[at : at + self._merged] for at in range(0, len(values), self._merged)]

    def _chart(self, name: str, unit: str, values: Sequence[float | None], outages: tuple[Bar, ...] = ()) -> Chart:
        top = _round_up(max((value for value in values if value is not None), default=0.0))
        return Chart(
            name=name,
            unit=unit,
            scale=(_figure(top), _figure(top / 2), "0"),
            values=",".join("" if value is None else f"{value:g}" for value in values),
            path=_path([None if value is None else 100 - 100 * value / top for value in values]),
            width=round(self._seconds / self._bin_s, 3),
            outages=outages,
        )

    def _ticks(self) -> list[tuple[float, str]]:
        step = next((each for each in STEPS_S if self._seconds / each <= MAX_TICKS), STEPS_S[-1])
        return [(round(100 * number * step / self._seconds, 2), f"{number * step:g} s") for number in range(int(self._seconds / step) + 1)]


def _path(heights: Sequence[float | None]) -> str:
    """A line through the middle of each bin, broken where there is no value."""
    parts, drawn = [], False
    for number, height in enumerate(heights):
        if height is not None:
            alone = not drawn and (number + 1 == len(heights) or heights[number + 1] is None)
            parts.append(f"M{number},{height:.0f}h1" if alone else f"{'L' if drawn else 'M'}{number + 0.5:g},{height:.0f}")
        drawn = height is not None
    return "".join(parts)


def _round_up(most: float) -> float:
    """The next of 1, 2, 5, 10, 20 ..."""
    if most <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= most)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
