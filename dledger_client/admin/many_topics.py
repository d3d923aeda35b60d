"""The queues of many topics at once, for lists and totals: two or three calls to each replica group, however many topics there are.

Owns how the calls are bundled, and that topics which no follower knows are looked for at the leaders.  ``topics`` answers for one topic,
and knows exactly which replica groups it misses.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from dledger_client.admin.calls import ClusterCalls, Listed, Sources
from dledger_client.admin.topics import QueueRange, version_of
from dledger_client.cluster.routes import TopicQueues
from dledger_client.runtime.argument_ranges import texts
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import TopicNotFoundError, TopicPermissionError
from dledger_wire.names import check_topic
from dledger_wire.rpc import methods
from dledger_wire.status import Perm

TOPICS_A_CALL = 5000
QUEUES_A_CALL = 4000  # a topic that is deleted meanwhile fails one call
NO_TIME = -1


async def ranges_of_topics(
    calls: ClusterCalls, names: Iterable[str], *, or_followers: bool, partial: bool, only_readable: bool = True
) -> dict[str, Listed[QueueRange]]:
    """By topic; every list has the replica groups that did not answer.  Without ``only_readable`` with queues that are only written to."""
    wanted = [check_topic(name) for name in dict.fromkeys(texts("names", names))]
    if not wanted:
        return {}
    asking = _Asking(calls, or_followers=or_followers, only_readable=only_readable)
    found = await _found(asking, wanted, partial=partial)
    if calls.spares_leader and (unknown := [name for name in wanted if name not in asking.known]):
        at_leaders = _Asking(calls.at_leaders(), or_followers=or_followers, only_readable=only_readable)
        found |= await _found(at_leaders, unknown, partial=partial)
    return found


async def _found(asking: _Asking, wanted: list[str], *, partial: bool) -> dict[str, Listed[QueueRange]]:
    async def ask(group: str) -> list[tuple[str, QueueRange]]:
        return await asking.ranges(group, await asking.parts(group, wanted))

    answers = await asking.calls.of_all(ask)
    by_group = answers.some() if partial else answers.complete()
    found = {name: Listed[QueueRange]([], answers.unanswered, asking.sources) for name in wanted}
    for group in sorted(by_group):
        for topic, held in by_group[group]:
            found[topic].append(held)
    return found


class _Asking:
    """The calls of one question; ``known``: the topics that some replica group knows."""

    def __init__(self, calls: ClusterCalls, *, or_followers: bool, only_readable: bool) -> None:
        self.calls, self._or_followers, self._only_readable = calls, or_followers, only_readable
        self.sources = Sources()
        self.known: set[str] = set()

    async def parts(self, group: str, names: list[str]) -> dict[str, TopicQueues]:
        """The topics as a replica group knows them; those that it has no readable queues of are left out."""
        found: dict[str, TopicQueues] = {}
        for first in range(0, len(names), TOPICS_A_CALL):
            request = broker_pb2.MetadataRequest(topics=names[first : first + TOPICS_A_CALL])
            answer = await self.calls.read(
                group, methods.METADATA, request, self.sources, applied=version_of if self._or_followers else None
            )
            self.known.update(info.name for info in answer.topics if info.found or info.unseen_by)
            for info in answer.topics:
                if info.found and info.group == group and info.perm & Perm.READ:
                    queues = TopicQueues(info.name, group, info.read_queues, info.write_queues, info.perm, info.incarnation)
                    found[info.name] = queues
        return found

    async def ranges(self, group: str, parts: dict[str, TopicQueues]) -> list[tuple[str, QueueRange]]:
        """(topic, queue) of all queues asked for.  A topic that was deleted or closed since then is left out."""
        found: list[tuple[str, QueueRange]] = []
        refs = ((part.topic, number) for part in list(parts.values()) for number in range(self._count(part)))
        while some := list(islice(refs, QUEUES_A_CALL)):
            while asked := [(topic, number) for topic, number in some if topic in parts]:
                queues = [broker_pb2.QueueRef(topic=topic, queue_id=number, timestamp_ms=NO_TIME) for topic, number in asked]
                try:
                    answer = await self._offsets(group, broker_pb2.OffsetsRequest(queues=queues))
                except (TopicNotFoundError, TopicPermissionError) as error:
                    if error.details.get("topic", "") not in parts:
                        raise
                    del parts[error.details["topic"]]
                    continue
                found += [(each.topic, _range(group, each, parts[each.topic])) for each in answer.queues]
                break
        return found

    def _count(self, part: TopicQueues) -> int:
        return part.read_queues if self._only_readable else max(part.read_queues, part.write_queues)

    async def _offsets(self, group: str, request: broker_pb2.OffsetsRequest) -> broker_pb2.OffsetsResponse:
        return await self.calls.read(
            group, methods.QUEUE_OFFSETS, request, self.sources, applied=_applied_index if self._or_followers else None
        )


def _range(group: str, found: broker_pb2.QueueOffsets, part: TopicQueues) -> QueueRange:
    readable = found.queue_id < part.read_queues
    return QueueRange(group, found.queue_id, found.min_offset, found.max_offset, found.max_offset, readable=readable)


def _applied_index(answer: broker_pb2.OffsetsResponse) -> int:
    return answer.applied_index
