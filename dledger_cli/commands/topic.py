"""``dledger topic``: create, update, list, describe and delete topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.commands import completion
from dledger_cli.context import YesOption, ask, confirm
from dledger_cli.help_page import AskingCommand, command_group
from dledger_cli.output import (
    fields_of,
    json_wanted,
    note,
    note_unanswered,
    print_answer,
    print_json,
    print_line,
    print_table,
    report,
    unanswered_json,
)
from dledger_cli.watching import reading_command
from dledger_wire.names import MAX_TOPIC_QUEUES, group_of_topic
from dledger_wire.status import Perm

if TYPE_CHECKING:
    from dledger_client.admin.calls import Listed
    from dledger_client.admin.topics import ChangedTopic, QueueRange
    from dledger_client.aio import Admin
    from dledger_client.cluster.routes import TopicQueues

PERMISSIONS = {Perm.WRITE: "write only", Perm.READ: "read only", Perm.READ_WRITE: "read, write"}


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Topic.", autocompletion=completion.topics)]
QueuesOption = Annotated[
    int | None,
    typer.Option("--queues", metavar="N", min=1, max=MAX_TOPIC_QUEUES, help="Number of read and write queues, in all replica groups."),
]
ReadQueuesOption = Annotated[
    int | None, typer.Option("--read-queues", metavar="N", min=1, max=MAX_TOPIC_QUEUES, help="Queues that consumers read.")
]
WriteQueuesOption = Annotated[
    int | None, typer.Option("--write-queues", metavar="N", min=1, max=MAX_TOPIC_QUEUES, help="Queues that producers write.")
]
PermOption = Annotated[int | None, typer.Option("--perm", metavar="2,4,6", min=2, max=6, help="2 write, 4 read, 6 both.")]
GroupOption = Annotated[str, typer.Option("--replica-group", "-g", metavar="G", help="Only in this replica group.")]
CreateGroupsOption = Annotated[
    str, typer.Option("--replica-groups", metavar="G,...", help="Replica groups that hold the topic. Default: all.")
]
UpdateGroupsOption = Annotated[
    str, typer.Option("--replica-groups", metavar="G,...", help="Replica groups that hold the topic afterwards. Default: unchanged.")
]


def register(root: typer.Typer) -> None:
    app = command_group(root, "topic")
    app.command("create", cls=AskingCommand)(create)
    app.command("update", cls=AskingCommand)(update)
    reading_command(app, "list")(list_topics)
    reading_command(app, "describe")(describe)
    app.command("locate", cls=AskingCommand)(locate)
    app.command("delete", cls=AskingCommand)(delete)


def create(
    name: NameArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    group: GroupOption = "",
    groups: CreateGroupsOption = "",
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do not fail when the topic exists.")] = False,
    priorities: Annotated[
        bool, typer.Option("--priorities", help="Queue N of each replica group is for messages of priority N, the highest most urgent.")
    ] = False,
) -> None:
    """Create a topic.  Its queues are spread evenly over the replica groups.

    With fewer queues than replica groups, those with the fewest queues get one each.
    """
    from dledger_wire.names import check_new_topic

    check_new_topic(name)

    async def work(admin: Admin) -> ChangedTopic:
        return await admin.create_topic(
            name,
            queues,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=perm or int(Perm.READ_WRITE),
            replica_groups=_named(group, groups),
            if_not_exists=if_not_exists,
            priorities=priorities,
        )

    _show_change(ask(work))


def update(
    name: NameArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    group: GroupOption = "",
    groups: UpdateGroupsOption = "",
    force: Annotated[bool, typer.Option("--force", help="Allow a change that makes messages unreadable.")] = False,
) -> None:
    """Change queues, permission or replica groups of a topic.  Settings that are not given stay unchanged.

    Numbers count all replica groups together, or with --replica-group only that one.  Remove queues in two steps: first --write-queues,
    then, when every consumer group has read them, --read-queues.  To remove the topic from a replica group, stop its writes there
    (--replica-group G --perm 4), wait until every consumer group has read it, and leave it out of --replica-groups.
    """
    if not (queues or read_queues or write_queues or perm or groups):
        raise typer.BadParameter("expected at least one of --queues, --read-queues, --write-queues, --perm, --replica-groups")
    named = _named(group, groups)

    async def work(admin: Admin) -> ChangedTopic:
        return await admin.update_topic(
            name,
            read_queues=read_queues or queues,
            write_queues=write_queues or queues,
            perm=perm,
            replica_group=group,
            replica_groups=[] if group else named,
            force=force,
        )

    _show_change(ask(work))


def locate(name: NameArgument, key: Annotated[str, typer.Argument(metavar="KEY", help="The queue_key of a send.")]) -> None:
    """Show the queue where messages with a key are stored.  Other numbers of queues move keys."""
    queue = ask(lambda admin: admin.queue_of_key(name, key))
    found = {"topic": name, "key": key, "group": queue.replica_group, "queue_id": queue.queue_id}
    print_answer(found, ("TOPIC", "KEY", "REPLICA-GROUP", "QUEUE"), [tuple(found.values())], right=("QUEUE",))


def delete(
    name: NameArgument,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; only print what would be deleted.")] = False,
    group: GroupOption = "",
) -> None:
    """Delete a topic and its messages, in all replica groups."""
    if dry_run:
        parts, queues = _described(name)
        _show_deletion(name, group, parts, queues)
        return
    confirm(f"Delete topic {name} and all its messages?", yes)
    ask(lambda admin: admin.delete_topic(name, replica_group=group))
    where = f" in replica group {group}" if group else ""
    report({"name": name, "group": group or None, "deleted": True}, f"deleted topic {name}{where}")


def _show_deletion(name: str, group: str, parts: list[TopicQueues], queues: Listed[QueueRange]) -> None:
    from dledger_wire.errors import InvalidArgumentError

    names = [part.replica_group for part in parts if group in ("", part.replica_group)]
    if not names:
        there = ", ".join(part.replica_group for part in parts)
        raise InvalidArgumentError(f"topic {name} is not in replica group {group!r}, it is in {there}")
    messages = sum(queue.messages for queue in queues if queue.replica_group in names)
    answer = {"name": name, "group": ",".join(names), "messages": messages, "deleted": False} | unanswered_json(queues.unanswered)
    report(answer, f"would delete topic {name} of {_in_groups(names)} with {messages} messages")
    note_unanswered(queues.unanswered)


def list_topics(everything: Annotated[bool, typer.Option("--all", help="Include topics of retries and dead letters.")] = False) -> None:
    """List topics with their queues and stored messages.

    Topics of retries and dead letters are left out; dledger dlq list shows dead letters.  MESSAGES is - if it is unknown.
    """

    from dledger_client.admin.calls import Listed

    async def work(admin: Admin) -> tuple[Listed[TopicQueues], Mapping[str, Listed[QueueRange]]]:
        topics = await admin.list_topics(or_followers=True, partial=True)
        wanted = [part for part in topics if everything or not group_of_topic(part.topic)]
        held = await admin.offsets_of_topics({part.topic for part in wanted}, or_followers=True, partial=True)
        return Listed(wanted, topics.unanswered), held

    found, held = ask(work)
    topics: dict[str, list[TopicQueues]] = {}
    for part in found:
        topics.setdefault(part.topic, []).append(part)
    shown = [_topic_json(parts) | {"messages": _stored(parts, held[name])} for name, parts in topics.items()]
    rows = [(*(each[name] for name in ("name", "group", "read_queues", "write_queues", "perm", "messages")),) for each in shown]
    counts = ("READ-QUEUES", "WRITE-QUEUES", "PERM", "MESSAGES")
    answer = {"topics": shown} | unanswered_json(found.unanswered)
    print_answer(answer, ("TOPIC", "REPLICA-GROUP", *counts), rows, right=counts)
    note_unanswered(found.unanswered)


def _stored(parts: Sequence[TopicQueues], held: Listed[QueueRange]) -> int | None:
    """None where a replica group of the topic does not say."""
    return None if any(part.replica_group in held.unanswered for part in parts) else sum(queue.messages for queue in held)


def describe(name: NameArgument) -> None:
    """Show replica groups, permission and queues of a topic.  Lists the offsets of each queue."""
    parts, queues = _described(name)
    topic = _topic_json(parts)
    if json_wanted():
        names = ("queue_id", "min_offset", "max_offset", "messages", "readable")
        shown = [fields_of(queue, *names, group="replica_group") for queue in queues]
        print_json(topic | {"queues": shown} | unanswered_json(queues.unanswered))
        note_unanswered(queues.unanswered)
        return
    where = _in_groups([part.replica_group for part in parts])
    by_priority = "  queues by priority, the highest first" if topic["priorities"] else ""
    print_line(f"topic {name}  {where}  perm {topic['perm']} ({PERMISSIONS.get(topic['perm'], 'none')}){by_priority}")
    if len(parts) > 1:
        rows = [
            (
                *(part.replica_group, part.read_queues, part.write_queues, part.perm),
                _messages(queues, part.replica_group),
            )
            for part in parts
        ]
        rows.append(("TOTAL", topic["read_queues"], topic["write_queues"], topic["perm"], sum(queue.messages for queue in queues)))
        header = ("REPLICA-GROUP", "READ-QUEUES", "WRITE-QUEUES", "PERM", "MESSAGES")
        print_table(header, rows, right=header[1:])
        print()
    _show_queues(queues)
    note_unanswered(queues.unanswered)


def _show_queues(queues: Listed[QueueRange]) -> None:
    header = ("REPLICA-GROUP", "QUEUE", "MIN", "MAX", "MESSAGES")
    rows = [(queue.replica_group, queue.queue_id, queue.min_offset, queue.max_offset, queue.messages) for queue in queues]
    if all(queue.readable for queue in queues):
        print_table(header, rows, right=header[1:])
        return
    notes = ["" if queue.readable else "write-only: consumers do not read it" for queue in queues]
    print_table((*header, "NOTE"), [(*row, note) for row, note in zip(rows, notes, strict=True)], right=header[1:])


def _messages(queues: Listed[QueueRange], replica_group: str) -> int | None:
    """None where no source answers."""
    return None if replica_group in queues.unanswered else sum(queue.messages for queue in queues if queue.replica_group == replica_group)


def _in_groups(names: Sequence[str]) -> str:
    return f"replica group{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _described(name: str) -> tuple[list[TopicQueues], Listed[QueueRange]]:
    """The topic in every replica group that answers, and its queues there."""
    from dledger_wire.errors import TopicNotFoundError

    async def work(admin: Admin) -> tuple[list[TopicQueues], Listed[QueueRange]]:
        try:
            parts = await admin.describe_topic(name)
        except TopicNotFoundError:
            raise TopicNotFoundError(f"no topic {name!r} (dledger topic list shows all)") from None
        return parts, await admin.topic_offsets(name, partial=True)

    return ask(work)


def _named(group: str, groups: str) -> list[str]:
    """The replica groups that --replica-group or --replica-groups names."""
    if group and groups:
        raise typer.BadParameter("--replica-group and --replica-groups are mutually exclusive", param_hint="--replica-groups")
    return [name.strip() for name in (group or groups).split(",") if name.strip()]


def _show_change(topic: ChangedTopic) -> None:
    if json_wanted():
        print_json(_topic_json(topic.parts) | {"created": topic.created})
        return
    queues = f"{topic.read_queues} read queues, {topic.write_queues} write queues, perm {topic.perm}"
    where = _in_groups([part.replica_group for part in topic.parts])
    shares = f" ({', '.join(f'{part.replica_group} {part.write_queues}' for part in topic.parts)})" if len(topic.parts) > 1 else ""
    closed = [
        f"; {part.replica_group} has perm {part.perm}, --perm {topic.perm} opens it" for part in topic.parts if part.perm != topic.perm
    ]
    by_priority = ", queues by priority" if topic.priorities else ""
    note(f"{'created topic' if topic.created else 'topic'} {topic.topic} in {where}: {queues}{shares}{by_priority}{''.join(closed)}")
    _note_absent(topic)


def _note_absent(topic: ChangedTopic) -> None:
    """Say where the topic should be and was not seen.  Nothing creates it there by itself: another creation may be under way."""
    there = {part.replica_group for part in topic.parts}
    named = there.union(*(part.replica_groups for part in topic.parts))
    if named == there:
        return
    why = "it does not answer, or the creation is under way, or was broken off; if it was, this creates the rest"
    rest = f"dledger topic create {topic.topic} --replica-groups {','.join(sorted(named))} --if-not-exists"
    note(f"topic {topic.topic} was not seen in {', '.join(sorted(named - there))}: {why}: {rest}")


def _topic_json(parts: Sequence[TopicQueues]) -> dict[str, Any]:
    """One topic over its replica groups: totals, and what each of them has."""
    from dledger_client.admin.topics import joined

    topic, counts = joined(parts, created=False), ("read_queues", "write_queues", "perm")
    groups = [fields_of(part, *counts, group="replica_group") for part in topic.parts]
    return fields_of(topic, *counts, "priorities", name="topic", group="replica_group") | {"groups": groups}
