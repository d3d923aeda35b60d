"""Topics made because a producer writes to them, where the cluster allows it (RocketMQ's createTopicKey, TBW102)."""

from __future__ import annotations

from dledger_client.cluster.router import Router
from dledger_wire._pb import topics_pb2
from dledger_wire.errors import DledgerError, TopicNotFoundError
from dledger_wire.rpc import methods


async def create_topic(router: Router, name: str, key: str, queues: int, deadline_ms: int) -> bool:
    """Make a topic in every replica group that can be reached; False where topics are made by operators only."""
    request = topics_pb2.AutoCreateRequest(name=name, create_topic_key=key, queues=queues)
    problem: DledgerError | None = None
    created = 0
    for group in sorted(await router.all_groups(deadline_ms)):
        try:
            await router.call_leader(group, methods.AUTO_CREATE_TOPIC, request, deadline_ms=deadline_ms)
            created += 1
        except DledgerError as error:
            problem = problem or error
            if isinstance(error, TopicNotFoundError):
                return False
    if not created and problem is not None:
        raise problem
    router.forget_topic(name)
    return True
