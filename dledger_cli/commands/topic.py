"""``dledger topic``: create, update, list, describe and delete topics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.commands import completion
from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, confirm, load_config, run
from dledger_cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig, GroupConfig
    from dledger_wire._pb import admin_pb2, broker_pb2

PERMISSIONS = {2: "write only", 4: "read only", 6: "read, write"}

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Topic.", autocompletion=completion.topics)]
QueuesOption = Annotated[int | None, typer.Option("--queues", metavar="N", min=1, max=1024, help="Read and write queues alike.")]
ReadQueuesOption = Annotated[int | None, typer.Option("--read-queues", metavar="N", min=1, max=1024)]
WriteQueuesOption = Annotated[int | None, typer.Option("--write-queues", metavar="N", min=1, max=1024)]
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
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="No error when it exists already.")] = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Create a topic."""
    cluster = load_config(config)
    spec = {
        "read_queues": read_queues or queues or 0,  # 0: as many as the broker's defaultTopicQueueNums
        "write_queues": write_queues or queues or 0,
        "perm": perm or 6,
        "if_not_exists": if_not_exists,
    }
    _show_change(_change(cluster, group, "CreateTopic", timeout, name=name, **spec), as_json=as_json)


def update(
    name: NameArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    group: GroupOption = "",
    force: Annotated[bool, typer.Option("--force", help="Also when messages would be left that nobody can read.")] = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Change the queues or the permission of a topic; what is not given stays.

    Queues are taken away in two steps: first --write-queues, then, when every group has read them, --read-queues.
    """
    cluster = load_config(config)
    if not (queues or read_queues or write_queues or perm):
        raise typer.BadParameter("give at least one of --queues, --read-queues, --write-queues, --perm")
    spec = {"read_queues": read_queues or queues or 0, "write_queues": write_queues or queues or 0, "perm": perm or 0, "force": force}
    _show_change(_change(cluster, group, "UpdateTopic", timeout, name=name, **spec), as_json=as_json)


def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    group: GroupOption = "",
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Delete a topic and its queues."""
    cluster = load_config(config)
    if dry_run:
        topic = _describe(cluster, name, timeout)
        note(f"would delete topic {name} of group {topic['group']} with {sum(q['messages'] for q in topic['queues'])} messages")
        return
    confirm(f"Delete topic {name} and all its messages?", yes)
    _change(cluster, group, "DeleteTopic", timeout, name=name)
    note(f"deleted topic {name}")


def list_topics(config: ConfigOption = None, timeout: TimeoutOption = 5.0, as_json: JsonOption = False) -> None:
    """List all topics."""
    cluster = load_config(config)
    topics = sorted(run(all_topics(cluster, timeout)), key=lambda topic: (topic["name"], topic["group"]))
    if as_json:
        print_json({"topics": topics})
        return
    rows = [(t["name"], t["group"], t["read_queues"], t["write_queues"], t["perm"]) for t in topics]
    print_table(("TOPIC", "REPLICA-GROUP", "READ-QUEUES", "WRITE-QUEUES", "PERM"), rows, right=("READ-QUEUES", "WRITE-QUEUES", "PERM"))


def describe(name: NameArgument, config: ConfigOption = None, timeout: TimeoutOption = 5.0, as_json: JsonOption = False) -> None:
    """Show one topic: its group, its permission, and the offsets of each queue."""
    cluster = load_config(config)
    topic = _describe(cluster, name, timeout)
    if as_json:
        print_json(topic)
        return
    print(f"topic {topic['name']}  group {topic['group']}  perm {topic['perm']} ({PERMISSIONS.get(topic['perm'], 'none')})")
    rows = [(q["queue_id"], q["min_offset"], q["max_offset"], q["messages"]) for q in topic["queues"]]
    print_table(("QUEUE", "MIN", "MAX", "MESSAGES"), rows, right=("QUEUE", "MIN", "MAX", "MESSAGES"))


def _change(cluster: ClusterConfig, group_name: str, method: str, timeout_s: float, **spec: Any) -> admin_pb2.TopicReply:
    from dledger_cli.calls import call_leader
    from dledger_wire._pb import admin_pb2
    from dledger_wire.rpc import methods

    changes = {"CreateTopic": methods.CREATE_TOPIC, "UpdateTopic": methods.UPDATE_TOPIC, "DeleteTopic": methods.DELETE_TOPIC}

    async def change() -> bytes:
        group = await _group_for(cluster, group_name, spec["name"], method, timeout_s)
        request = admin_pb2.TopicSpec(group=group.name, **spec).SerializeToString()
        again = admin_pb2.TopicSpec(group=group.name, **(spec | {"if_not_exists": True})).SerializeToString()
        return await call_leader(group, changes[method].path, request, timeout_s, again)

    reply: admin_pb2.TopicReply = admin_pb2.TopicReply.FromString(run(change()))
    return reply


async def _group_for(cluster: ClusterConfig, group_name: str, topic: str, method: str, timeout_s: float) -> GroupConfig:
    """A topic that exists is changed in the group that has it; a new one needs the group named when there are several."""
    from dledger_cli.calls import group_of

    if not group_name and len(cluster.groups) > 1 and method != "CreateTopic":
        for found in await all_topics(cluster, timeout_s):
            if found["name"] == topic:
                return group_of(cluster, found["group"])
    return group_of(cluster, group_name)


def _show_change(reply: admin_pb2.TopicReply, *, as_json: bool) -> None:
    if as_json:
        print_json(_topic_json(reply) | {"created": reply.created})
        return
    what = "created topic" if reply.created else "topic"
    note(
        f"{what} {reply.name} in group {reply.group}: {reply.read_queues} read queues, {reply.write_queues} write queues, perm {reply.perm}"
    )


def _topic_json(topic: admin_pb2.TopicReply) -> dict[str, Any]:
    return {key: getattr(topic, key) for key in ("name", "group", "read_queues", "write_queues", "perm")}


async def all_topics(cluster: ClusterConfig, timeout_s: float) -> list[dict[str, Any]]:
    from dledger_cli.calls import call_leader_or_any
    from dledger_wire._pb import admin_pb2
    from dledger_wire.rpc import methods

    replies = await asyncio.gather(*(call_leader_or_any(group, methods.LIST_TOPICS.path, b"", timeout_s) for group in cluster.groups))
    found: list[dict[str, Any]] = []
    for group, reply in zip(cluster.groups, replies, strict=True):
        found += [_topic_json(topic) | {"group": topic.group or group.name} for topic in admin_pb2.TopicList.FromString(reply).topics]
    return found


def _describe(cluster: ClusterConfig, name: str, timeout_s: float) -> dict[str, Any]:
    from dledger_cli.calls import call_leader, group_of
    from dledger_wire._pb import broker_pb2
    from dledger_wire.errors import TopicNotFoundError
    from dledger_wire.rpc import methods

    async def ask() -> tuple[dict[str, Any], bytes]:
        for topic in await all_topics(cluster, timeout_s):
            if topic["name"] == name:
                queues = range(max(topic["read_queues"], topic["write_queues"]))
                request = broker_pb2.OffsetsRequest(
                    queues=[broker_pb2.QueueRef(topic=name, queue_id=queue_id, timestamp_ms=-1) for queue_id in queues]
                )
                group = group_of(cluster, topic["group"])
                return topic, await call_leader(group, methods.QUEUE_OFFSETS.path, request.SerializeToString(), timeout_s)
        raise TopicNotFoundError(f"no topic {name!r} (dledger topic list shows all)")

    topic, reply = run(ask())
    return topic | {"queues": [_queue_json(queue) for queue in broker_pb2.OffsetsResponse.FromString(reply).queues]}


def _queue_json(queue: broker_pb2.QueueOffsets) -> dict[str, Any]:
    return {
        "queue_id": queue.queue_id,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "messages": queue.max_offset - queue.min_offset,
    }
