"""``dledger group``: consumer groups - who there are, how far they are, and taking them elsewhere."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.commands import completion, group_settings
from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, confirm, load_config, run, time_ms
from dledger_cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_cli.commands.group_members import MemberRow

RESET_EXAMPLES = (
    "Examples: dledger group reset-offset audit --topic orders --to first --dry-run | "
    "dledger group reset-offset audit --topic orders --to 2026-01-31T12:00"
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion.consumer_groups)]


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Consumer groups: positions and lag.", no_args_is_help=True, rich_markup_mode=None)
    app.command("list")(list_groups)
    app.command("describe", epilog="Example: dledger group describe audit")(describe)
    app.command("reset-offset", epilog=RESET_EXAMPLES)(reset_offset)
    app.command("delete", epilog="Example: dledger group delete audit --yes")(delete)
    group_settings.register(app)
    root.add_typer(app, name="group")


def list_groups(config: ConfigOption = None, timeout: TimeoutOption = 5.0, as_json: JsonOption = False) -> None:
    """List all consumer groups with the topics they read and how many members they have now."""
    members, rows = run(_listed(load_config(config), timeout))
    topics: dict[str, set[str]] = {name: {topic for each in found for topic in each.subscriptions} for name, found in members.items()}
    for name, topic, _, _, _ in rows:
        topics.setdefault(name, set()).add(topic)
    found = [(name, sorted(read), len(members.get(name, ()))) for name, read in sorted(topics.items())]
    if as_json:
        print_json({"groups": [{"name": name, "topics": read, "members": count} for name, read, count in found]})
        return
    print_table(
        ("CONSUMER-GROUP", "MEMBERS", "TOPICS"), [(name, count, ", ".join(read)) for name, read, count in found], right=("MEMBERS",)
    )


def describe(name: NameArgument, config: ConfigOption = None, timeout: TimeoutOption = 5.0, as_json: JsonOption = False) -> None:
    """Show a group's members, where it has come to in each queue, and how far it lags.

    Every readable queue of every topic is shown that the group has committed in or subscribes to.  Where nothing is committed, OFFSET is
    - and LAG all that the queue holds.
    """
    found = run(_described(load_config(config), name, timeout))
    lags = {row.queue: row.lag for row in found.rows}
    owners = {queue: (member, epoch) for member in found.members if member.kind != "broadcast" for queue, epoch in member.queues.items()}
    total = sum(row.lag for row in found.rows)
    if as_json:
        queues: list[dict[str, Any]] = []
        for row in found.rows:
            owner = owners.get(row.queue)
            queues.append(row.as_json() | {"member": owner[0].client_id if owner else None, "epoch": owner[1] if owner else 0})
        print_json({"name": name, "lag": total, "members": [member.as_json(lags) for member in found.members], "queues": queues})
        return
    shown: list[tuple[Any, ...]] = []
    for row in found.rows:
        member, epoch = owners.get(row.queue, (None, 0))
        shown.append((*row.queue, row.offset, row.max_offset, row.lag, member.client_id if member else "", epoch or ""))
    shown.append(("TOTAL", "", "", "", "", total, "", ""))
    header = ("TOPIC", "REPLICA-GROUP", "QUEUE", "OFFSET", "MAX", "LAG", "MEMBER", "EPOCH")
    print_table(header, shown, right=("QUEUE", "OFFSET", "MAX", "LAG", "EPOCH"))
    print()
    print_table(
        ("MEMBER", "ADDRESS", "KIND", "QUEUES", "LAG", "SUBSCRIPTIONS"),
        [each.as_row(lags) for each in found.members],
        right=("QUEUES", "LAG"),
    )


def reset_offset(
    name: NameArgument,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Which topic's positions.")],
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="first, last, or a time: ms since 1970, or ISO in UTC.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say where each queue would be taken, and how many messages come again.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Also for a group that nobody knows yet: where it is to begin.")] = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Take a group to the start or the end of a topic, or to a time."""
    from dledger_wire.names import check_group, check_topic

    check_group(name)
    check_topic(topic)
    at_ms = None if to in ("first", "last") else time_ms(to, "--to")
    moves = run(_reset(load_config(config), name, topic, to, at_ms, timeout, dry_run=dry_run, new=new))
    if as_json:
        rows = [{"group": move.group, "queue_id": move.queue_id, "from": move.before, "offset": move.after} for move in moves]
        print_json({"name": name, "topic": topic, "dry_run": dry_run, "queues": rows})
        return
    print_table(
        ("REPLICA-GROUP", "QUEUE", "FROM", "TO", "COME-AGAIN", "SKIPPED"),
        [(move.group, move.queue_id, move.before, move.after, max(0, -move.distance), max(0, move.distance)) for move in moves],
        right=("QUEUE", "FROM", "TO", "COME-AGAIN", "SKIPPED"),
    )
    note(f"nothing was changed (--dry-run): group {name}, topic {topic}" if dry_run else f"group {name} was taken there in topic {topic}")


def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
) -> None:
    """Forget a group that has no members: its positions and its settings.  Its dead letters stay: dledger topic delete."""
    from dledger_cli.commands.group_members import members_of
    from dledger_wire.errors import InvalidArgumentError

    cluster = load_config(config)
    members = run(members_of(cluster, name, timeout))
    if members:
        raise InvalidArgumentError(f"group {name} has members: {', '.join(each.client_id for each in members)}; stop them first")
    confirm(f"Delete group {name} and its positions?", yes)
    run(_delete(cluster, name, timeout))
    note(f"deleted group {name}")


@dataclass(frozen=True, slots=True)
class _QueueRow:
    """How far a consumer group is in one queue; ``offset`` None: it has committed nothing there."""

    queue: tuple[str, str, int]  # topic, replica group, queue
    offset: int | None
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        """Messages there that the group has not passed; expired ones it cannot read any more."""
        return max(0, self.max_offset - max(self.offset or 0, self.min_offset))

    def as_json(self) -> dict[str, Any]:
        topic, group, queue_id = self.queue
        place = {"topic": topic, "group": group, "queue_id": queue_id}
        return place | {"offset": self.offset, "min_offset": self.min_offset, "max_offset": self.max_offset, "lag": self.lag}


@dataclass(frozen=True, slots=True)
class _Described:
    members: list[MemberRow]
    rows: list[_QueueRow]


@dataclass(frozen=True, slots=True)
class _Move:
    """One queue of a reset; ``before`` None: the group had no position there."""

    group: str
    queue_id: int
    before: int | None
    after: int

    @property
    def distance(self) -> int:
        return 0 if self.before is None else self.after - self.before


async def _listed(cluster: ClusterConfig, timeout_s: float) -> tuple[dict[str, list[MemberRow]], list[tuple[str, str, str, int, int]]]:
    from dledger_cli.commands.group_members import all_members, positions_of

    return await all_members(cluster, timeout_s), await positions_of(cluster, [], timeout_s)


async def _described(cluster: ClusterConfig, name: str, timeout_s: float) -> _Described:
    """The members of a group, and every queue it reads or has read."""
    from dledger_cli.commands.group_members import check_known, members_of, positions_of
    from dledger_client.aio import PullConsumer
    from dledger_wire.errors import TopicNotFoundError

    positions = await positions_of(cluster, [name], timeout_s)
    members = await members_of(cluster, name, timeout_s)
    if not positions:
        await check_known(cluster, name, timeout_s, "dledger group list shows all")
    committed = {(topic, group, queue_id): offset for _, topic, group, queue_id, offset in positions}
    topics = {topic for topic, _, _ in committed} | {topic for member in members for topic in member.subscriptions}
    rows: dict[tuple[str, str, int], _QueueRow] = {}
    async with PullConsumer(cluster.bootstrap(), timeout_ms=int(timeout_s * 1000)) as consumer:
        for topic in topics:
            with contextlib.suppress(TopicNotFoundError):
                for (group, queue_id), held in (await consumer.offsets(topic)).items():
                    queue = (topic, group, queue_id)
                    rows[queue] = _QueueRow(queue, committed.get(queue), held.min_offset, held.max_offset)
    for queue, offset in committed.items():  # also of queues that were taken away
        rows.setdefault(queue, _QueueRow(queue, offset, offset, offset))
    return _Described(members, [rows[queue] for queue in sorted(rows)])


async def _reset(
    cluster: ClusterConfig, name: str, topic: str, to: str, at_ms: int | None, timeout_s: float, *, dry_run: bool, new: bool
) -> list[_Move]:
    from dledger_cli.commands.group_members import check_known, positions_of
    from dledger_client.aio import PullConsumer

    if not new:
        await check_known(cluster, name, timeout_s, "--new sets where a new one begins")
    positions = await positions_of(cluster, [name], timeout_s)
    before = {(group, queue_id): offset for _, its_topic, group, queue_id, offset in positions if its_topic == topic}
    moves = []
    async with PullConsumer(cluster.bootstrap(), name, timeout_ms=int(timeout_s * 1000)) as consumer:
        for (group, queue_id), offsets in sorted((await consumer.offsets(topic, at_ms)).items()):
            target = {"first": offsets.min_offset, "last": offsets.max_offset}.get(to, offsets.at_time)
            if not dry_run:
                await consumer.commit({(topic, queue_id): target}, replica_group=group, reset=True)
            moves.append(_Move(group, queue_id, before.get((group, queue_id)), target))
    return moves


async def _delete(cluster: ClusterConfig, name: str, timeout_s: float) -> None:
    """Delete the group wherever it is known; what a replica group says that does not know it counts when no other does."""
    from dledger_cli.calls import call_leader
    from dledger_wire._pb import retry_pb2
    from dledger_wire.errors import InvalidArgumentError
    from dledger_wire.rpc import methods

    request = retry_pb2.GroupSettings(name=name).SerializeToString()
    unknown: list[InvalidArgumentError] = []
    for group in cluster.groups:
        try:
            await call_leader(group, methods.DELETE_GROUP.path, request, timeout_s)
        except InvalidArgumentError as error:
            unknown.append(error)
    if len(unknown) == len(cluster.groups):
        raise unknown[0]
