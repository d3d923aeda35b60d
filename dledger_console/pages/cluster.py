"""The cluster at a glance: what works, what is wrong, who leads and why, which replicas are behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from nicegui import ui

from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_client.admin.consumer_checks import DEAD_LETTERS, GROUP_LAG, TRANSACTIONS, Finding
from dledger_client.admin.diagnostics import LeaderChange
from dledger_client.admin.status_text import replicas_of
from dledger_console.data.cluster import ClusterSamplers, unknown_text, verdict
from dledger_console.history.cluster import Behind, furthest_behind
from dledger_console.layout.charts import LineChart
from dledger_console.layout.parts import Missing
from dledger_console.layout.shared import cluster_samplers
from dledger_console.layout.tables import BoundedTable, Cell, Column, Link, Mark, link
from dledger_console.layout.view import View, console_page
from dledger_console.layout.words import NOT_KNOWN, ago, clock, number, span
from dledger_wire.printable import printable

CHANGES = 12
FINDINGS = 20
QUIET = (
    "Nothing. Every member answers and is in sync; no consumer group lags by 5 minutes or is stuck, and no dead letter or transaction "
    "waits for an operator."
)
CHANGES_S = 1.0
GROUPS = (
    Column("group", "Replica group"),
    Column("leader", "Leader"),
    Column("term", "Term", number=True),
    Column("in_sync", "In sync"),
    Column("behind", "Not in sync"),
    Column("lag", "Entries behind, at most", number=True),
    Column("in", "In / s", number=True),
    Column("out", "Out / s", number=True),
    Column("spare", "May still fail"),
)
BEHIND_TITLE = "Consumer groups that lag most"
BEHIND = (
    Column("group", "Consumer group"),
    Column("state", "State"),
    Column("lag", "Messages behind", number=True),
    Column("trend", "Last minute"),
    Column("topic", "Most of it in"),
)


IN, OUT = "Messages in / s", "Messages out / s"
CONSUMERS, FOLLOWERS = "Consumer lag, messages", "Follower lag, entries"
CHARTS = (IN, OUT, CONSUMERS, FOLLOWERS)


@console_page("/", "Cluster")
async def cluster(view: View) -> None:
    """What works, who leads, who lags."""
    page = _Page(cluster_samplers(view))
    await view.follow(page.seen.status, page.show_status)
    await view.follow(page.seen.consumers, page.show_consumers)
    await view.every(CHANGES_S, page.show_changes)


class _Page:
    """The parts of the page, and what brings each of them up to date."""

    def __init__(self, seen: ClusterSamplers) -> None:
        self.seen = seen
        self._line = ui.label("Asking the nodes…").classes("sentence card")
        with ui.element("div").classes("cards"):
            with _card("Needs attention"):
                self._attention = ui.element("div").classes("attention")
            with _card(BEHIND_TITLE):
                self._behind = BoundedTable(BEHIND, key="key", empty="every consumer group has read everything", label=BEHIND_TITLE)
                self._missing = Missing()
        ui.label("Replica groups").classes("section")
        self._groups = BoundedTable(GROUPS, key="key", empty="no replica group has answered", label="Replica groups", rows=20)
        ui.label("Why leaders changed").classes("section")
        self._changes = ui.element("div").classes("card changes")
        ui.label("Live, while a page is open").classes("section")
        with ui.element("div").classes("cards"):
            self._charts = {title: _chart(title) for title in CHARTS}
        self._findings: object = None
        self._shown: list[LeaderChange] | None = None
        self._ages: list[tuple[ui.label, int]] = []

    def show_status(self) -> None:
        """What the nodes say."""
        found = self.seen.status.newest or ()
        said = verdict(found)
        self._line.set_text(printable(said.text))
        self._line.classes(replace=f"sentence on-{said.kind}")
        self._show_attention()
        self._groups.set_rows([_group_row(group, self.seen) for group in found])
        self._charts[IN].show(self.seen.history.messages_in)
        self._charts[OUT].show(self.seen.history.messages_out)
        self._charts[FOLLOWERS].show(self.seen.history.entries_behind)

    def show_consumers(self) -> None:
        """The groups that lag most; the last known ones when that is not known now."""
        newest, known = self.seen.consumers.newest, self.seen.known.groups
        if newest is None:
            return
        self._show_attention()
        unknown = unknown_text(newest.problems.get(GROUP_LAG), self.seen.status.newest or ())
        old = [f"{unknown}; this was so at {clock(self.seen.known_ms)}"] if unknown and known else []
        self._missing.show(newest.groups.unanswered, *old, read_at=newest.groups.read_at)
        found = furthest_behind(known, self.seen.history)
        self._behind.set_rows([_behind_row(each) for each in found], unknown=unknown)
        self._behind.table.classes(**({"add": "stale"} if unknown else {"remove": "stale"}))
        lags = self.seen.history.consumer_lag
        self._charts[CONSUMERS].show({each.name: lags[each.name] for each in found if each.name in lags}, unknown=unknown)

    def _show_attention(self) -> None:
        findings, waits = self.seen.attention(), self.seen.consumers.newest is None
        if (findings, waits) != self._findings:
            self._findings = findings, waits
            _attention(self._attention, findings, waits=waits)

    async def show_changes(self) -> None:
        """Why leaders changed."""
        found = list(self.seen.leader_changes.newest[-CHANGES:])
        if found != self._shown:
            self._shown = found
            self._ages = _timeline(self._changes, found)
        now_ms = time.time() * 1000
        for label, at_ms in self._ages:
            label.set_text(ago(at_ms, now_ms))


@contextlib.contextmanager
def _card(title: str) -> Iterator[None]:
    with ui.element("section").classes("card"):
        ui.label(title).classes("section first")
        yield


def _chart(title: str) -> LineChart:
    with _card(title):
        whole = title in (CONSUMERS, FOLLOWERS)
        return LineChart(title, whole=whole, quiet="no lag" if whole else "no traffic")


def _group_row(group: ReplicaGroupStatus, seen: ClusterSamplers) -> dict[str, Cell]:
    replicas = replicas_of(group)
    lags = [lag for node in group.nodes if (lag := group.lag(node)) is not None and group.is_member(node.id)]
    missing = replicas["missing"] + replicas["lagging"]
    spare = group.spare
    if group.takes_messages:
        left = Mark(f"{spare} of {len(group.voters)}", "good") if spare else Mark("none: one more stops writes", "warn")
    else:
        left = Mark("writes have stopped", "bad")
    return {
        "key": group.name,
        "group": group.name,
        "leader": Link.to(group.leader_id, "/node", id=group.leader_id) if group.leader_id else Mark("no leader", "bad"),
        "term": group.term,
        "in_sync": ", ".join(replicas["in_sync"]) or "–",
        "behind": Mark(", ".join(missing), "warn") if missing else "–",
        "lag": max(lags, default=None),
        "in": number(seen.history.messages_in[group.name].last),
        "out": number(seen.history.messages_out[group.name].last),
        "spare": left,
    }


def _behind_row(each: Behind) -> dict[str, Cell]:
    trend: Cell = NOT_KNOWN if each.growing is None else Mark("growing", "warn") if each.growing else Mark("not growing", "good")
    said = each.state.text.partition(":")[0]  # without its details, for which its page has room
    return {
        "key": each.name,
        "group": Link.to(each.name, "/group", name=each.name),
        "lag": each.lag,
        "state": Mark(said, each.state.kind) if each.state.kind else said,
        "trend": trend,
        "topic": Link.to(each.topic, "/topic", name=each.topic) if each.topic else None,
    }


def _attention(place: ui.element, findings: Sequence[Finding], *, waits: bool) -> None:
    """``waits``: consumers are not known yet."""
    place.clear()
    with place:
        if waits:
            ui.label("What consumers do is not known yet.").classes("muted")
        elif not findings:
            ui.label(QUIET).classes("muted")
        for finding in findings[:FINDINGS]:
            target = _page_of(finding)
            if target:
                ui.link(printable(str(finding)), target).classes("finding")
            else:
                ui.label(printable(str(finding))).classes("finding")
        if len(findings) > FINDINGS:
            ui.label(f"and {len(findings) - FINDINGS} more: dledger status --check all").classes("muted small")


def _page_of(finding: Finding) -> str:
    """Where there is more about it; empty for nowhere."""
    if finding.check == DEAD_LETTERS:
        return link("/dead-letters", group=finding.consumer_group)
    if finding.check == TRANSACTIONS:
        return link("/waiting")
    if finding.consumer_group:
        return link("/group", name=finding.consumer_group)
    return link("/node", id=finding.node) if finding.node else ""


def _timeline(place: ui.element, changes: Sequence[LeaderChange]) -> list[tuple[ui.label, int]]:
    """Draw the changes.  Returns the labels that say how long ago each was, with its time."""
    place.clear()
    ages: list[tuple[ui.label, int]] = []
    with place:
        if not changes:
            ui.label("No change of leader since the nodes that answer were started.").classes("muted")
        for change in reversed(changes):
            with ui.element("div").classes("change"):
                with ui.element("div").classes("small muted"):
                    ui.label(clock(change.at_ms))
                    ages.append((ui.label(), change.at_ms))
                with ui.element("div"):
                    with ui.element("div").classes("row-line"):
                        ui.label(f"{change.replica_group}:").classes("muted")
                        ui.label(f"{change.previous or 'none'} →").classes("muted")
                        ui.link(printable(change.leader), link("/node", id=change.leader)).classes("strong")
                        ui.label(f"term {change.term}").classes("small muted")
                        if change.kind:
                            ui.label(KINDS.get(change.kind, printable(change.kind))).classes(f"pill on-{_kind(change)}")
                        if change.took_ms is not None and change.kind != "start":
                            ui.label(f"{span(change.took_ms)} without a leader").classes("small muted")
                    ui.label(printable(change.reason) or "The nodes do not know why.").classes("why")
    return ages


KINDS = {"election": "elected", "transfer": "handed over", "start": "first after a start", "followed": "learned from the new leader"}


def _kind(change: LeaderChange) -> str:
    return {"election": "warn", "followed": "warn"}.get(change.kind, "good")
