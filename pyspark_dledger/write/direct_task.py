"""Direct writes: a task's batches go to their queues at once, numbered so that a repeated task stores only what is missing (ADR 36).

Owns the protocol of one attempt of a task.  The attempt registers under the task's name with each replica group of the topic.  That ends
all earlier attempts, which may still run somewhere, and returns how many of their rows each queue has.  They are read back and compared
with the rows that come now; only what is behind them is sent.

    name        of the write and the partition: the same for every attempt
    message id  begins with a part that is made of the name, so that stored rows are found by it
    sequence    of a queue's rows, from 0 in each attempt behind those that were stored before

Attempts cut the same rows into other batches: Spark ends the rows of a task that fails in the middle as if they were all.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dledger_client.aio.consumer import PullConsumer
from dledger_client.cluster.retry import until
from dledger_client.cluster.router import Router
from dledger_client.fetch.records import QueueOffsets
from dledger_client.producer.idempotent_writer import IdempotentWriter, sequenced
from dledger_client.producer.producer_session import ProducerSession
from dledger_client.producer.settings import ProducerOptions
from dledger_wire.batches.batch import BatchView, Sequence64, encode_batch
from dledger_wire.checksum import crc32c
from dledger_wire.clock import Clock, Random
from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError, OutOfOrderSequenceError, ProducerFencedError
from dledger_wire.frames.frame_layout import UNIQ_KEY_PREFIX, UNIQUE_ID_SIZE
from dledger_wire.frames.frames import frame_columns, frame_positions
from dledger_wire.frames.message_id import UniqueIds
from pyspark_dledger.write.staged_batches import StagedBatch, TargetQueue
from pyspark_dledger.write.targets import explaining_fewer_queues

PRODUCER_GROUP = "spark"
NAME_PREFIX = "spark-direct-"
_BODY = struct.Struct(">iq")  # CRC and size
_ID_PROPERTY = len(UNIQ_KEY_PREFIX) + UNIQUE_ID_SIZE + 1  # the first one of a message


@dataclass(frozen=True, slots=True)
class DirectTarget:
    """Where one write goes, as the driver saw it before the first task: all tasks choose among the same queues.

    ``ends`` are the offsets at which the queues ended then: everything that the write stores is behind them.  ``topic_epochs``: by
    replica group, others when the topic was deleted and created again.
    """

    write_id: str
    topic: str
    queues: tuple[TargetQueue, ...]
    ends: Mapping[TargetQueue, int]
    max_body_bytes: int
    topic_epochs: Mapping[str, str] = field(default_factory=dict)

    def name(self, partition: int) -> str:
        """The name of a task: the ``producer_id`` of all its attempts."""
        return f"{NAME_PREFIX}{self.write_id}-{partition}"

    @property
    def replica_groups(self) -> list[str]:
        return sorted({queue.group for queue in self.queues})


def task_ids(name: str, clock: Clock, random: Random) -> UniqueIds:
    """Message ids of one attempt of a task."""
    head = _id_head(name)
    return UniqueIds(clock, random, address=head[:4], process_id=int.from_bytes(head[4:], "big"))


def _id_head(name: str) -> bytes:
    """What the ids of all attempts begin with, in place of an address and a process id."""
    return hashlib.sha256(name.encode()).digest()[:6]


def row_digests(frames: memoryview, sizes: npt.NDArray[Any], id_head: bytes, *, bodiless: bool = False) -> list[int]:
    """A digest of what each frame says (body, tags, keys, properties) wherever it is stored; of those alone whose id begins so.

    ``bodiless``: bodies are cut out; heads hold what the digest takes of them.
    """
    columns = frame_columns(np.frombuffer(frames, np.uint8), frame_positions(sizes), bodiless=bodiless)
    head = UNIQ_KEY_PREFIX + id_head.hex().upper().encode()
    bodies = zip(columns.heads["body_crc"].tolist(), columns.heads["body_length"].tolist(), strict=True)
    places = zip(columns.properties_at.tolist(), columns.properties_length.tolist(), strict=True)
    return [
        crc32c(_BODY.pack(crc, length), value=crc32c(frames[at + _ID_PROPERTY : at + size]))
        for (crc, length), (at, size) in zip(bodies, places, strict=True)
        if frames[at : at + len(head)] == head
    ]


def rows_behind(batch: BatchView, count: int) -> bytes:
    """The record of a batch without its first ``count`` rows."""
    owners = batch.key_owners
    kept = owners >= count
    return encode_batch(
        batch.topic,
        batch.queue_id,
        batch.frames[int(batch.positions[count]) - batch.frames_at :],
        batch.sizes[count:],
        batch.tag_hashes[count:],
        batch.unique_hashes[count:],
        key_owners=owners[kept] - count,
        key_hashes=batch.key_hashes[kept],
    )


@dataclass(slots=True)
class _Queue:
    """``earlier``: digests of the rows that earlier attempts stored; ``rows``: how many this attempt has given."""

    earlier: Sequence[int] = ()
    rows: int = 0


@dataclass(slots=True)
class DirectTask:
    """One attempt of a task.

    ``sender`` may have served other tasks before; ``open_reader`` makes a consumer that reads from leaders.  ``is_repeated``: there
    was an attempt before, which may have stored rows although no replica group knows its name any more.
    """

    router: Router
    sender: IdempotentWriter
    open_reader: Callable[[], PullConsumer]
    target: DirectTarget
    partition: int
    timeout_ms: int
    is_repeated: bool = False
    _sessions: dict[str, ProducerSession] = field(default_factory=dict)
    _queues: dict[TargetQueue, _Queue] = field(default_factory=dict)

    @property
    def _name(self) -> str:
        return self.target.name(self.partition)

    async def begin(self) -> None:
        """End earlier attempts, and read back what they stored."""
        await asyncio.gather(*(self._register(group) for group in self.target.replica_groups))
        counts = {queue: self._stored_count(queue) for queue in self.target.queues}
        self._queues = {queue: _Queue() for queue in counts}
        looked_at = [queue for queue, count in counts.items() if count or self._may_be_forgotten(queue.group)]
        if looked_at:
            async with self.open_reader() as reader:
                held = await reader.offsets(self.target.topic)
                for queue in looked_at:
                    found = await self._read_back(reader, queue, held.get((queue.group, queue.queue_id)))
                    self._queues[queue].earlier = self._checked(queue, counts[queue], found)

    def _stored_count(self, queue: TargetQueue) -> int:
        return self._sessions[queue.group].stored.get((queue.topic, queue.queue_id), 0)

    def _may_be_forgotten(self, group: str) -> bool:
        session = self._sessions[group]
        return session.is_incomplete or (self.is_repeated and not session.stored)

    async def _register(self, group: str) -> None:
        options = ProducerOptions(PRODUCER_GROUP, producer_id=self._name)
        session = self._sessions[group] = ProducerSession(self.router, group, options)
        clock = self.router.clock
        async for attempt in until(clock.monotonic_ms() + self.timeout_ms, clock, self.router.random):
            with attempt:
                await session.register()

    async def _read_back(self, reader: PullConsumer, queue: TargetQueue, held: QueueOffsets | None) -> array[int]:
        """Digests of the rows that the queue has of this task."""
        found, id_head = array("I"), _id_head(self._name)
        if held is not None:
            first = max(held.min_offset, self.target.ends.get(queue, 0))
            where = (queue.topic, queue.queue_id, first, held.max_offset)
            async for chunk in reader.read_chunks(*where, replica_group=queue.group, without_body=True):
                found.extend(row_digests(memoryview(chunk.frames), chunk.sizes, id_head, bodiless=True))
        return found

    def _checked(self, queue: TargetQueue, count: int, found: array[int]) -> array[int]:
        """Of what was found, the ``count`` rows that the replica group reported."""
        earlier = f"{_shown(queue)}: an earlier attempt of partition {self.partition} stored"
        if found and not count:
            raise OutOfOrderSequenceError(
                f"{earlier} {len(found)} rows, but the replica group has forgotten that attempt: it remembers 10000 producers, and each "
                "task is one; expected fewer tasks (coalesce) or writeMode=staged"
            )
        if len(found) < count:
            raise OffsetOutOfRangeError(
                f"{earlier} {count} rows, of which {len(found)} can be read; the others cannot be compared with the rows of this attempt"
            )
        return found[:count]

    async def add(self, batch: StagedBatch) -> None:
        """Send a batch, unless an earlier attempt stored it.  Blocks while 8 MiB are under way.

        Raises:
            InvalidArgumentError: An earlier attempt stored other rows.
        """
        view = BatchView(batch.record)
        queue = TargetQueue(batch.group, view.topic, view.queue_id)
        state = self._queues[queue]
        first, end, earlier = state.rows, state.rows + view.count, len(state.earlier)
        state.rows, record = end, batch.record
        if first < earlier:
            found = row_digests(view.frames, view.sizes, _id_head(self._name))
            if list(state.earlier[first:end]) != found[: earlier - first]:
                raise self._other_rows(queue, f"rows {first} to {min(end, earlier) - 1} are not those that it stored")
            if end <= earlier:
                return
            record = memoryview(rows_behind(view, earlier - first))
        session = self._sessions[queue.group]
        sequence = Sequence64(session.producer_id, session.epoch, max(first - earlier, 0))
        with self._fenced():
            await self.sender.send(queue.group, sequenced(record, sequence))

    async def finish(self) -> None:
        """Return when everything is stored."""
        for queue, state in self._queues.items():
            if state.rows < len(state.earlier):
                raise self._other_rows(queue, f"it stored {len(state.earlier)} rows, this attempt has {state.rows}")
        with self._fenced():
            await self.sender.flush()

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """Say what ended this attempt."""
        try:
            with explaining_fewer_queues():
                yield
        except ProducerFencedError as error:
            raise ProducerFencedError(
                f"partition {self.partition}: a later attempt of this task has begun and ends this one, as a speculative copy does "
                f"(spark.speculation), or a retry when Spark took this one for lost; {error.message}",
                **error.details,
            ) from None

    def _other_rows(self, queue: TargetQueue, what: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{_shown(queue)}: partition {self.partition} was tried before, and {what}; "
            "writeMode=direct expects the same rows in the same order from each attempt, writeMode=staged takes any"
        )


def _shown(queue: TargetQueue) -> str:
    return f"topic {queue.topic}, queue {queue.group}:{queue.queue_id}"
