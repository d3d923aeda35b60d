"""``dledger group``: consumer groups - their members, positions and lag; resetting and deleting them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.commands import completion, group_settings
from dledger_cli.context import YesOption, ask, confirm, time_ms
from dledger_cli.help_page import AskingCommand, command_group
from dledger_cli.output import fields_of, json_wanted, note, note_unanswered, print_answer, print_json, print_table, report, unanswered_json
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from dledger_client.admin.calls import Listed
    from dledger_client.admin.consumer_groups import (
        ConsumerGroupDescription,
        OffsetReset,
        QueueLag,
        ResetTarget,
    )
    from dledger_client.admin.group_answers import GroupMember, QueueId, QueueLeases
    from dledger_client.admin.group_progress import GroupProgress
    from dledger_client.aio import Admin


WAITING_QUEUES = 256  # those with the largest lag, whose oldest unread message is looked up
SHOWN_CALL_MS = 1000

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Consumer group.", autocompletion=completion.consumer_groups)]


def register(root: typer.Typer) -> None:
    app = command_group(root, "group")
    reading_command(app, "list")(list_groups)
    reading_command(app, "describe")(describe)
    app.command("reset-offset", cls=AskingCommand)(reset_offset)
    app.command("delete", cls=AskingCommand)(delete)
    group_settings.register(app)


def list_groups() -> None:
    """List consumer groups with members, lag and topics.

    LAG counts the messages after a group's offsets. WAITING is the age of the oldest of them; - if all are read, or if it is unknown. A
    group is stuck if a queue with messages and a member has not moved for 5 minutes. Consumers that acknowledge messages one by one are
    no members: STATE says how many messages they have in flight.
    """

    async def work(admin: Admin) -> tuple[Listed[ConsumerGroupDescription], list[GroupProgress]]:
        groups = await admin.describe_groups(partial=True, or_followers=True)
        return groups, await admin.group_progress(groups)

    found, groups = ask(work)
    if groups or json_wanted() or not found.unanswered:  # a table without rows would say that there are no groups
        answer = {"groups": [_group_json(each) for each in groups]} | unanswered_json(found.unanswered)
        header = ("CONSUMER-GROUP", "MEMBERS", "LAG", "WAITING", "STATE", "TOPICS")
        print_answer(answer, header, [_group_row(each) for each in groups], right=("MEMBERS", "LAG", "WAITING"))
    note_unanswered(found.unanswered, found.read_at)


def _group_row(group: GroupProgress) -> tuple[Any, ...]:
    waiting = _shown(group.longest_waiting_ms)
    return group.name, group.members, group.lag, waiting, group.state().text, ", ".join(group.group.topics)


def _group_json(group: GroupProgress) -> dict[str, Any]:
    counts = fields_of(group, "name", "members", "lag", waiting_ms="longest_waiting_ms")
    return counts | {"topics": list(group.group.topics), "state": group.state().text, "leases": _leases_json(group.group.leases)}


def _shown(waits_ms: int | None) -> str:
    from broker.config.units import format_duration_ms

    return "" if waits_ms is None else format_duration_ms(waits_ms)


def describe(name: NameArgument) -> None:
    """Show members, offsets and lag of a group.

    Lists every readable queue of each topic that the group subscribes to or has offsets in.  Where it has committed nothing, OFFSET is -
    and LAG counts all messages of the queue.  WAITING is the age of the oldest unread message; - if it is unknown, or if all are read.
    Queues that are only written to (topic update --force) are included. CALL is the duration of the oldest listener call of a member,
    from one second on: its queue waits for it, also after a reset.

    Of messages that are acknowledged one by one, LAG counts those after the oldest that is not done. IN-FLIGHT are leased to a consumer,
    AGAIN are free to be delivered again, OLDEST is the time since the first delivery of the first of both, and ATTEMPTS the deliveries of
    the one that was delivered most often.
    """

    async def work(admin: Admin) -> GroupProgress:
        described = await _known(admin, name, "dledger group list shows all", or_followers=True)
        (progress,) = await admin.group_progress([described], queues=WAITING_QUEUES)
        return progress

    progress = ask(work)
    found = progress.group
    waiting = {queue: waits_ms for queue in progress.stored_ms if (waits_ms := progress.waiting_ms(queue)) is not None}
    if json_wanted():
        print_json(_description_json(found, waiting))
    else:
        _show_description(found, waiting)
    note_unanswered(found.unanswered, found.read_at)


def reset_offset(
    name: NameArgument,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Topic to reset.")],
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="first, last, or a time: ms since 1970, or ISO in UTC.")] = "",
    queue: Annotated[int, typer.Option("--queue", metavar="Q", min=-1, help="With --offset: reset only this queue.")] = -1,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=-1, help="With --queue: the next message to read.")] = -1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; only show the move in each queue.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Create the group at this offset if it does not exist.")] = False,
    groups: Annotated[str, typer.Option("--replica-groups", metavar="G,...", help="Only in these replica groups. Default: all.")] = "",
) -> None:
    """Move a group to the start, the end, a time or an offset.

    To skip a message that blocks a queue of orderly consumers, move the group to the offset after it.
    """
    from dledger_wire.errors import NotLeaderError, UnreachableError
    from dledger_wire.names import check_group, check_topic

    check_group(name)
    check_topic(topic)
    named = [group for group in groups.split(",") if group]
    target = _reset_target(to, queue, offset)

    async def work(admin: Admin) -> list[OffsetReset]:
        if not new:
            # It may be known only where nothing answers; the replica groups that are named are reset nevertheless.
            with contextlib.suppress(*((NotLeaderError, UnreachableError) if named else ())):
                await _known(admin, name, "--new sets where a new one begins")
        return await admin.reset_offsets(name, topic, target, dry_run=dry_run, create=new, replica_groups=named)

    moves = ask(work)
    if json_wanted():
        rows = [fields_of(move, "queue_id", group="replica_group", **{"from": "before"}, offset="after") for move in moves]
        print_json({"name": name, "topic": topic, "dry_run": dry_run, "queues": rows})
        return
    print_table(
        ("REPLICA-GROUP", "QUEUE", "FROM", "TO", "COME-AGAIN", "SKIPPED"),
        [(move.replica_group, move.queue_id, move.before, move.after, move.repeated, move.skipped) for move in moves],
        right=("QUEUE", "FROM", "TO", "COME-AGAIN", "SKIPPED"),
    )
    note(
        f"nothing was changed (--dry-run): consumer group {name}, topic {topic}"
        if dry_run
        else f"consumer group {name} was reset in topic {topic}"
    )


def _reset_target(to: str, queue: int, offset: int) -> ResetTarget:
    if bool(to) == (offset >= 0) or (queue >= 0) != (offset >= 0):
        raise typer.BadParameter("expected --to, or --queue with --offset", param_hint="--to")
    if offset >= 0:
        return {queue: offset}
    return "first" if to == "first" else "last" if to == "last" else time_ms(to, "--to")


def delete(name: NameArgument, yes: YesOption = False) -> None:
    """Delete a group without members: its offsets and settings.  Its dead letters stay; dledger topic delete removes them."""
    confirm(f"Delete group {name} and its positions?", yes)
    ask(lambda admin: admin.delete_group(name))
    report({"name": name, "deleted": True}, f"deleted group {name}")


async def _known(admin: Admin, name: str, hint: str, *, or_followers: bool = False) -> ConsumerGroupDescription:
    """The group's description.  InvalidArgumentError, with ``hint``, when it has neither members nor positions."""
    from dledger_wire.errors import InvalidArgumentError

    try:
        return await admin.describe_group(name, partial=True, or_followers=or_followers)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error.message} ({hint})") from None


def _show_description(found: ConsumerGroupDescription, waiting: dict[QueueId, int]) -> None:
    owners = found.owners()
    rows: list[tuple[Any, ...]] = []
    for row in found.queues:
        owner, epoch = owners.get(row.key, (None, 0))
        reader = owner.client_id if owner else "" if row.readable else "none can: write-only queue"
        reader = reader or ("one by one" if row.leases else "")
        rows.append((*row.key, row.offset, row.max_offset, row.lag, _shown(waiting.get(row.key)), reader, epoch or ""))
    rows.append(("TOTAL", "", "", "", "", found.lag, _shown(max(waiting.values(), default=None)), "", ""))
    header = ("TOPIC", "REPLICA-GROUP", "QUEUE", "OFFSET", "MAX", "LAG", "WAITING", "MEMBER", "EPOCH")
    print_table(header, rows, right=("QUEUE", "OFFSET", "MAX", "LAG", "WAITING", "EPOCH"))
    leased: list[tuple[Any, ...]] = [(*row.key, *_leases_row(row.leases)) for row in found.queues if row.leases is not None]
    if leased:
        print()
        columns = ("IN-FLIGHT", "AGAIN", "OLDEST", "ATTEMPTS")
        leased.append(("TOTAL", "", "", *_leases_row(found.leases)))
        print_table(("TOPIC", "REPLICA-GROUP", "QUEUE", *columns), leased, right=("QUEUE", *columns))
    print()
    lags = {row.key: row.lag for row in found.queues}
    calls = [_shown(each.oldest_call_ms if each.oldest_call_ms >= SHOWN_CALL_MS else None) for each in found.members]
    members = [_member_row(each, lags, call) for each, call in zip(found.members, calls, strict=True)]
    print_table(("MEMBER", "ADDRESS", "KIND", "QUEUES", "LAG", "CALL", "SUBSCRIPTIONS"), members, right=("QUEUES", "LAG", "CALL"))


def _leases_row(leases: QueueLeases | None) -> tuple[Any, ...]:
    return () if leases is None else (leases.in_flight, leases.again, _shown(leases.oldest_ms or None), leases.attempts)


def _leases_json(leases: QueueLeases | None) -> dict[str, Any] | None:
    return None if leases is None else fields_of(leases, "in_flight", "again", "oldest_ms", "attempts")


def _member_row(member: GroupMember, lags: dict[QueueId, int], call: str) -> tuple[Any, ...]:
    subscriptions = ", ".join(f"{topic} ({expression})" for topic, expression in sorted(member.subscriptions.items()))
    lag = sum(lags.get(queue, 0) for queue in member.queues)
    return member.client_id, member.address, member.kind, len(member.queues), lag, call, subscriptions


def _description_json(found: ConsumerGroupDescription, waiting: dict[QueueId, int]) -> dict[str, Any]:
    owners, lags = found.owners(), {row.key: row.lag for row in found.queues}
    queues = []
    for row in found.queues:
        owner, epoch = owners.get(row.key, (None, 0))
        row_json = _queue_json(row) | {"waiting_ms": waiting.get(row.key)}
        queues.append(row_json | {"member": owner.client_id if owner else None, "epoch": epoch})
    members = [_member_json(each, lags) for each in found.members]
    answer = {"name": found.name, "lag": found.lag, "members": members, "queues": queues, "leases": _leases_json(found.leases)}
    return answer | unanswered_json(found.unanswered)


def _queue_json(row: QueueLag) -> dict[str, Any]:
    found = fields_of(row, "topic", "queue_id", "offset", "min_offset", "max_offset", "lag", "readable", group="replica_group")
    return found | {"leases": _leases_json(row.leases)}


def _member_json(member: GroupMember, lags: dict[QueueId, int]) -> dict[str, Any]:
    queues = [
        {"topic": topic, "group": group, "queue_id": queue_id, "epoch": epoch, "lag": lags.get((topic, group, queue_id))}
        for (topic, group, queue_id), epoch in sorted(member.queues.items())
    ]
    names = ("client_id", "address", "kind", "strategy", "subscriptions", "oldest_call_ms")
    return fields_of(member, *names, joined_at="joined_ms") | {"queues": queues}
