"""Offsets in all replica groups of a topic: what its queues hold, and what a consumer group has committed.

Owns in which group a queue is, asking the groups at once, and what becomes of those that do not answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from dledger_client.admin.calls import GROUP_TIMEOUT_MS, answers_of
from dledger_client.cluster.followers_first import CommittedState
from dledger_client.cluster.missing_parts import find_parts
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import TopicQueues
from dledger_client.consumer.added_queues import AskGroup
from dledger_client.consumer.initial_offsets import CommittedOffset
from dledger_client.fetch.records import QueueOffsets
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods

T = TypeVar("T")
NO_TIME = -1


class TopicOffsets:
    """Of one client.  ``partial``: without replica groups that do not answer, which are waited for shortly."""

    def __init__(self, router: Router, replica: str | None, timeout_ms: int) -> None:
        self._router, self._timeout_ms = router, timeout_ms
        self._committed_state = CommittedState(router, replica)

    async def group_of(self, topic: str, queue_id: int) -> str:
        """The replica group of a queue.  InvalidArgumentError when there is none, or more than one."""
        for fresh in (False, True):  # a queue made since the last look
            found = await self._router.topic(topic, self._router.deadline_ms(self._timeout_ms), fresh=fresh)
            groups = sorted(queues.replica_group for queues in found if queue_id < queues.read_queues)
            if len(groups) > 1:
                names = ", ".join(groups)
                raise InvalidArgumentError(
                    f"topic {topic}: queue {queue_id} is in replica groups {names}; expected replica_group=one of them"
                )
            if groups:
                return groups[0]
        most = max(queues.read_queues for queues in found)
        raise InvalidArgumentError(f"topic {topic}: queue {queue_id}, expected 0 to {most - 1}", topic=topic)

    async def held(self, topic: str, asked_time: int, *, or_followers: bool, partial: bool) -> dict[tuple[str, int], QueueOffsets]:
        """What each readable queue holds, by (replica group, queue id)."""
        return await self._of_parts(topic, self.held_by_part(asked_time, or_followers=or_followers), partial=partial)

    def held_by_part(self, asked_time: int, *, or_followers: bool) -> AskGroup:
        """Reads the offsets that the queues of a topic hold in one replica group."""

        async def ask(part: TopicQueues, deadline_ms: int) -> dict[tuple[str, int], QueueOffsets]:
            refs = [broker_pb2.QueueRef(topic=part.topic, queue_id=number, timestamp_ms=asked_time) for number in range(part.read_queues)]
            request, group, method = broker_pb2.OffsetsRequest(queues=refs), part.replica_group, methods.QUEUE_OFFSETS
            if or_followers:
                answer = await self._committed_state.ask(group, method, request, lambda answer: int(answer.applied_index), deadline_ms)
            else:
                answer = await self._router.call_leader(group, method, request, deadline_ms=deadline_ms)
            return {
                (group, each.queue_id): QueueOffsets(each.min_offset, each.max_offset, each.offset_for_time, each.incarnation)
                for each in answer.queues
            }

        return ask

    async def committed(self, topic: str, consumer_group: str, *, partial: bool) -> dict[tuple[str, int], CommittedOffset]:
        """What a consumer group has committed, by (replica group, queue id)."""
        request = broker_pb2.GroupOffsetsRequest(groups=[consumer_group])

        async def ask(part: TopicQueues, deadline_ms: int) -> dict[tuple[str, int], CommittedOffset]:
            answer = await self._router.call_leader(part.replica_group, methods.GROUP_OFFSETS, request, deadline_ms=deadline_ms)
            rows = (each for positions in answer.groups for each in positions.offsets if each.topic == topic)
            return {(part.replica_group, each.queue_id): CommittedOffset(each.offset, each.generation, each.incarnation) for each in rows}

        return await self._of_parts(topic, ask, partial=partial)

    async def _of_parts(
        self, topic: str, ask: Callable[[TopicQueues, int], Awaitable[dict[tuple[str, int], T]]], *, partial: bool
    ) -> dict[tuple[str, int], T]:
        """What ``ask`` finds in every replica group of a topic."""
        looked_up = await find_parts(self._router, topic, self._router.deadline_ms(self._timeout_ms))
        parts = {part.replica_group: part for part in (looked_up.queues if partial else looked_up.all_of(topic))}
        deadline_ms = self._router.deadline_ms(self._timeout_ms)
        if partial and len(parts) > 1:
            deadline_ms = min(deadline_ms, self._router.clock.monotonic_ms() + GROUP_TIMEOUT_MS)
        answers = await answers_of(lambda group: ask(parts[group], deadline_ms), parts)
        found: dict[tuple[str, int], T] = {}
        for answer in (answers.some() if partial else answers.complete()).values():
            found |= answer
        return found
