"""Whether all queues of a topic are known: which replica groups may have some, and did not say so.

Each part of a topic was told the replica groups that may have queues of it.  One that is told of and not known is asked; it may lack the
topic, after a change that was broken off.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import TopicQueues
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods

TIMEOUT_MS = 500


async def missing_parts(router: Router, topic: str, found: Sequence[TopicQueues]) -> list[str]:
    """The replica groups that may have queues of ``topic`` beside those of ``found``, and do not answer."""
    told = {group for each in found for group in each.replica_groups} - {each.replica_group for each in found}
    missing = []
    for group in sorted(told):
        request, deadline_ms = broker_pb2.MetadataRequest(topics=[topic]), router.clock.monotonic_ms() + TIMEOUT_MS
        try:
            await router.call_leader(group, methods.METADATA, request, deadline_ms=deadline_ms)
        except DledgerError:
            missing.append(group)
    return missing
