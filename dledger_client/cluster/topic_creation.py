"""Topics made because a producer writes to them, where the cluster allows it (RocketMQ's createTopicKey, TBW102).

Owns the choice of their replica groups.  It depends on the topic's name alone, so that producers which make a topic at the same time choose
the same groups and the same shares.  Owns how the queues of any topic are shared out among replica groups, so that a repeated or
interrupted change ends with the same shares: queues are added one at a time where the topic has the fewest, and taken away one at a time
where it has the most, so that the way to a number of queues does not matter.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from dledger_client.cluster.router import Router
from dledger_wire._pb import topics_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, PermissionDeniedError, TopicNotFoundError
from dledger_wire.rpc import methods


def spread(queues: int, replica_groups: Sequence[str]) -> dict[str, int]:
    """``queues`` over the first of ``replica_groups``, evenly: shares differ by at most one, the larger ones first; no share is 0."""
    used = replica_groups[:queues]
    if not used:
        return {}
    share, rest = divmod(queues, len(used))
    return {group: share + (place < rest) for place, group in enumerate(used)}


def resized(counts: Mapping[str, int], queues: int) -> dict[str, int]:
    """Shares of ``queues`` after those of ``counts``, with as few changes as possible; every replica group has at least one.

    InvalidArgumentError when there are fewer queues than replica groups.
    """
    if queues < len(counts):
        names = ", ".join(sorted(counts))
        raise InvalidArgumentError(f"{queues} queues over {len(counts)} replica groups ({names}); expected at least one queue in each")
    found = {group: max(1, count) for group, count in sorted(counts.items())}
    while sum(found.values()) < queues:
        found[min(found, key=lambda group: (found[group], group))] += 1
    while sum(found.values()) > queues:
        most = max(found.values())
        found[max(group for group, count in found.items() if count == most)] -= 1
    return found


async def create_topic(router: Router, name: str, key: str, queues: int, deadline_ms: int) -> bool:
    """Make a topic of ``queues`` queues over the replica groups that have a leader; False where topics are made by others only."""
    groups = by_name(name, await router.all_groups(deadline_ms))
    leaders = await asyncio.gather(*(router.leaders.leader(group) for group in groups), return_exceptions=True)
    led = [group for group, found in zip(groups, leaders, strict=True) if not isinstance(found, BaseException)]
    shares = spread(queues, led or groups)  # without any leader the calls wait for one
    problem: DledgerError | None = None
    created = 0
    for group, count in shares.items():
        request = topics_pb2.AutoCreateRequest(name=name, create_topic_key=key, queues=count, groups=sorted(shares))
        try:
            await router.call_leader(group, methods.AUTO_CREATE_TOPIC, request, deadline_ms=deadline_ms)
            created += 1
        except (TopicNotFoundError, PermissionDeniedError):
            return False
        except DledgerError as error:
            problem = problem or error
    if not created and problem is not None:
        raise problem
    router.forget_topic(name)
    await router.lookup.learn(name, shares)
    return True


def by_name(topic: str, groups: Iterable[str]) -> list[str]:
    """The replica groups in an order of the topic's own: topics of few queues are spread over all groups."""
    return sorted(groups, key=lambda group: hashlib.sha256(f"{topic}/{group}".encode()).digest())
