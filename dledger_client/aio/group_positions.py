"""The part of ``PullConsumer`` for its consumer group: committed offsets, and messages that are sent back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger_client.admin.send_back import SendBackResult, ask_to_take_back, send_back_request
from dledger_client.cluster.router import Router
from dledger_client.consumer.group_offsets import commit_pages
from dledger_client.consumer.position_epochs import PositionEpochs
from dledger_client.consumer.topic_offsets import TopicOffsets
from dledger_client.runtime.argument_ranges import MAX_U32, check_positions, check_text, within
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, TopicNotFoundError
from dledger_wire.names import check_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail


class GroupPositions:
    """Where a consumer group is, and what it gave back; use ``PullConsumer``."""

    group: str
    _router: Router
    _offsets: TopicOffsets
    _epochs: PositionEpochs
    _timeout_ms: int

    async def commit(
        self,
        positions: Mapping[tuple[str, int], int],
        *,
        replica_group: str | None = None,
        reset: bool = False,
        topic_epoch: str = "",
    ) -> None:
        """Store offsets of the consumer group; durable on a majority.

        Args:
            positions: Next offset to read by (topic, queue id). A commit never moves a group back.
            replica_group: The replica group of the queues; needed when a topic is in several.
            reset: Store the offsets even when they are lower, and discard those that consumers of the group commit
                meanwhile.
            topic_epoch: The topic that they are of, see ``ReceivedMessage``; empty: the one that was read last, or whose
                ``committed`` and ``offsets`` were asked for.

        Raises:
            InvalidArgumentError: The consumer has no group, or a value is outside its range.
            TopicNotFoundError: The topic was deleted since, even if it was created again. Offsets of other topics are stored.
            StaleLockError: An orderly push consumer of the group holds the queue.

        Examples:
            >>> await consumer.commit({("orders", 0): 100})
        """
        if not self.group:
            raise InvalidArgumentError("committing needs a consumer group; expected group=NAME")
        check_positions(positions)
        by_group: dict[str, broker_pb2.CommitOffsetsRequest] = {}
        for (topic, queue_id), offset in positions.items():
            group = await self._group_of(topic, queue_id, replica_group)
            request = by_group.setdefault(group, broker_pb2.CommitOffsetsRequest(group=self.group, reset=reset))
            epoch = topic_epoch or (self._epochs.of((topic, group, queue_id)) if offset else "")
            request.offsets.add(topic=topic, queue_id=queue_id, offset=offset, incarnation=epoch)
        refusals: list[DledgerError] = []
        for group, request in by_group.items():
            for page in commit_pages(request):
                refusals += await self._commit_page(group, page)
        if refusals:
            raise refusals[0]

    async def _commit_page(self, group: str, page: broker_pb2.CommitOffsetsRequest) -> list[DledgerError]:
        """What was refused: it holds up no other topic."""
        try:
            answer = await self._router.call_leader(group, methods.COMMIT_OFFSETS, page, deadline_ms=self._deadline_ms())
        except TopicNotFoundError as error:
            self._epochs.refused((each.topic, group, each.queue_id) for each in page.offsets)
            return [error]
        refusals = []
        for each in answer.refused:
            refusals.append(from_detail(each.error))
            if isinstance(refusals[-1], TopicNotFoundError):
                self._epochs.refused([(each.topic, group, each.queue_id)])
        return refusals

    async def committed(self, topic: str, *, partial: bool = False) -> dict[tuple[str, int], int]:
        """The committed offsets of the consumer group in a topic.

        Args:
            topic: The topic.
            partial: Leave out replica groups that do not answer.

        Returns:
            Next offset to read by (replica group, queue id); queues without a commit are missing.

        Examples:
            >>> offset = (await consumer.committed("orders")).get(("g0", 0), 0)
        """
        found = await self._offsets.committed(topic, self.group, partial=partial)
        self._epochs.learned_positions(topic, {queue: each.topic_epoch for queue, each in found.items()})
        return {queue: each.offset for queue, each in found.items()}

    async def send_back(
        self,
        topic: str,
        queue_id: int,
        offsets: Iterable[int],
        *,
        replica_group: str | None = None,
        delay_level: int = 0,
        max_reconsume_times: int = 0,
    ) -> list[SendBackResult]:
        """Send messages back that could not be processed: they are redelivered later, to this consumer group only. Safe to repeat.

        Commit behind them afterwards, not before.

        Args:
            topic: Where they were read; the retry topic of the group when they had been sent back before.
            queue_id: The queue.
            offsets: Their offsets.
            replica_group: The replica group of the queue; needed when a topic is in several.
            delay_level: 0: the delay grows with the attempts; 1 to 18: this level; -1: to the dead-letter topic.
            max_reconsume_times: Redeliveries before the dead-letter topic; 0: the group's setting.

        Returns:
            What happened to each message.

        Raises:
            InvalidArgumentError: The consumer has no group.
            OutcomeUnknownError: Leadership changed during the request; repeat the call.
            TopicNotFoundError: The topic that was read was deleted since, even if it was created again.

        Examples:
            >>> results = await consumer.send_back("orders", 0, [17], delay_level=3)
        """
        if not self.group:
            raise InvalidArgumentError("sending back needs a consumer group; expected group=NAME")
        group = await self._group_of(topic, queue_id, replica_group)
        request = send_back_request(self.group, topic, queue_id, offsets, delay_level, max_reconsume_times)
        request.incarnation = self._epochs.of((topic, group, queue_id))
        try:
            return await ask_to_take_back(self._router, request, group, self._deadline_ms())
        except TopicNotFoundError:
            self._epochs.refused([(topic, group, queue_id)])
            raise

    def _deadline_ms(self) -> int:
        return self._router.deadline_ms(self._timeout_ms)

    async def _group_of(self, topic: str, queue_id: int, replica_group: str | None) -> str:
        check_topic(topic)
        within(0, MAX_U32, queue_id=queue_id)
        if replica_group is None:
            return await self._offsets.group_of(topic, queue_id)
        check_text(replica_group=replica_group)
        return (await self._router.ensure_group(replica_group, self._deadline_ms())).name
