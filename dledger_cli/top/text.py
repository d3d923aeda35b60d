"""The sections of ``dledger top`` as lines of text: replica groups, nodes, consumer groups, changes of leader.

Owns the columns, their order and the words; ``screen.py`` gives them colours and their share of the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from dledger_cli.top.columns import Column, lines
from dledger_cli.top.model import ConsumerRow, GroupRow, LeaderChange, NodeRow, Rates, View
from dledger_client.admin.status_text import connections_text
from dledger_wire.printable import printable

Order = Literal["name", "rate", "lag", "disk"]
ORDERS: tuple[Order, ...] = ("name", "rate", "lag", "disk")
State = Literal["good", "warning", "bad"]

_RATES = (
    Column("IN/S", 8, rank=1),
    Column("OUT/S", 8, rank=2),
    Column("BYTES-IN/S", 10, rank=6),
    Column("BYTES-OUT/S", 11, rank=7),
)
GROUP_COLUMNS = (
    Column("REPLICA-GROUP", right=False),
    Column("LEADER", 8, right=False),
    Column("TERM", 5),
    Column("VOTERS", 6),
    *_RATES,
    Column("STATE", 29, right=False, elastic=True),
)
NODE_COLUMNS = (
    Column("REPLICA-GROUP", right=False, rank=5),
    Column("NODE", 6, right=False),
    Column("ROLE", 13, right=False),
    Column("TERM", 5, rank=4),
    Column("LAG", 7),
    Column("DISK", 4),
    *_RATES,
    Column("LOOP-LAG", 8, rank=8),
    Column("MEMORY", 9, rank=3),
    Column("CONNECTIONS", 11, right=False, rank=9),
    Column("NOTE", 24, right=False, elastic=True),
)
CONSUMER_COLUMNS = (
    Column("CONSUMER-GROUP", 16, right=False),
    Column("MEMBERS", 7, rank=3),
    Column("LAG", 10),
    Column("READ/S", 8, rank=2),
    Column("LAG-CHANGE/S", 12, rank=1),
    Column("TOPICS", 10, right=False, elastic=True),
)
CHANGE_COLUMNS = (
    Column("WHEN", 8, right=False),
    Column("REPLICA-GROUP", right=False, rank=1),
    Column("TERM", 5),
    Column("LEADER", 24, right=False, elastic=True),
)


@dataclass(frozen=True, slots=True)
class Section:
    """A table: its heading, then its rows, each with how it is."""

    heading: str
    rows: tuple[tuple[str, State], ...]


def sections(view: View, width: int, order: Order = "name") -> dict[str, Section]:
    """The tables of ``view`` by name, in the order they are shown."""
    groups = sorted(view.groups, key=_group_key(order))
    nodes = sorted((node for group in view.groups for node in group.nodes), key=_node_key(order))
    consumers = sorted(view.consumers, key=_consumer_key(order))
    return {
        "groups": _section(GROUP_COLUMNS, [_group_cells(row) for row in groups], [_group_state(row) for row in groups], width),
        "nodes": _section(NODE_COLUMNS, [_node_cells(row) for row in nodes], [_node_state(row) for row in nodes], width),
        "consumers": _section(
            CONSUMER_COLUMNS, [_consumer_cells(row) for row in consumers], [_consumer_state(row) for row in consumers], width
        ),
        "changes": _section(CHANGE_COLUMNS, [_change_cells(row) for row in view.changes], ["good"] * len(view.changes), width),
    }


def clock_text(at_ms: int) -> str:
    """The time of day here."""
    return f"{datetime.fromtimestamp(at_ms / 1000).astimezone():%H:%M:%S}"


def _section(columns: Sequence[Column], cells: list[list[str]], states: Sequence[State], width: int) -> Section:
    heading, *rows = lines(columns, [[printable(cell) for cell in row] for row in cells], width)
    return Section(heading, tuple(zip(rows, states, strict=True)))


def _group_cells(row: GroupRow) -> list[str]:
    return [row.name, row.leader or "-", str(row.term), f"{row.acknowledging}/{row.voters}", *_rate_cells(row.rates), _group_text(row)]


def _group_text(row: GroupRow) -> str:
    if not row.leader:
        return "no leader"
    if row.spare < 0:
        return "no quorum: writes are stopped"
    if any(node.id == row.leader and not node.reachable for node in row.nodes):
        return "its leader did not answer in time"
    if not row.takes_messages:
        return "its leader takes no messages"
    if row.healthy:
        return "ok"
    return "one more failure stops writes" if row.spare == 0 else "not every member is in order"


def _group_state(row: GroupRow) -> State:
    return "good" if row.healthy else "warning" if row.takes_messages else "bad"


def _node_cells(row: NodeRow) -> list[str]:
    from broker.config.units import format_duration_ms, format_size

    place = [row.replica_group, row.id]
    if not row.reachable:
        return [*place, *["-"] * 11, row.note]
    lag = "-" if row.lag is None else str(row.lag)
    memory, loop_lag = format_size(row.rss_bytes), format_duration_ms(row.loop_lag_ms)
    held_up = connections_text(row.connection_states, row.bottleneck)
    return [
        *place,
        row.role,
        str(row.term),
        lag,
        f"{row.disk_used_percent:.0f}%",
        *_rate_cells(row.rates),
        loop_lag,
        memory,
        held_up,
        row.note,
    ]


def _node_state(row: NodeRow) -> State:
    if not row.reachable:
        return "bad"
    return "good" if row.note in ("", "master on") else "warning"


def _rate_cells(rates: Rates) -> list[str]:
    from broker.config.units import format_size

    messages = [_rate(value) for value in (rates.messages_in, rates.messages_out)]
    sizes = ["-" if value is None else format_size(value) for value in (rates.bytes_in, rates.bytes_out)]
    return [*messages, *sizes]


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 10 or not value else f"{value:.1f}"


def _consumer_cells(row: ConsumerRow) -> list[str]:
    change = "-" if row.lag_change is None else f"{row.lag_change:+.0f}"
    return [row.name, str(row.members), str(row.lag), _rate(row.consumed), change, ", ".join(row.topics)]


def _consumer_state(row: ConsumerRow) -> State:
    return "warning" if row.lag and (not row.members or (row.lag_change or 0) > 0) else "good"


def _change_cells(row: LeaderChange) -> list[str]:
    text = f"{row.old or '(none)'} -> {row.new or '(none)'}"
    if row.without_ms is not None:
        text += f", {row.without_ms / 1000:.2f} s without a leader"
    if row.reason:
        text += f": {row.reason}"
    return [clock_text(row.at_ms), row.replica_group, str(row.term), text]


def _group_key(order: Order) -> Callable[[GroupRow], Any]:
    keys: dict[Order, Callable[[GroupRow], Any]] = {
        "rate": lambda row: -(row.rates.messages_in or 0) - (row.rates.messages_out or 0),
        "lag": lambda row: -max((node.lag or 0 for node in row.nodes), default=0),
        "disk": lambda row: -max((node.disk_used_percent for node in row.nodes), default=0),
    }
    first = keys.get(order)
    return lambda row: (first(row) if first else 0, row.name)


def _node_key(order: Order) -> Callable[[NodeRow], Any]:
    keys: dict[Order, Callable[[NodeRow], Any]] = {
        "rate": lambda row: -(row.rates.messages_in or 0) - (row.rates.messages_out or 0),
        "lag": lambda row: (row.reachable, -(row.lag or 0)),
        "disk": lambda row: -row.disk_used_percent,
    }
    first = keys.get(order)
    return lambda row: (first(row) if first else 0, row.replica_group, row.id)  # not by role: a row stays where it is at a change of leader


def _consumer_key(order: Order) -> Callable[[ConsumerRow], Any]:
    if order == "rate":
        return lambda row: (-(row.consumed or 0), row.name)
    if order == "lag":
        return lambda row: (-row.lag, row.name)
    return lambda row: row.name
