"""What a terminal shows of a drill."""

from __future__ import annotations

import io
from collections import deque

import pytest
from rich.console import Console

from dledger_drill.report.terminal import Lines, LiveView, Progress, round_line, sparkline
from tests.unit.drill.report.made import made


def test_a_pipe_gets_a_line_a_round() -> None:
    out = io.StringIO()
    with Lines(Console(file=out, width=60)) as shown:
        shown.progress(Progress(1, 2, "kill-leader n0"))
        for each in made(2, failing=1.0, hostile=True).rounds:
            shown.round_over(each)
        shown.judged(2, 1)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[2] == "2 rounds judged: a promise was BROKEN in 1"
    assert lines[0].startswith("round 1 ")
    assert "1 BROKEN: plain-0/17" in lines[0]
    assert "\x1b" not in out.getvalue()


def test_a_terminal_shows_leaders_rates_and_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(1000))
    monkeypatch.setattr("dledger_drill.report.terminal.time.monotonic", lambda: float(next(times)))
    out = io.StringIO()
    view = LiveView(Console(file=out, width=140, force_terminal=True, color_system=None))
    view.progress(Progress(1, 3, "kill-leader n0", {"g0": ("n0", 4)}, {"g0": 100}))
    view.progress(Progress(2, 3, "kill-leader n0", {"g0": ("n1", 5)}, {"g0": 350}))
    view.round_over(made(1).rounds[0])
    console = Console(file=out, width=140)
    console.print(view._draw())
    assert "no round judged yet" in out.getvalue()
    view.judged(1, 0)
    console = Console(file=out, width=140)
    console.print(view._draw())
    text = out.getvalue()
    assert "round 2 of 3" in text
    assert "nothing lost, doubled, changed or reordered in 1 judged rounds" in text
    assert [each in text for each in ("n1", "5", "250", "█", "round 1")] == [True] * 5


def test_sparks() -> None:
    assert sparkline(deque([0.0, 5.0, 10.0])) == " ▄█"
    assert sparkline(deque([0.0, 0.0])) == "  "
    assert round_line(made(1).rounds[0]).count("\n") == 0
