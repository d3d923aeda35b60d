"""``dledger topic``: create, update, list, describe and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.commands import completion
from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, ask, confirm, replica_group_of
from dledger_cli.output import note, print_json, print_table
from dledger_wire.status import Perm

if TYPE_CHECKING:
    from dledger_client.admin.topics import ChangedTopic, QueueRange
    from dledger_client.aio import Admin
    from dledger_client.cluster.routes import TopicQueues

PERMISSIONS = {Perm.WRITE: "write only", Perm.READ: "read only", Perm.READ_WRITE: "read, write"}

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Topic.", autocompletion=completion.topics)]
QueuesOption = Annotated[int | None, typer.Option("--queues", metavar="N", min=1, max=1024, help="Number of read and write queues.")]
ReadQueuesOption = Annotated[int | None, typer.Option("--read-queues", metavar="N", min=1, max=1024, help="Queues that consumers read.")]
WriteQueuesOption = Annotated[int | None, typer.Option("--write-queues", metavar="N", min=1, max=1024, help="Queues that producers write.")]
PermOption = Annotated[int | None, typer.Option("--perm", metavar="2,4,6", min=2, max=6, help="2 write, 4 read, 6 both.")]
GroupOption = Annotated[str, typer.Option("--group", "-g", metavar="G", help="Replica group that holds the topic.")]


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Create, change, list, describe and delete topics.", no_args_is_help=True, rich_markup_mode=None)
    app.command("create", epilog="Example: dledger topic create orders --queues 4")(create)
    app.command("update", epilog="Example: dledger topic update orders --perm 4")(update)
    app.command("list", epilog="Example: dledger topic list --json")(list_topics)
    app.command("describe", epilog="Example: dledger topic describe orders")(describe)
    app.command("delete", epilog="Example: dledger topic delete orders --yes")(delete)
    root.add_typer(app, name="topic")


def create(
    name: NameArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    group: GroupOption = "",
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do not fail when the topic exists.")] = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Create a topic."""

    async def work(admin: Admin) -> ChangedTopic:
        return await admin.create_topic(
            name,
            queues or 0,
            read_queues=read_queues or 0,
            write_queues=write_queues or 0,
            perm=perm or int(Perm.READ_WRITE),
            replica_group=await replica_group_of(admin, group),
            if_not_exists=if_not_exists,
        )

    _show_change(ask(config, timeout, work), as_json=as_json)


def update(
    name: NameArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    group: GroupOption = "",
    force: Annotated[bool, typer.Option("--force", help="Also when messages become unreadable.")] = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Change the queues or the permission of a topic; what is not given stays.

    Remove queues in two steps: first --write-queues, then, when every consumer group has read them, --read-queues.
    """
    if not (queues or read_queues or write_queues or perm):
        raise typer.BadParameter("give at least one of --queues, --read-queues, --write-queues, --perm")

    async def work(admin: Admin) -> ChangedTopic:
        return await admin.update_topic(
            name,
            read_queues=read_queues or queues or 0,
            write_queues=write_queues or queues or 0,
            perm=perm or 0,
            replica_group=await _replica_group_with(admin, group, name),
            force=force,
        )

    _show_change(ask(config, timeout, work), as_json=as_json)


def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; only print what would be deleted.")] = False,
    group: GroupOption = "",
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Delete a topic and its messages."""
    if dry_run:
        topic, queues = _described(config, timeout, name)
        note(f"would delete topic {name} of group {topic.replica_group} with {sum(queue.messages for queue in queues)} messages")
        return
    confirm(f"Delete topic {name} and all its messages?", yes)

    async def work(admin: Admin) -> None:
        await admin.delete_topic(name, replica_group=await _replica_group_with(admin, group, name))

    ask(config, timeout, work)
    note(f"deleted topic {name}")


def list_topics(config: ConfigOption = None, timeout: TimeoutOption = 5.0, as_json: JsonOption = False) -> None:
    """List all topics."""
    topics = ask(config, timeout, lambda admin: admin.list_topics(or_followers=True))
    if as_json:
        print_json({"topics": [_topic_json(topic) for topic in topics]})
        return
    rows = [(topic.topic, topic.replica_group, topic.read_queues, topic.write_queues, topic.perm) for topic in topics]
    print_table(("TOPIC", "REPLICA-GROUP", "READ-QUEUES", "WRITE-QUEUES", "PERM"), rows, right=("READ-QUEUES", "WRITE-QUEUES", "PERM"))


def describe(name: NameArgument, config: ConfigOption = None, timeout: TimeoutOption = 5.0, as_json: JsonOption = False) -> None:
    """Show the replica group, the permission and the offsets of each queue of a topic."""
    topic, queues = _described(config, timeout, name)
    if as_json:
        print_json(_topic_json(topic) | {"queues": [_queue_json(queue) for queue in queues]})
        return
    print(f"topic {topic.topic}  group {topic.replica_group}  perm {topic.perm} ({PERMISSIONS.get(topic.perm, 'none')})")
    rows = [(queue.queue_id, queue.min_offset, queue.max_offset, queue.messages) for queue in queues]
    print_table(("QUEUE", "MIN", "MAX", "MESSAGES"), rows, right=("QUEUE", "MIN", "MAX", "MESSAGES"))


def _described(config: str | None, timeout_s: float, name: str) -> tuple[TopicQueues, list[QueueRange]]:
    """The topic in the first replica group that stores it, and its queues there."""
    from dledger_wire.errors import TopicNotFoundError

    async def work(admin: Admin) -> tuple[TopicQueues, list[QueueRange]]:
        try:
            topic = (await admin.describe_topic(name))[0]
        except TopicNotFoundError:
            raise TopicNotFoundError(f"no topic {name!r} (dledger topic list shows all)") from None
        return topic, [queue for queue in await admin.topic_offsets(name) if queue.replica_group == topic.replica_group]

    return ask(config, timeout_s, work)


async def _replica_group_with(admin: Admin, option: str, topic: str) -> str:
    """The replica group that --group names; without it the first one that stores the topic."""
    if option:
        return await replica_group_of(admin, option)
    return (await admin.describe_topic(topic))[0].replica_group


def _show_change(topic: ChangedTopic, *, as_json: bool) -> None:
    if as_json:
        print_json(_topic_json(topic) | {"created": topic.created})
        return
    queues = f"{topic.read_queues} read queues, {topic.write_queues} write queues, perm {topic.perm}"
    note(f"{'created topic' if topic.created else 'topic'} {topic.topic} in group {topic.replica_group}: {queues}")


def _topic_json(topic: TopicQueues) -> dict[str, Any]:
    return {
        "name": topic.topic,
        "group": topic.replica_group,
        "read_queues": topic.read_queues,
        "write_queues": topic.write_queues,
        "perm": topic.perm,
    }


def _queue_json(queue: QueueRange) -> dict[str, Any]:
    return {
        "queue_id": queue.queue_id,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "messages": queue.messages,
    }
