"""The topics of a consumer group: its retry topic and its dead letter topic, created through the log when they are first needed."""

from __future__ import annotations

from broker.context import ServiceContext
from dledger_wire.names import dlq_topic, retry_topic
from dledger_wire.status import Perm
from store.commands.topics import CreateTopic

TIMEOUT_S = 5.0


async def ensure_retry_topic(context: ServiceContext, group: str) -> None:
    """Create the group's retry topic unless it exists, with as many queues as the group's settings say."""
    await _ensure(context, retry_topic(group), context.store.subscription_groups.of(group).retryQueueNums, Perm.READ_WRITE)


async def ensure_dead_letters(context: ServiceContext, group: str) -> None:
    """Create the group's dead letter topic unless it exists.  It cannot be read until an operator grants read permission."""
    await _ensure(context, dlq_topic(group), 1, Perm.WRITE)


async def _ensure(context: ServiceContext, name: str, queues: int, perm: Perm) -> None:
    if context.store.topics.get(name) is None:
        command = CreateTopic(name=name, read_queues=queues, write_queues=queues, perm=int(perm), if_not_exists=True)
        await context.command(command, TIMEOUT_S)
