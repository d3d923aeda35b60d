"""The topics of an import: made with the queues that the old broker has, checked before anything is sent, and closed at the end.

Owns what is refused.  A queue that holds messages already is not mixed with an old one: offsets would not correspond, order would be lost.
"""

from __future__ import annotations

from dledger_client.aio import Admin
from dledger_client.cluster.routes import TopicQueues
from dledger_offline.rocketmq.folder import SourceTopic, StoreFolder
from dledger_offline.rocketmq.progress import Progress, QueueProgress
from dledger_offline.rocketmq.survey import Survey
from dledger_wire.errors import InvalidArgumentError, MessageTooLargeError, TopicNotFoundError
from dledger_wire.names import DLQ_PREFIX, group_of_topic
from dledger_wire.status import Perm


def needed_topics(folder: StoreFolder, found: Survey) -> dict[str, int]:
    """How many queues each topic needs.  Empty topics of consumer groups are left to the cluster, which makes them when they are needed."""
    used = {topic for topic, _ in found.queues} | found.delayed_topics
    highest = {topic: queue_id for topic, queue_id in sorted(found.queues)}
    return {
        name: max(topic.read_queues, topic.write_queues, highest.get(name, 0) + 1)
        for name, topic in sorted(folder.topics.items())
        if name in used or not group_of_topic(name)
    }


async def open_topics(admin: Admin, folder: StoreFolder, found: Survey, progress: Progress) -> None:
    """Create what is missing, once everything that exists was looked at.  InvalidArgumentError for one that cannot take the messages."""
    needed = needed_topics(folder, found)
    parts = {name: await _parts(admin, name) for name in needed}
    group = progress.replica_group
    for name, queues in needed.items():
        if group in parts[name]:
            _check_part(parts[name][group], queues, progress)
    known = {topic for topic, _ in progress.queues}
    held = await admin.offsets_of_topics([name for name in needed if group in parts[name] and name not in known])
    for name, ranges in held.items():
        for queue in ranges:
            if queue.replica_group == group and queue.max_offset:
                text = f"topic {name} has messages already: {queue.max_offset} in queue {queue.queue_id} of {group}"
                raise InvalidArgumentError(f"{text}; expected an empty topic, or none: dledger topic delete {name}", topic=name)
    for name, queues in needed.items():
        if group not in parts[name]:
            if name not in progress.made:
                progress.made.append(name)
                progress.save()
            await admin.create_topic(name, queues=queues, replica_groups=[group], if_not_exists=True)
        for queue_id in range(queues):
            progress.queues.setdefault((name, queue_id), QueueProgress(name, queue_id))
    progress.save()
    await _check_bodies(admin, needed, found, group)


async def _parts(admin: Admin, name: str) -> dict[str, TopicQueues]:
    try:
        return {part.replica_group: part for part in await admin.describe_topic(name)}
    except TopicNotFoundError:
        return {}


def _check_part(part: TopicQueues, queues: int, progress: Progress) -> None:
    name = part.topic
    if min(part.write_queues, part.read_queues) < queues:
        text = f"topic {name} has {min(part.write_queues, part.read_queues)} queues in {part.replica_group}, the old broker has {queues}"
        raise InvalidArgumentError(
            f"{text}: dledger topic update {name} --queues {queues} --replica-group {part.replica_group}", topic=name
        )
    if part.perm != Perm.READ_WRITE and name not in progress.made:
        raise InvalidArgumentError(f"topic {name} has permission {part.perm}, expected 6 (read and write) while it is imported", topic=name)


async def _check_bodies(admin: Admin, needed: dict[str, int], found: Survey, group: str) -> None:
    for name in list(needed)[:1]:
        limit = (await _parts(admin, name))[group].max_message_bytes
        if limit and found.largest_body > limit:
            text = f"the store has a body of {found.largest_body} bytes; this cluster accepts at most {limit} (maxMessageSize)"
            raise MessageTooLargeError(text)


async def close_topics(admin: Admin, folder: StoreFolder, progress: Progress) -> None:
    """Give the topics that the import made the permission and the write queues that they had."""
    for name in progress.made:
        source, queues = folder.topics.get(name), sum(topic == name for topic, _ in progress.queues)
        if source is None:
            continue
        perm = _perm(source)
        if perm != Perm.READ_WRITE or 0 < source.write_queues < queues:
            write = min(source.write_queues or queues, queues)
            await admin.update_topic(name, write_queues=write, perm=perm, replica_group=progress.replica_group)


def _perm(topic: SourceTopic) -> int:
    """Dead letters are opened by ``dledger dlq open``; a topic without any permission stays readable, as this cluster has none without."""
    if topic.name.startswith(DLQ_PREFIX):
        return int(Perm.WRITE)
    return topic.perm or int(Perm.READ)
