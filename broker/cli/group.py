"""``dledger group``: consumer groups - who there are, how far they are, and taking them elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli import group_settings
from broker.cli.context import ConfigOption, JsonOption, TimeoutOption, bootstrap_of, load_config, run
from broker.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from broker.cli.group_members import MemberRow
    from broker.config import ClusterConfig

NameArgument = Annotated[str, typer.Argument(metavar="NAME")]


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Consumer groups: positions and lag.", no_args_is_help=True, rich_markup_mode=None)
    app.command("list")(list_groups)
    app.command("describe", epilog="Example: dledger group describe audit")(describe)
    app.command("reset-offset", epilog="Examples: dledger group reset-offset audit --topic orders --to first")(reset_offset)
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
    print_table(("GROUP", "MEMBERS", "TOPICS"), [(name, count, ", ".join(read)) for name, read, count in found], right=("MEMBERS",))


def describe(name: NameArgument, config: ConfigOption = None, timeout: TimeoutOption = 5.0, as_json: JsonOption = False) -> None:
    """Show a group's members, where it has come to in each queue, and how far it lags."""
    members, rows = run(_described(load_config(config), name, timeout))
    lags = {(topic, group, queue_id): lag for topic, group, queue_id, _, _, lag in rows}
    owners = {queue: (member, epoch) for member in members if member.kind != "broadcast" for queue, epoch in member.queues.items()}
    if as_json:
        keys = ("topic", "group", "queue_id", "offset", "max_offset", "lag")
        queues: list[dict[str, Any]] = [dict(zip(keys, row, strict=True)) for row in rows]
        for queue in queues:
            owner = owners.get((queue["topic"], queue["group"], queue["queue_id"]))
            queue |= {"member": owner[0].client_id if owner else None, "epoch": owner[1] if owner else 0}
        print_json({"name": name, "members": [member.as_json(lags) for member in members], "queues": queues})
        return
    header = ("TOPIC", "REPLICA-GROUP", "QUEUE", "OFFSET", "MAX", "LAG", "MEMBER", "EPOCH")
    shown = [(*row, owners[row[:3]][0].client_id, owners[row[:3]][1] or "") if row[:3] in owners else (*row, "", "") for row in rows]
    print_table(header, shown, right=("QUEUE", "OFFSET", "MAX", "LAG", "EPOCH"))
    print()
    print_table(
        ("MEMBER", "ADDRESS", "KIND", "QUEUES", "LAG", "SUBSCRIPTIONS"), [each.as_row(lags) for each in members], right=("QUEUES", "LAG")
    )


def reset_offset(
    name: NameArgument,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Which topic's positions.")],
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="first, last, or a time in ms since 1970.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a group to the start or the end of a topic, or to a time."""
    if to not in ("first", "last") and not to.isdecimal():
        raise typer.BadParameter(f"{to!r}: expected first, last or milliseconds since 1970", param_hint="--to")
    moved = run(_reset(bootstrap_of(config), name, topic, to))
    if as_json:
        print_json({"name": name, "topic": topic, "queues": [{"queue_id": queue, "offset": offset} for queue, offset in moved]})
    else:
        note(f"group {name}: {topic} {', '.join(f'{queue}={offset}' for queue, offset in moved)}")


async def _positions(cluster: ClusterConfig, names: list[str], timeout_s: float) -> list[tuple[str, str, str, int, int]]:
    """(consumer group, topic, replica group, queue, offset) of everything committed."""
    from broker.cli.calls import call_leader
    from dledger_wire._pb import broker_pb2

    found = []
    request = broker_pb2.GroupOffsetsRequest(groups=names).SerializeToString()
    for group in cluster.groups:
        answer = await call_leader(group, "/dledger.v1.Broker/GroupOffsets", request, timeout_s)
        for positions in broker_pb2.GroupOffsetsResponse.FromString(answer).groups:
            found += [(positions.group, each.topic, group.name, each.queue_id, each.offset) for each in positions.offsets]
    return found


async def _listed(cluster: ClusterConfig, timeout_s: float) -> tuple[dict[str, list[MemberRow]], list[tuple[str, str, str, int, int]]]:
    from broker.cli.group_members import all_members

    return await all_members(cluster, timeout_s), await _positions(cluster, [], timeout_s)


async def _described(cluster: ClusterConfig, name: str, timeout_s: float) -> tuple[list[MemberRow], list[tuple[Any, ...]]]:
    """The members, and (topic, replica group, queue, offset, end, lag) of every queue the group knows."""
    from broker.cli.group_members import members_of
    from dledger_client.aio import PullConsumer
    from dledger_wire.errors import InvalidArgumentError

    positions = await _positions(cluster, [name], timeout_s)
    members = await members_of(cluster, name, timeout_s)
    if not positions and not members:
        raise InvalidArgumentError(f"no consumer group {name!r} has members or has committed anything (dledger group list shows all)")
    rows = []
    async with PullConsumer(cluster.bootstrap(), timeout_ms=int(timeout_s * 1000)) as consumer:
        held = {topic: await consumer.offsets(topic) for topic in sorted({topic for _, topic, _, _, _ in positions})}
    for _, topic, group, queue_id, offset in positions:
        queue = held[topic].get((group, queue_id))
        most = queue.max_offset if queue is not None else offset
        rows.append((topic, group, queue_id, offset, most, max(0, most - offset)))
    return members, rows


async def _reset(bootstrap: str, name: str, topic: str, to: str) -> list[tuple[int, int]]:
    from dledger_client.aio import PullConsumer

    async with PullConsumer(bootstrap, name) as consumer:
        held = await consumer.offsets(topic, int(to) if to.isdecimal() else None)
        moved = []
        for (group, queue_id), offsets in sorted(held.items()):
            target = {"first": offsets.min_offset, "last": offsets.max_offset}.get(to, offsets.at_time)
            await consumer.commit({(topic, queue_id): target}, group_name=group, reset=True)
            moved.append((queue_id, target))
    return moved
