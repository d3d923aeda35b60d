"""A replica group is drained and removed: its topics get queues elsewhere, then it takes no more messages; then topics name it no more.

Each step may be repeated, so that what was broken off goes on.
"""

from __future__ import annotations

from dledger_client.admin.calls import ClusterCalls
from dledger_client.admin.replica_groups import ReplicaGroupState, describe, set_state
from dledger_client.admin.topic_changes import create_topic, forget_group
from dledger_client.admin.topics import TopicSpec, list_topics
from dledger_client.cluster.routes import TopicQueues
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.names import DLQ_PREFIX, RETRY_PREFIX
from dledger_wire.rpc import methods
from dledger_wire.status import ACTIVE, DRAINING, REMOVED

NOT_REGISTERED = "not registered"


async def drain(calls: ClusterCalls, replica_group: str, *, undo: bool) -> ReplicaGroupState:
    if undo:
        return await set_state(calls, replica_group, ACTIVE)
    now = await describe(calls, replica_group)
    if now.state == REMOVED:
        return now
    name = now.replica_group
    others = await active_groups(calls, without=name)
    if not others:
        raise InvalidArgumentError(f"{name} is the only replica group that takes messages; a cluster needs one")
    for queues in await list_topics(calls.at_leaders(), or_followers=False, partial=False):
        if queues.replica_group == name and not _belongs_to_a_group(queues.topic):
            await _add_elsewhere(calls, queues, others)
    return await set_state(calls, name, DRAINING)


async def remove(calls: ClusterCalls, replica_group: str, *, discard: bool) -> ReplicaGroupState:
    """The group, then what topics of the others say of it; the latter also when its nodes are gone since an earlier attempt."""
    try:
        state = await set_state(calls, replica_group, REMOVED, discard=discard)
    except DledgerError:
        known = await _registered_state(calls, replica_group)
        if known not in (REMOVED, NOT_REGISTERED) or not (await forget_group(calls, replica_group) or known == REMOVED):
            raise
        return ReplicaGroupState(replica_group, REMOVED, since_ms=0, voters=0, learners=0, replace_after_ms=0)
    await forget_group(calls, state.replica_group)
    return state


async def _registered_state(calls: ClusterCalls, name: str) -> str:
    """The state of a replica group as a name server knows it; empty when none answers that knows all groups."""
    try:
        directory = await calls.router.directory()
    except DledgerError:
        return ""
    states: dict[str, str] = {group.name: group.state for group in directory.groups}
    return states.get(name, NOT_REGISTERED if directory.complete else "")


async def active_groups(calls: ClusterCalls, *, without: str) -> list[str]:
    """The replica groups that take messages, by name."""
    names = [name for name in await calls.replica_groups() if name != without]
    answers = await calls.of_all(lambda name: calls.ask_leader(name, methods.DESCRIBE_REPLICA_GROUP, admin_pb2.Empty()), names)
    return [name for name, answer in answers.complete().items() if answer.state == ACTIVE]


def _belongs_to_a_group(topic: str) -> bool:
    """Topics of a consumer group are made where they are needed."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


async def _add_elsewhere(calls: ClusterCalls, queues: TopicQueues, others: list[str]) -> None:
    """Give a topic that can be written only in the group to be drained as many queues in the other groups."""
    found = await calls.router.topic(queues.topic, calls.deadline_ms(), fresh=True)
    if any(each.replica_group in others for each in found):
        return
    # What was drained before may be draining still: its permission as users are told lacks the bit for writing.
    count = max(queues.write_queues, 1)
    await create_topic(calls, TopicSpec(queues.topic, read_queues=count, write_queues=count), others, if_not_exists=True)
