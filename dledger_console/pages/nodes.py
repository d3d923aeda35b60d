"""Nodes: how each one is, what it holds and is set to, and the newest lines of its log."""

from __future__ import annotations

import time
from dataclasses import dataclass

from nicegui import ui

from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus
from dledger_client.admin.diagnostics import LogLevel, LogLine
from dledger_client.admin.status_text import connections_text, node_note
from dledger_console.layout.actions import act, action_button, confirm
from dledger_console.layout.parts import Figures
from dledger_console.layout.shared import cluster_samplers
from dledger_console.layout.tables import BoundedTable, Cell, Column, Link, Mark
from dledger_console.layout.view import View, console_page
from dledger_console.layout.words import clock, number, size, span
from dledger_wire.errors import DledgerError
from dledger_wire.printable import printable

DISK_WARN, DISK_BAD = 75.0, 90.0
LOOP_WARN_MS = 200.0
LOG_LINES = 200
DETAILS_S = 10.0
NODES = (
    Column("node", "Node"),
    Column("group", "Replica group"),
    Column("role", "Role"),
    Column("note", "Note", note=True),
    Column("lag", "Entries behind", number=True),
    Column("disk", "Disk used", number=True),
    Column("memory", "Memory", number=True),
    Column("loop", "Loop late by", number=True),
    Column("connections", "Connections", note=True),
    Column("up", "Up for", number=True),
    Column("version", "Version", note=True),
    Column("address", "Address"),
)
FILES = (
    Column("kind", "Files"),
    Column("count", "Number", number=True),
    Column("size", "Size", number=True),
    Column("oldest", "Oldest written"),
)
FIGURES = (
    "Replica group",
    "Term",
    "Log",
    "Committed",
    "Entries behind",
    "Disk used",
    "Disk free",
    "Disk size",
    "Memory",
    "Connections",
    "Processor time",
    "Up for",
)
PAIRS = (Column("name", "Name"), Column("value", "Value", note=True))


@console_page("/nodes", "Nodes")
async def nodes(view: View) -> None:
    """One row a node."""
    seen = cluster_samplers(view)
    table = BoundedTable(NODES, key="key", search=True, empty="no node is known", label="Nodes")

    def show() -> None:
        groups = seen.status.newest or ()
        table.set_rows([_row(group, node, several=len(groups) > 1) for group in groups for node in group.nodes])

    await view.follow(seen.status, show)


def _row(group: ReplicaGroupStatus, node: NodeStatus, *, several: bool) -> dict[str, Cell]:
    note = printable(node_note(group, node, several_groups=several))
    row: dict[str, Cell] = {
        "key": f"{group.name}/{node.id}",
        "node": Link.to(node.id, "/node", id=node.id),
        "group": group.name,
        "address": node.address,
        "note": note,
    }
    if not node.reachable:
        return row | {
            "role": Mark("unreachable", "bad"),
            **dict.fromkeys(("lag", "disk", "memory", "loop", "connections", "up", "version")),
        }
    disk = node.disk_used_percent
    return row | {
        "role": Mark(node.role, "good") if node.role == "leader" and node.leader_confirmed else node.role,
        "lag": group.lag(node),
        "disk": _limited(f"{disk:.0f} %", disk, DISK_WARN, DISK_BAD),
        "memory": size(node.rss_bytes),
        "loop": _limited(span(node.loop_lag_ms), node.loop_lag_ms, LOOP_WARN_MS, 10 * LOOP_WARN_MS),
        "connections": _connections(node),
        "up": span(time.time() * 1000 - node.started_at_ms),
        "version": node.version,
    }


def _connections(node: NodeStatus) -> Cell:
    text, states = printable(connections_text(node.connection_states, node.bottleneck)), node.connection_states
    return Mark(text, "bad" if states.get("blocked") else "warn") if states.get("blocked") or states.get("flow") else text


def _limited(text: str, value: float, warn: float, bad: float) -> Cell:
    return Mark(text, "bad" if value >= bad else "warn") if value >= warn else text


@console_page("/node", "Node")
async def node(view: View, id: str = "") -> None:
    """Everything about one node."""
    page = _NodePage(view, id)
    await view.follow(page.seen.status, page.show)
    await view.every(DETAILS_S, page.show_details)
    await _log(view, id)


class _NodePage:
    """The parts of the page, and what brings them up to date."""

    def __init__(self, view: View, node_id: str) -> None:
        self._view, self._id = view, node_id
        self.seen = cluster_samplers(view)
        with ui.element("div").classes("row-line"):
            ui.label(printable(node_id)).classes("section first")
            self._role = ui.label("").classes("pill")
            self._button = _hand_over_button(view, node_id)
        self._figures = Figures(FIGURES)
        with ui.element("div").classes("cards"):
            with ui.element("section"):
                ui.label("Files").classes("section")
                self._files = BoundedTable(FILES, key="kind", empty="not known yet", label="Files")
                ui.label("Versions and connections").classes("section")
                self._facts = BoundedTable(PAIRS, key="name", empty="not known yet", label="Versions and connections")
            with ui.element("section"):
                ui.label("Settings in force").classes("section")
                self._settings = BoundedTable(PAIRS, key="name", rows=12, search=True, empty="not known yet", label="Settings in force")

    def show(self) -> None:
        """What its status says."""
        found = [(group, each) for group in self.seen.status.newest or () for each in group.nodes if each.id == self._id]
        if not found:
            self._role.set_text("the cluster has no node of this id")
            if self._button is not None:
                self._button.set_enabled(False)
            return
        group, status = found[0]
        self._role.set_text(status.role if status.reachable else f"unreachable: {printable(status.error)}")
        self._role.classes(replace=f"pill on-{'good' if status.reachable else 'bad'}")
        if self._button is not None:
            self._button.set_enabled(status.reachable and status.id in group.voters and status.role != "leader")
        self._figures.show(_figures(group, status))

    async def show_details(self) -> None:
        """What it alone knows."""
        try:
            found = await self._view.admin.node_details(self._id)
        except DledgerError:
            for table in (self._files, self._facts, self._settings):
                table.not_answered()
            raise
        free, total = size(found.disk_free_bytes), size(found.disk_total_bytes)
        self._figures.show({"Disk free": free, "Disk size": total, "Processor time": span(found.cpu_s * 1000)})
        self._files.set_rows(
            [
                {"kind": each.kind, "count": each.count, "size": size(each.size_bytes), "oldest": clock(each.oldest_ms)}
                for each in found.files
            ]
        )
        pairs = {f"{name} version": value for name, value in found.versions.items()}
        pairs |= {f"{name} connections": str(count) for name, count in found.connections.items()}
        self._facts.set_rows([{"name": name, "value": value} for name, value in pairs.items()])
        self._settings.set_rows([{"name": name, "value": value} for name, value in found.settings.items()])


def _figures(group: ReplicaGroupStatus, status: NodeStatus) -> dict[str, str]:
    """What is known while a node does not answer is only where it belongs."""
    known = {
        "Term": number(status.term),
        "Log": f"{number(status.first_index)} – {number(status.last_index)}",
        "Committed": number(status.committed_index),
        "Disk used": f"{status.disk_used_percent:.0f} %",
        "Memory": size(status.rss_bytes),
        "Connections": printable(connections_text(status.connection_states, status.bottleneck)),
        "Up for": span(time.time() * 1000 - status.started_at_ms),
    }
    if not status.reachable:
        known = dict.fromkeys(known, "–")
    return known | {"Replica group": group.name, "Entries behind": number(group.lag(status))}


def _hand_over_button(view: View, node_id: str) -> ui.button | None:
    async def ask() -> None:
        text = "Its replica group gets this node as its leader. Writes pause for a moment; none is lost."
        if await confirm(f"Hand leadership to {node_id}?", text, "Hand over"):
            await act(view, hand_over)

    async def hand_over() -> str:
        groups = await view.admin.cluster_status()
        name = next((group.name for group in groups for each in group.nodes if each.id == node_id), "")
        done = await view.admin.transfer_leader(node_id, replica_group=name)
        return f"{done.new_leader} leads {name} now; it took {done.took_ms:.0f} ms"

    return action_button(view, "Hand leadership to this node", ask)


@dataclass(slots=True)
class _ShownLog:
    """What is shown of a log."""

    level: LogLevel = "info"
    newest: int = 0
    shown: int = 0


def _log_line(line: LogLine) -> None:
    extra = " ".join(f"{name}={value}" for name, value in line.fields.items())
    text = f"{clock(line.at_ms)}  {line.level:<8} {line.text}  {extra}"
    ui.label(printable(text)).classes({"warning": "warn", "error": "bad", "critical": "bad"}.get(line.level, ""))


async def _log(view: View, node_id: str) -> None:
    """The newest lines, and those that come."""
    with ui.element("div").classes("row-line"):
        ui.label("Log").classes("section")
        level = ui.select(["info", "warning", "error"], value="info").props('dense outlined aria-label="Least level"')
    lines = ui.element("div").classes("log").props('tabindex="0" aria-label="Newest lines of the log"')
    shown_log = _ShownLog()

    async def more() -> None:
        if shown_log.level != level.value:
            shown_log.level, shown_log.newest, shown_log.shown = level.value, 0, 0
        try:
            found = await view.admin.log_tail(node_id, LOG_LINES, level=shown_log.level, after=shown_log.newest)
        except DledgerError as error:
            if not shown_log.shown:
                _say(lines, printable(error.message))
            raise
        if not shown_log.shown:
            lines.clear()
        shown_log.newest = found.newest
        shown_log.shown += len(found.lines)
        with lines:
            for line in found.lines:
                _log_line(line)
        while len(lines.default_slot.children) > LOG_LINES:
            lines.remove(0)

    await view.every(2.0, more)


def _say(place: ui.element, text: str) -> None:
    place.clear()
    with place:
        ui.label(text).classes("muted")
