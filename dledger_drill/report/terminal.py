"""What a terminal shows while a drill runs, and a line a round where there is none."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dledger_drill.report.model import Report, RoundReport
from dledger_drill.report.promises import promises_line
from dledger_wire.printable import printable

SPARKS = " ▁▂▃▄▅▆▇█"
SECONDS = 60  # of rates that are shown
KEPT_ROUNDS = 12
SHOWN_VIOLATIONS = 10


@dataclass(slots=True)
class Progress:
    """Where a drill is.

    Attributes:
        rounds: How many there are to be; None: until its time is over.
        doing: What goes on, such as ``kill-leader n0``.
        leaders: Replica group -> node and term.
        acknowledged: Replica group -> messages acknowledged so far.
    """

    round: int = 0
    rounds: int | None = None
    doing: str = ""
    leaders: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    acknowledged: Mapping[str, int] = field(default_factory=dict)


class Shown:
    """What a drill tells while it runs; nothing, unless a method is overridden."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The drill is over."""

    def progress(self, now: Progress) -> None:
        """About once in a second, and when something begins."""

    def round_over(self, found: RoundReport) -> None:
        """As far as it is known before its history is judged."""

    def judged(self, rounds: int, broken: int) -> None:
        """So many rounds are judged now; in ``broken`` of them a promise was."""


def round_line(found: RoundReport) -> str:
    """A round in one line."""
    broken = f"   {len(found.violations)} BROKEN: {found.violations[0].text}" if found.violations else ""
    faults = " + ".join(found.faults)
    return printable(
        f"round {found.number:<4} {faults:<32} unavailable {found.unavailable_ms:7,.0f} ms   terms {found.terms}"
        f"   acknowledged {found.acknowledged:,}{broken}"
    )


def closing_lines(report: Report) -> list[str]:
    """What a terminal tells at the end, before the verdict."""
    lines = [f"not possible here: {name}: {why}" for name, why in report.impossible.items()]
    if report.not_reached:
        lines.append(f"not reached: {len(report.not_reached)} of {len(report.wanted)} faults; more rounds have them")
    lines += [f"{each.kind}: {each.text}" for each in report.all_violations[:SHOWN_VIOLATIONS]]
    if report.rounds:
        lines.append(promises_line(report))
    return [printable(each) for each in lines]


class Lines(Shown):
    """A line for each round, for a pipe or a file."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def round_over(self, found: RoundReport) -> None:
        self._console.print(round_line(found), highlight=False, markup=False, soft_wrap=True)

    def judged(self, rounds: int, broken: int) -> None:
        said = f"a promise was BROKEN in {broken}" if broken else "nothing lost, doubled, changed or reordered"
        self._console.print(f"{rounds} rounds judged: {said}", highlight=False, markup=False, soft_wrap=True)


class LiveView(Shown):
    """The drill on a terminal, drawn again several times a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._now = Progress()
        self._began = time.monotonic()
        self._rates: dict[str, deque[float]] = {}
        self._before: tuple[float, Mapping[str, int]] | None = None
        self._rounds: deque[RoundReport] = deque(maxlen=KEPT_ROUNDS)
        self._worst_ms = 0.0
        self._judged = self._broken = 0
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def progress(self, now: Progress) -> None:
        at_s = time.monotonic()
        if self._before is not None and at_s - self._before[0] >= 0.9:
            took_s = at_s - self._before[0]
            for group, count in now.acknowledged.items():
                rates = self._rates.setdefault(group, deque(maxlen=SECONDS))
                rates.append(max(0, count - self._before[1].get(group, 0)) / took_s)
        if self._before is None or at_s - self._before[0] >= 0.9:
            self._before = at_s, dict(now.acknowledged)
        self._now = now

    def round_over(self, found: RoundReport) -> None:
        self._rounds.append(found)
        self._worst_ms = max(self._worst_ms, found.unavailable_ms)

    def judged(self, rounds: int, broken: int) -> None:
        self._judged, self._broken = rounds, broken

    def _draw(self) -> Group:
        now, passed_s = self._now, time.monotonic() - self._began
        of = f" of {now.rounds}" if now.rounds else ""
        kept = f"nothing lost, doubled, changed or reordered in {self._judged} judged rounds" if self._judged else "no round judged yet"
        state = f"a promise was BROKEN in {self._broken} of {self._judged} judged rounds" if self._broken else kept
        head = Text(f"round {now.round}{of}   {passed_s / 60:.0f}:{passed_s % 60:02.0f}   longest pause {self._worst_ms:,.0f} ms   ")
        head.append(state, "bold red" if self._broken else "green" if self._judged else "dim")
        groups = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("REPLICA-GROUP", "LEADER", "TERM", "ACKED/S", "LAST MINUTE"):
            groups.add_column(name, justify="right" if name in ("TERM", "ACKED/S") else "left", no_wrap=True)
        for group in sorted({*now.acknowledged, *now.leaders}):
            node, term = now.leaders.get(group, ("-", 0))
            rates = self._rates.get(group, deque())
            groups.add_row(printable(group), printable(node), str(term), f"{rates[-1]:,.0f}" if rates else "", sparkline(rates))
        rounds = [Text(round_line(each), "red" if each.violations else "", no_wrap=True, overflow="ellipsis") for each in self._rounds]
        return Group(head, Text(printable(now.doing), "bold"), groups, *rounds)


def sparkline(values: deque[float]) -> str:
    """A character for each value."""
    most = max(values, default=0)
    return "".join(SPARKS[round((len(SPARKS) - 1) * value / most)] if most else SPARKS[0] for value in values)
