"""Which topic the positions of a pull consumer are of, when one after the other has the same name.

Owns what came with them.  A position that was read up to, or begun at, means nothing in a topic that was deleted and created again:
reading on there, or committing it, would pass over messages that no member of the group has seen.  So requests name the topic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from dledger_client.fetch.records import Chunk
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import TopicNotFoundError

Queue = tuple[str, str, int]  # (topic, replica group, queue id)


class PositionEpochs:
    """Topic epochs of one consumer, by queue; empty where none is known.

    What was read counts until a request for it is refused and the consumer asks again where to begin: not before, since it may ask for
    other reasons, and not at the refusal, since it may try the same again.
    """

    def __init__(self) -> None:
        self._read: dict[Queue, str] = {}
        self._learned: dict[Queue, str] = {}  # with where to begin
        self._refused: set[Queue] = set()

    def of(self, queue: Queue) -> str:
        return self._read.get(queue, self._learned.get(queue, ""))

    def learned(self, topic: str, epochs: Mapping[tuple[str, int], str]) -> None:
        """The start of these queues is known, by (replica group, queue id)."""
        for place, epoch in epochs.items():
            queue = (topic, *place)
            self._begins_again(queue)
            self._learned[queue] = epoch

    def learned_positions(self, topic: str, epochs: Mapping[tuple[str, int], str]) -> None:
        """The same by the positions of a group: it begins where it likes in queues in which it has none."""
        for queue in [queue for queue in self._refused if queue[0] == topic]:
            self._begins_again(queue)
        self.learned(topic, epochs)

    def restarts(self, topic: str) -> None:
        """The caller begins in all queues of a topic where it likes.  Nothing changes unless a request for one was refused."""
        if any(queue[0] == topic for queue in self._refused):
            for queue in [queue for queue in {*self._read, *self._learned, *self._refused} if queue[0] == topic]:
                self._refused.add(queue)
                self._begins_again(queue)

    def _begins_again(self, queue: Queue) -> None:
        if queue in self._refused:
            self._refused.discard(queue)
            self._read.pop(queue, None)
            self._learned.pop(queue, None)

    def was_read(self, chunk: Chunk) -> None:
        queue = (chunk.topic, chunk.replica_group, chunk.queue_id)
        self._refused.discard(queue)
        self._read[queue] = chunk.topic_epoch

    def refused(self, queues: Iterable[Queue]) -> None:
        """The topic that was named does not exist any more."""
        self._refused.update(queues)

    def named(self, replica_group: str, request: broker_pb2.FetchRequest) -> broker_pb2.FetchRequest:
        """For a group, of the topic that its position is of.  Nothing is in front of the first offset, whichever topic that is."""
        named = broker_pb2.FetchRequest()
        named.CopyFrom(request)
        if request.group and request.offset and not request.incarnation:
            named.incarnation = self.of((request.topic, replica_group, request.queue_id))
        return named

    async def read(
        self, replica_group: str, request: broker_pb2.FetchRequest, fetch: Callable[[str, broker_pb2.FetchRequest], Awaitable[list[Chunk]]]
    ) -> list[Chunk]:
        """What the caller is given, or refused: not what was fetched ahead, which it does not know of."""
        try:
            chunks = await fetch(replica_group, request)
        except TopicNotFoundError:
            self.refused([(request.topic, replica_group, request.queue_id)])
            raise
        if chunks:
            self.was_read(chunks[-1])
        return chunks
