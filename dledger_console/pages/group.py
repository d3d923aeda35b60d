"""One consumer group: its lag and the curve of it, which member reads which queue, its members; moving and deleting it."""

from __future__ import annotations

from nicegui import ui

from dledger_client.admin.group_progress import GroupProgress
from dledger_client.aio import ConsumerGroupDescription, QueueLag, QueueLeases
from dledger_console.data import groups
from dledger_console.data.groups import QueueRow, ResetPlan, ResetTarget
from dledger_console.history.groups import GroupRates, lag_by_topic
from dledger_console.history.sampler import Sampler
from dledger_console.history.series import Series
from dledger_console.layout.actions import act, act_when_answered, action_button, confirm, say
from dledger_console.layout.charts import LineChart
from dledger_console.layout.parts import Figures, Missing, Question, given_whole, heading, number_field, text_field, toolbar
from dledger_console.layout.tables import Amount, BoundedTable, Cell, Column, Link, Mark, link
from dledger_console.layout.view import View, console_page
from dledger_console.layout.words import NOT_KNOWN, TIME_HINT, ago, number, span, stored_at, time_ms
from dledger_console.pages.groups import moved_cell
from dledger_wire.printable import printable

LOOK_S = 2.0
FIRST, LAST, AT = "first", "last", "time"
QUEUES = (
    Column("topic", "Topic"),
    Column("queue", "Queue"),
    Column("lag", "Behind", number=True),
    Column("age", "Next message is", number=True),
    Column("offset", "Position"),
    Column("end", "End", number=True),
    Column("moved", "Last progress", number=True),
    Column("owner", "Read by"),
    Column("stands", "Stands still"),
)
LEASES = (
    Column("topic", "Topic"),
    Column("queue", "Queue"),
    Column("flight", "In flight", number=True),
    Column("again", "To be delivered again", number=True),
    Column("oldest", "Oldest was delivered", number=True),
    Column("attempts", "Most deliveries of one", number=True),
)
MEMBERS = (
    Column("id", "Member"),
    Column("address", "Address"),
    Column("kind", "Kind"),
    Column("queues", "Queues", number=True),
    Column("lag", "Behind", number=True),
    Column("joined", "Joined"),
    Column("reads", "Subscriptions", note=True),
)
MOVES = (
    Column("queue", "Queue"),
    Column("before", "From", number=True),
    Column("after", "To", number=True),
    Column("again", "Read again", number=True),
    Column("skipped", "Skipped", number=True),
)


class WatchedGroup:
    """A consumer group as one user watches it: its newest description, and its lag by topic over time."""

    def __init__(self, view: View, name: str) -> None:
        admin = view.admin
        self.lag: dict[str, Series] = {}
        self.rates = GroupRates()

        async def look() -> GroupProgress:
            (progress,) = await admin.group_progress([await admin.describe_group(name, partial=True)])
            return progress

        self.sampler: Sampler[GroupProgress] = Sampler(look, self._take, LOOK_S)

    def _take(self, at_ms: int, progress: GroupProgress) -> None:
        found = progress.group
        self.rates.take(at_ms, [found])
        lags = lag_by_topic(found)
        for topic in lags.keys() | self.lag.keys():
            if found.unanswered:  # a gap, not a fall
                self.lag.setdefault(topic, Series()).add(at_ms, None)
            elif topic in lags:
                self.lag.setdefault(topic, Series()).add(at_ms, lags[topic])
            else:
                del self.lag[topic]  # the topic was deleted

    def close(self) -> None:
        """The session has ended."""
        self.sampler.close()


@console_page("/group", "Consumer group")
async def group_page(view: View, name: str = "") -> None:
    """The consumer group ``name``."""
    await view.admin.describe_group(name, partial=True)  # the page says so when there is none
    watched = view.session.keep("group", lambda: WatchedGroup(view, name), key=name)
    seen = watched.sampler
    ui.label(printable(name)).classes("subject mono")
    figures = Figures(("Messages behind", "Oldest of them", "Read / s", "Last progress", "Members", "Queues without a reader"))
    state = ui.label("").classes("sentence card")
    with toolbar():
        action_button(view, "Move…", lambda: move(view, name, sorted(watched.lag)))
        action_button(view, "Settings…", lambda: settings(view, name))
        action_button(view, "Delete…", lambda: delete(view, name), dangerous=True)
        ui.link("Dead letters", link("/dead-letters", group=name))
    missing = Missing()
    heading("Messages behind, by topic")
    with ui.element("div").classes("card"):
        chart = LineChart(f"Messages behind of {printable(name)}, by topic", whole=True)
    heading("Queues")
    queues = BoundedTable(QUEUES, key="key", empty="no queues", label="Queues", rows=100)
    with ui.element("div") as one_by_one:
        heading("Received one by one, and not acknowledged")
        sums = Figures([column.label for column in LEASES[2:]])
        leases = BoundedTable(LEASES, key="key", empty="no queues", label="Received one by one")
    heading("Members")
    members = BoundedTable(MEMBERS, key="key", empty="no members are connected", label="Members")

    def show() -> None:
        if (progress := seen.newest) is None:
            return
        found = progress.group
        figures.show(_figures(progress, watched.rates.rate(name)))
        said = progress.state()
        state.set_text(f"{said.text[0].upper()}{said.text[1:]}.")
        state.classes(replace=f"sentence card on-{said.kind}" if said.kind else "sentence card")
        missing.show(found.unanswered, read_at=found.read_at)
        chart.show(watched.lag)
        members.set_rows(_member_rows(found), unknown="not known: only a leader knows them" if progress.members is None else "")
        one_by_one.set_visibility(found.leases is not None)
        if found.leases is not None:
            cells = zip(LEASES[2:], _lease_cells(found.leases).values(), strict=True)
            sums.show({column.label: cell.text if isinstance(cell, Amount) else str(cell) for column, cell in cells})
            leases.set_rows([_lease_row(queue, queue.leases) for queue in found.queues if queue.leases is not None])
        rows = sorted(groups.queue_rows(progress), key=lambda row: (-row.stands_ms, -row.lag.lag))
        queues.set_rows([_queue_row(row, progress.at_ms) for row in rows])

    await view.follow(seen, show)


def _figures(progress: GroupProgress, rate: float | None) -> dict[str, str]:
    waits, unknown = progress.longest_waiting_ms, progress.members is None
    return {
        "Messages behind": number(progress.lag),
        "Oldest of them": NOT_KNOWN if waits is None else span(waits),
        "Read / s": number(rate),
        "Last progress": ago(progress.moved_at_ms, progress.at_ms) if progress.moved_at_ms else NOT_KNOWN,
        "Members": number(progress.members),
        "Queues without a reader": NOT_KNOWN if unknown else number(len(progress.unread)),
    }


def _queue_row(row: QueueRow, now_ms: int) -> dict[str, Cell]:
    lag = row.lag
    reader: Cell = NOT_KNOWN if row.owner is None else row.owner
    if row.owner == "":
        reader = Mark("none" if lag.readable else "none can: write-only queue", "warn") if lag.lag else "none"
        if lag.leases is not None:
            reader = "one by one"
    place = {"topic": lag.topic, "group": lag.replica_group, "queue": str(lag.queue_id), "offset": str(lag.next_offset)}
    shown = "nothing committed" if lag.offset is None else number(lag.offset)
    return {
        "key": f"{lag.topic} {lag.replica_group} {lag.queue_id}",
        "topic": Link.to(lag.topic, "/topic", name=lag.topic),
        "queue": f"{lag.replica_group}/{lag.queue_id}",
        "lag": lag.lag,
        "age": Amount(NOT_KNOWN, -1) if not lag.lag or row.behind_ms is None else Amount(f"{span(row.behind_ms)} old", row.behind_ms),
        "offset": Link.to(shown, "/message", **place) if lag.lag and lag.readable else shown,
        "end": lag.max_offset,
        "moved": moved_cell(lag.moved_at_ms, now_ms),
        "owner": reader,
        "stands": Mark(f"for {span(row.stands_ms)}", "bad") if row.stands_ms else "",
    }


def _lease_row(queue: QueueLag, leases: QueueLeases) -> dict[str, Cell]:
    place = {"key": f"{queue.topic} {queue.replica_group} {queue.queue_id}", "queue": f"{queue.replica_group}/{queue.queue_id}"}
    return {**place, "topic": Link.to(queue.topic, "/topic", name=queue.topic), **_lease_cells(leases)}


def _lease_cells(leases: QueueLeases) -> dict[str, Cell]:
    oldest = Amount(f"{span(leases.oldest_ms)} ago", leases.oldest_ms) if leases.oldest_ms else Amount("–", -1)
    return {"flight": leases.in_flight, "again": leases.again, "oldest": oldest, "attempts": leases.attempts}


def _member_rows(found: ConsumerGroupDescription) -> list[dict[str, Cell]]:
    lags = {queue.key: queue.lag for queue in found.queues}
    return [
        {
            "key": member.client_id,
            "id": member.client_id,
            "address": member.address,
            "kind": member.kind,
            "queues": len(member.queues),
            "lag": sum(lags.get(queue, 0) for queue in member.queues),
            "joined": stored_at(member.joined_ms),
            "reads": ", ".join(f"{topic} ({expression})" for topic, expression in sorted(member.subscriptions.items())),
        }
        for member in found.members
    ]


async def move(view: View, name: str, topics: list[str]) -> None:
    """Ask where to, show what that would change in each queue, ask again, and do it."""
    if not topics:
        say("this consumer group has no positions", bad=True)
        return
    with Question(f"Move consumer group {name}", "Preview") as question:
        topic = ui.select(topics, value=topics[0], label="Topic").props("dense outlined").classes("field")
        targets = {FIRST: "the oldest stored message", LAST: "the end: skip what is stored", AT: "a time"}
        to = ui.radio(targets, value=FIRST).props("dense")
        at = text_field("Time", hint=TIME_HINT)
        at.bind_visibility_from(to, "value", value=AT)
    if not await question.answer():
        return
    wanted = str(topic.value)
    target: ResetTarget = "first" if to.value == FIRST else "last" if to.value == LAST else time_ms(str(at.value or "").strip())
    plan = await groups.plan_reset(view.admin, name, wanted, target)
    if not await _agreed(name, wanted, plan):
        return

    async def work() -> str:
        done = await groups.reset(view.admin, name, wanted, target)
        return f"{name} was moved in topic {wanted}: {done.text}"

    await act(view, work)


async def _agreed(name: str, topic: str, plan: ResetPlan) -> bool:
    with Question(f"Move {name} in topic {topic}?", dangerous="Move consumer group") as question:
        ui.label(f"{plan.text[0].upper()}{plan.text[1:]}.  Nothing was changed yet.").classes("dialog-text")
        table = BoundedTable(MOVES, key="key", empty="no queues", label="Moves", rows=10)
        table.set_rows(
            [
                {
                    "key": f"{each.replica_group} {each.queue_id}",
                    "queue": f"{each.replica_group}/{each.queue_id}",
                    "before": each.before if each.before is not None else "–",
                    "after": each.after,
                    "again": each.repeated,
                    "skipped": each.skipped,
                }
                for each in plan.moves
            ]
        )
    return bool(await question.answer())


async def settings(view: View, name: str) -> None:
    """Ask for the settings of the group, and change them."""
    replica_group = (await view.admin.describe_cluster()).replica_groups[0].name
    (now,) = await view.admin.group_settings(name, replica_group=replica_group)
    with Question(f"Settings of {name}", "Change settings") as question:
        times = number_field("Deliveries again before a message is a dead letter", now.retry_max_times, least=0, most=1000)
        enabled = ui.checkbox("The group may read", value=now.consume_enable)

    async def work() -> str:
        done = await view.admin.update_group(name, retry_max_times=given_whole(times), consume_enable=bool(enabled.value))
        may = "may read" if done.consume_enable else "may not read"
        return f"{name}: a message is a dead letter after {done.retry_max_times} deliveries; the group {may}"

    await act_when_answered(view, question, work)


async def delete(view: View, name: str) -> None:
    """Ask, and delete the group."""
    text = "Its positions and settings are deleted: when it comes back it starts again.\nIts dead letters stay.  It must have no members."
    if not await confirm(f"Delete consumer group {name}?", text, "Delete consumer group", dangerous=True, type_to_confirm=name):
        return

    async def work() -> str:
        await view.admin.delete_group(name)
        return f"consumer group {name} was deleted"

    if await act(view, work):
        ui.navigate.to("/groups")
