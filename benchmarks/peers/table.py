"""The table at the end: a line for each measurement, a column for each system as configured, and where dledger stands."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers.figures import Figure

OURS = "dledger"
WAYS = {"single": "message by message", "many": "many at once"}


@dataclass(frozen=True, slots=True)
class Column:
    """A system as configured: what stands above its figures and below them."""

    name: str
    durability: str
    synced: bool
    versions: str
    ways: dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of figures; ``more_is_better`` None: not compared."""

    name: str
    value: Callable[[Figure], float | None]
    work: str
    way: str = "single"
    size: str = ""
    more_is_better: bool | None = None
    digits: int = 1


def lines(figures: Sequence[Figure]) -> list[Line]:
    sizes = list(dict.fromkeys(figure.size for figure in figures if figure.work == "produce"))
    known = {(figure.work, figure.way) for figure in figures}
    found = []
    for work in ("produce", "consume"):
        for size in sizes:
            for way, words in WAYS.items():
                if (work, way) not in known:
                    continue
                name = f"{work} {size} B, {words}"
                found += [
                    Line(f"**{name}, k msg/s**", lambda figure: figure.rate / 1e3, work, way, size, True),
                    Line("client's CPU, s per million", lambda figure: figure.client_cpu_per_million_s, work, way, size),
                    Line("servers' CPU, s per million", lambda figure: figure.servers_cpu_per_million_s, work, way, size),
                ]
    found += [
        Line("**one message at a time, 1024 B, p50 ms**", lambda figure: figure.p50_ms, "latency", more_is_better=False, digits=2),
        Line("p99 ms", lambda figure: figure.p99_ms, "latency", more_is_better=False, digits=2),
        Line(
            "**kill -9 of the leader to the next acknowledged write, s**", lambda f: f.pause_s, "failover", more_is_better=False, digits=2
        ),
        Line("of the acknowledged messages lost", lambda figure: figure.lost, "failover", digits=0),
        Line("doubled", lambda figure: figure.doubled, "failover", digits=0),
    ]
    return found


def values(figures: Sequence[Figure], system: str, line: Line) -> list[float]:
    """The values of all rounds.  A system with one way has it in the lines of both, since there is no quicker one."""
    own = [f for f in figures if f.system == system and f.work == line.work and f.size in (line.size or f.size, "")]
    ways = {figure.way for figure in own}
    way = line.way if line.way in ways else "single"
    found = [line.value(figure) for figure in own if figure.way == way and not _incomparable(figure)]
    return [value for value in found if value is not None]


def _incomparable(figure: Figure) -> bool:
    """Rates of messages that are not all there say nothing; a failover that lost some is shown with its losses."""
    return figure.work in ("produce", "consume") and bool(figure.problem())


def cell(found: Sequence[float], digits: int) -> str:
    """The median, and the spread when there are several."""
    if not found:
        return "-"
    text = f"{statistics.median(found):.{digits}f}"
    low, high = f"{min(found):.{digits}f}", f"{max(found):.{digits}f}"
    return f"{text} ({low}-{high})" if low != high else text


def verdict(ours: Sequence[float], peers: dict[str, Sequence[float]], more_is_better: bool | None) -> str:
    """dledger against the best of the others: above 1 it is ahead, below 1 it loses."""
    known = {name: statistics.median(found) for name, found in peers.items() if found}
    if more_is_better is None or not ours or not known:
        return ""
    best = max(known, key=lambda name: known[name] if more_is_better else -known[name])
    own, other = statistics.median(ours), known[best]
    if not own or not other:
        return ""
    ratio = own / other if more_is_better else other / own
    said = f"{ratio:.2f} of {best}"
    return f"**loses**: {said}" if f"{ratio:.2f}" < "1.00" and ratio < 1 else said


def checked(figures: Sequence[Figure], system: str) -> str:
    """What was checked, with the numbers."""
    own = [figure for figure in figures if figure.system == system]
    sent = [figure for figure in own if figure.work == "produce"]
    read = [figure for figure in own if figure.work == "consume"]
    kills = [figure for figure in own if figure.work == "failover"]
    said = []
    if sent:
        said.append(f"{sum(f.acknowledged or 0 for f in sent)} of {sum(f.messages for f in sent)} acknowledged")
    if read:
        distinct, doubled, strange = (sum(getattr(figure, name) or 0 for figure in read) for name in ("distinct", "doubled", "strange"))
        said.append(f"{distinct} distinct of {sum(f.messages for f in read)} read, {doubled} doubled, {strange} unlike what was sent")
    if kills:
        acknowledged, lost, doubled = (sum(getattr(figure, name) or 0 for figure in kills) for name in ("acknowledged", "lost", "doubled"))
        said.append(f"{len(kills)} kills: {acknowledged} acknowledged, {lost} lost, {doubled} doubled")
    problems = [figure.problem() for figure in own if figure.problem()]
    return "; ".join(said + [f"**problem**: {problem}" for problem in problems])


def loads(figures: Sequence[Figure], system: str) -> list[float]:
    return [figure.load for figure in figures if figure.system == system]


def markdown(figures: Sequence[Figure], columns: Sequence[Column]) -> str:
    peers = [column for column in columns if column.name != OURS]
    synced = [column for column in peers if column.synced]
    rows = [["", *(column.name for column in columns), "dledger against the best", "against the best synced"], ["---"] * (len(columns) + 3)]
    rows.append(["acknowledged means", *(column.durability for column in columns), "", ""])
    for line in lines(figures):
        found = {column.name: values(figures, column.name, line) for column in columns}
        if any(found.values()):
            ratios = [
                verdict(found.get(OURS, ()), {peer.name: found[peer.name] for peer in others}, line.more_is_better)
                for others in (peers, synced)
            ]
            rows.append([line.name, *(cell(found[column.name], line.digits) for column in columns), *ratios])
    calls = ["; ".join(f"{work}: {', '.join(ways.values())}" for work, ways in column.ways.items()) for column in columns]
    rows.append(["calls", *calls, "", ""])
    rows.append(["checked", *(checked(figures, column.name) for column in columns), "", ""])
    rows.append(["load of the machine meanwhile", *(cell(loads(figures, column.name), 1) for column in columns), "", ""])
    rows.append(["versions", *(column.versions for column in columns), "", ""])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
