"""Readers by offset: linearizable reads, reads of followers, and the committed offsets of a consumer group."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dledger_client.aio import PullConsumer
from dledger_client.types import Chunk
from dledger_drill.history.records import OperationKind, Outcome
from dledger_drill.workloads.base import Surroundings, Workload
from dledger_drill.workloads.bodies import value_of
from dledger_drill.workloads.recorder import outcome_of
from dledger_wire.errors import DledgerError

MOST_MESSAGES = 10_000
TIMEOUT_MS = 3_000


class Queues:
    """The queues of the topic that readers read, one after the other in turn, each from where it was read to."""

    def __init__(self, queues: Sequence[tuple[str, int]]) -> None:
        self._order = list(queues)
        self.positions = dict.fromkeys(queues, 0)

    def next(self) -> tuple[str, int]:
        self._order.append(self._order.pop(0))
        return self._order[-1]


def whole_read(chunks: Sequence[Chunk], offset: int) -> tuple[list[str], int, bool]:
    """Values of a read from ``offset``, where it ended, and whether that was the end of the queue as the replica knew it."""
    values = [value_of(message.body) for chunk in chunks for message in chunk.messages()]
    end = chunks[-1].next_offset if values else offset
    return values, end, not chunks or end >= chunks[-1].max_offset


class Reader(Workload):
    """Reads what is new in one queue after the other.

    A read that was cut off before the end of the queue says nothing of the end, and is not recorded.
    """

    workload = ""
    mode = ""
    read_from = "leader"

    def __init__(self, around: Surroundings, process: str, queues: Sequence[tuple[str, int]]) -> None:
        super().__init__(around)
        self.process = process
        self.topic = self.spec.read_topic
        self._queues = Queues(queues)

    async def run(self) -> None:
        async with PullConsumer(self.spec.bootstrap, read_from=self.read_from, timeout_ms=TIMEOUT_MS, **self.spec.security) as consumer:
            await self.paced(self.spec.rate(self.workload), lambda: self._one(consumer))

    async def _one(self, consumer: PullConsumer) -> None:
        group, queue = self._queues.next()
        offset = self._queues.positions[group, queue]
        of_round, invoked_ns = self.recorder.round, time.monotonic_ns()
        try:
            chunks = await consumer.fetch_chunks(
                self.topic, queue, offset, MOST_MESSAGES, replica_group=group, linearizable=self.mode == "linearizable"
            )
        except DledgerError:
            return  # the reader was given nothing, and reads again from the same offset
        values, end, is_whole = whole_read(chunks, offset)
        self._queues.positions[group, queue] = end
        if is_whole:
            data = {"topic": self.topic, "group": group, "queue": queue, "mode": self.mode, "from_offset": offset, "end_offset": end}
            data |= {"values": values, "node": chunks[-1].replica if chunks else ""}
            self.recorder.record(self.process, OperationKind.READ, invoked_ns, Outcome.OK, data, of_round=of_round)


class LinearizableReader(Reader):
    workload, mode = "pull", "linearizable"


class FollowerReader(Reader):
    workload, mode, read_from = "follower", "follower", "follower"


class Offsets(Workload):
    """Commits growing offsets of a consumer group without members, and fetches them."""

    def __init__(self, around: Surroundings, process: str, queues: Sequence[tuple[str, int]]) -> None:
        super().__init__(around)
        self.process = process
        self.topic = self.spec.read_topic
        self.group = f"{self.spec.prefix}-offsets"
        self._queues = Queues(queues)

    async def run(self) -> None:
        async with PullConsumer(self.spec.bootstrap, self.group, timeout_ms=TIMEOUT_MS, **self.spec.security) as consumer:
            await self.paced(self.spec.rate("offsets") / 2, lambda: self._both(consumer))

    async def _both(self, consumer: PullConsumer) -> None:
        queue = self._queues.next()
        self._queues.positions[queue] += 1
        await self._commit(consumer, queue)
        await self._fetch(consumer)

    async def _commit(self, consumer: PullConsumer, queue: tuple[str, int]) -> None:
        group, number = queue
        offset = self._queues.positions[queue]
        of_round, invoked_ns, outcome = self.recorder.round, time.monotonic_ns(), Outcome.OK
        try:
            await consumer.commit({(self.topic, number): offset}, replica_group=group)
        except DledgerError as error:
            outcome = outcome_of(error)
        self.recorder.record(
            self.process, OperationKind.COMMIT_OFFSET, invoked_ns, outcome, self._data(group, number, offset), of_round=of_round
        )

    async def _fetch(self, consumer: PullConsumer) -> None:
        of_round, invoked_ns = self.recorder.round, time.monotonic_ns()
        try:
            committed = await consumer.committed(self.topic)
        except DledgerError:
            return
        for group, number in self._queues.positions:
            data = self._data(group, number, committed.get((group, number), 0))
            self.recorder.record(self.process, OperationKind.FETCH_OFFSET, invoked_ns, Outcome.OK, data, of_round=of_round)

    def _data(self, group: str, queue: int, offset: int) -> dict[str, str | int]:
        return {"consumer_group": self.group, "topic": self.topic, "group": group, "queue": queue, "offset": offset}
