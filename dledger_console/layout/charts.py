"""Line charts over time, drawn from series.  The browser has what it was sent: only new points follow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nicegui import ui

from dledger_console.history.series import POINTS, Series
from dledger_console.layout.tables import NOT_YET

COLOURS = ("#1f77d0", "#d9822b", "#2e9e5b", "#b24bd0", "#c2453d", "#1aa5a5", "#8a7f2c", "#6b7785")
MUTED = "#8391a2"  # is read on light and on dark
GRID = "#83919233"
MAX_LINES = 12
# Adds points to the lines of a chart, and takes away as many old ones as are too many.
APPEND = Path(__file__).with_name("append_points.js").read_text(encoding="utf-8")


class LineChart:
    """One line a name; ``show`` draws what the series hold now.  Its place is there before its data, so nothing moves."""

    def __init__(self, label: str, *, whole: bool = False, quiet: str = "nothing yet") -> None:
        self._sent: dict[str, int] = {}  # by line: the time of its newest point that the browser has
        line = {"lineStyle": {"color": MUTED}}
        axis = {"axisLine": line, "axisLabel": {"color": MUTED}, "splitLine": {"lineStyle": {"color": GRID}}}
        options: dict[str, Any] = {
            "animation": False,
            "color": list(COLOURS),
            "grid": {"left": 58, "right": 14, "top": 30, "bottom": 24},
            "legend": {"type": "scroll", "top": 0, "textStyle": {"color": MUTED}, "itemWidth": 16, "itemHeight": 8},
            "tooltip": {"trigger": "axis", "confine": True, "renderMode": "richText"},  # texts, never markup
            "xAxis": {"type": "time", **axis, "splitNumber": 4},
            "yAxis": {"type": "value", "min": 0, **axis},
            "series": [],
        }
        if whole:
            options["yAxis"]["minInterval"] = 1
        with ui.element("div").classes("chart-place"):
            self.chart = ui.echart(options).classes("chart")
            self._quiet = ui.label(NOT_YET).classes("quiet-chart")
        self._quiet_text = quiet
        self.chart.props["role"], self.chart.props["aria-label"] = "img", label

    def show(self, lines: Mapping[str, Series], *, unknown: str = "") -> None:
        """Draw these series, by name; of many the first ones.  ``unknown``: why their newest values are not known."""
        drawn = dict(list(lines.items())[:MAX_LINES])
        if drawn.keys() == self._sent.keys():
            self._append(drawn)
        else:
            self._draw(drawn)
        if not unknown and drawn and all(series.last is None for series in drawn.values()):
            unknown = NOT_YET if all(value is None for series in drawn.values() for _, value in series.points()) else "not known now"
        self._quiet.set_text(unknown or self._quiet_text)
        self._quiet.set_visibility(bool(unknown) or not any(value for series in drawn.values() for _, value in series.points()))
        self.chart.classes(replace="chart unknown" if unknown else "chart")
        self._sent = {name: series.newest_ms for name, series in drawn.items()}

    def _draw(self, lines: Mapping[str, Series]) -> None:
        self.chart.options["series"] = [
            {"type": "line", "name": name, "showSymbol": len(data) < 2, "data": data}  # a line needs two points
            for name, series in lines.items()
            for data in [_points(series.points())]
        ]
        self.chart.update()

    def _append(self, lines: Mapping[str, Series]) -> None:
        more = {name: found for name, series in lines.items() if (found := _points(series.since(self._sent[name])))}
        if not more:
            return
        for line in self.chart.options["series"]:  # for a browser that connects again
            line["data"] = (line["data"] + more.get(line["name"], []))[-POINTS:]
        self.chart.client.run_javascript(APPEND % (self.chart.id, json.dumps(more), POINTS))


def _points(points: Sequence[tuple[int, float | None]]) -> list[list[int | float | str]]:
    return [[at_ms, _value(value)] for at_ms, value in points]


def _value(value: float | None) -> float | str:
    return "-" if value is None else round(value, 2)  # "-": the library's word for a gap
