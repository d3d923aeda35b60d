"""Publishes staged batches exactly once, across retries (ADR 7).

Owns the content of the staging topic and the commit of one write.  A write is identified by an application (a streaming
query, a job) and a number (the batch); both together give the producer id and epoch under which the log deduplicates
it.

    tasks     stage their batches as messages with one tag, and report the range to the driver: a ``StagedRange``
    commit    1. the manifest, a list of StagedRange, with sequence number 0: the first manifest of a write wins
              2. the staged batches, to their queues, in the manifest's order, with sequence numbers from 0 per queue;
                 to the replica groups side by side
              3. a done marker, with sequence number 1

A retry finds the manifest and sends the same records with the same sequence numbers; the log stores only the missing
ones.  A job without a name has no retry: ``dledger spark finish`` completes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import zlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from dledger_client import Message
from dledger_client.aio.consumer import PullConsumer
from dledger_client.producer.idempotent_writer import IdempotentWriter, SequencedRecord, sequenced
from dledger_client.producer.record_encoder import encode_messages
from dledger_wire import strict_json
from dledger_wire.batches.batch import BatchView, Sequence64
from dledger_wire.checksum import crc32c
from dledger_wire.errors import (
    CorruptBatchError,
    CorruptFrameError,
    DledgerError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from dledger_wire.frames.compress import decompress
from dledger_wire.status import Compression
from pyspark_dledger.write.staged_batches import FrameStamp, StagedBatchReader, TargetQueue
from pyspark_dledger.write.staging_topic import CONTROL_QUEUE
from pyspark_dledger.write.targets import explaining_fewer_queues

FORMAT_VERSION = 1
MANIFEST, DONE, NEVER_NEXT_SEQUENCE = 0, 1, 1 << 20  # sequence numbers of control messages of a write
DONE_BODY = b"done"
UNNAMED_JOB, QUERY = "job:", "query:"  # what applications begin with
SEVERAL_GROUPS = ""  # a target
GROUPS_AT_ONCE = 16  # each has some 16 MiB under way
_OWN_IDS = 1 << 62  # producer ids assigned by the cluster are log positions, far below

MAX_MANIFEST_BYTES = 64 << 20  # opened
MAX_TOPICS, SHOWN_TOPICS = 1_000, 5  # that a manifest names, that an error lists


@dataclass(frozen=True, slots=True)
class StagedRange:
    """The staged batches of one task: messages with ``tag`` in [``first``, ``end``) of one queue of the staging topic,
    with total size and crc32c of their bodies.  ``target``: the replica group of all the queues that they are for; "" if
    they are for several groups.
    """

    group: str
    queue_id: int
    first: int
    end: int
    tag: str
    rows: int
    size_bytes: int
    crc: int
    target: str = ""


@dataclass(frozen=True, slots=True)
class WriteName:
    """``number`` counts the writes of ``application``; a later one fences all earlier ones."""

    application: str
    number: int

    @property
    def may_be_repeated(self) -> bool:
        """Whether a retry can have this name; a job without txnAppId gets a new name for each run."""
        return not self.application.startswith(UNNAMED_JOB)

    @property
    def producer_id(self) -> int:
        digest = hashlib.sha256(self.application.encode()).digest()
        return _OWN_IDS | int.from_bytes(digest[:8], "big") % _OWN_IDS

    @property
    def tag(self) -> str:
        return hashlib.sha256(f"{self.application}/{self.number}".encode()).hexdigest()[:16]

    def sequence(self, first: int) -> Sequence64:
        return Sequence64(self.producer_id, self.number, first)


@dataclass(frozen=True, slots=True)
class Published:
    """Result of a commit.  ``resumed``: an earlier attempt had committed the manifest; ``rows`` are those of its tasks,
    or None if it had completed and its staged data may be expired.
    """

    rows: int | None
    resumed: bool


class Manifest(NamedTuple):
    """``topic``: the option of the write; "" when rows name theirs; None: not known.  ``topics``: those of
    its rows; none when they are not known, or too many.
    """

    write: WriteName
    parts: Sequence[StagedRange]
    topic: str | None = None
    topics: Sequence[str] = ()


def read_manifest(body: bytes) -> Manifest | None:
    """Decode a control message if it is a manifest of a known version."""
    try:
        loaded: dict[str, Any] = strict_json.parse(decompress(body, Compression.ZLIB, limit=MAX_MANIFEST_BYTES))
        if loaded["version"] != FORMAT_VERSION:
            return None
        parts = [StagedRange(**part) for part in loaded["parts"]]
        topic, topics = loaded.get("topic"), [str(each) for each in loaded.get("topics", ())]
        return Manifest(WriteName(loaded["application"], loaded["number"]), parts, topic if isinstance(topic, str) else None, topics)
    except (CorruptFrameError, ValueError, TypeError, KeyError):  # any writer to the topic may write anything
        return None


class Publisher:
    """Commits one write.  ``control`` reads from leaders, ``staged`` from any replica."""

    def __init__(
        self,
        control: PullConsumer,
        staged: PullConsumer,
        sender: IdempotentWriter,
        maker: FrameStamp,
        staging_topic: str,
        staging_group: str,
    ) -> None:
        self._control = control
        self._staged = staged
        self._sender = sender
        self._maker = maker
        self._queue = TargetQueue(staging_group, staging_topic, CONTROL_QUEUE)

    async def publish(
        self, write: WriteName, parts: Sequence[StagedRange], topic: str | None = None, topics: Collection[str] = ()
    ) -> Published:
        """Publish what the tasks staged, or what an earlier attempt staged, even if this one has no rows.  ``topic``: the option;
        ``topics``: those of the rows.

        Raises ProducerFencedError if a later write of the application exists, InvalidArgumentError if this one was to another topic.
        """
        named = sorted(topics) if len(topics) <= MAX_TOPICS else []
        manifest = {"version": FORMAT_VERSION, "application": write.application, "number": write.number, "topic": topic, "topics": named}
        body = zlib.compress(json.dumps(manifest | {"parts": [asdict(part) for part in parts]}).encode())
        await self._check_staged(write, parts)
        try:
            note = await self._note(write, MANIFEST, body)
        except ProducerFencedError as error:
            raise ProducerFencedError(
                f"write {write.number} of {write.application} is older than a committed write of the same application; nothing was stored",
                **error.details,
            ) from None
        if note.duplicate:
            is_done = await self._notes(write) > DONE
            earlier = await self._earlier(write, note.first_offset, is_done=is_done)
            if parts:
                _check_topic(earlier, topic, named)
            if is_done:
                return Published(None, resumed=True)
            parts = earlier.parts
        try:
            await self._send(write, parts)
            await self._note(write, DONE, DONE_BODY)
        except DledgerError as error:
            if write.may_be_repeated:
                raise
            hint = "a part of the rows may be stored: 'dledger spark finish' stores the rest, a new write all of them again"
            raise type(error)(f"{error.message}; {hint}", **error.details) from None
        return Published(sum(part.rows for part in parts), resumed=note.duplicate)

    async def finish(self, write: WriteName, parts: Sequence[StagedRange]) -> bool:
        """Do what a commit that died left of its manifest's ``parts``; whether there was anything left.  Safe beside a
        commit that lives.

        ProducerFencedError: a later write was there; OffsetOutOfRangeError: it is too long ago.
        """
        notes = await self._notes(write)
        if notes > DONE:
            return False
        if notes == MANIFEST:
            raise OffsetOutOfRangeError(f"write {write.number} of {write.application} is too long ago: brokers no longer remember it")
        try:
            await self._send(write, parts)
            await self._note(write, DONE, DONE_BODY)
        except DledgerError:
            await self._sender.discard()  # another write may be next
            raise
        return True

    async def _check_staged(self, write: WriteName, parts: Sequence[StagedRange]) -> None:
        """Raise OffsetOutOfRangeError when staged rows are gone already: once a manifest names them, this write could never be done."""
        held = await self._control.offsets(self._queue.topic, partial=True) if parts else {}
        for part in parts:
            queue = held.get((part.group, part.queue_id))
            if queue is None or queue.min_offset <= part.first <= part.end <= queue.max_offset or await self._has(part):
                continue
            if await self._notes(write) > MANIFEST:
                return  # those of an earlier attempt count
            raise OffsetOutOfRangeError(
                f"rows staged in {self._queue.topic} are gone: it was deleted, or they expired, before the commit; nothing was stored, "
                "so the write can be made again",
                min_offset=queue.min_offset,
                max_offset=queue.max_offset,
            )

    async def _has(self, part: StagedRange) -> bool:
        """Whether the staging topic has a task's rows, as far as a leader says that makes sure that it leads."""
        where = (self._queue.topic, part.queue_id)
        try:
            found = [
                await self._control.fetch(*where, offset, 1, replica_group=part.group, linearizable=True)
                for offset in (part.first, part.end - 1)
            ]
        except OffsetOutOfRangeError:
            return False
        return all(found)

    async def _note(self, write: WriteName, sequence: int, body: bytes) -> SequencedRecord:
        """A message about the write in the control queue."""
        message = Message(self._queue.topic, body, tags=write.tag)
        ids = self._maker.ids.take(1)
        wall_ms, born_host = self._maker.wall_ms(), self._maker.born_host
        parts = encode_messages(self._queue.topic, self._queue.queue_id, [message], ids, born_ms=wall_ms, born_host=born_host)
        record = sequenced(b"".join(parts), write.sequence(sequence))
        await self._sender.send(self._queue.group, record)
        await self._sender.flush(self._queue.group)
        return record

    async def _earlier(self, write: WriteName, offset: int, *, is_done: bool) -> Manifest:
        """The manifest of an earlier attempt.  Of one that is done it may be gone: what is not known of it does not matter then."""
        unknown = Manifest(write, [])
        if is_done and offset < 0:
            return unknown
        try:
            return await self._manifest_at(write, offset)
        except (OffsetOutOfRangeError, CorruptBatchError):
            if is_done:
                return unknown
            raise

    async def _manifest_at(self, write: WriteName, offset: int) -> Manifest:
        try:
            found = await self._control.fetch(self._queue.topic, self._queue.queue_id, offset, 1, replica_group=self._queue.group)
        except OffsetOutOfRangeError as error:
            text = f"the manifest of this write in {self._queue.topic} has expired; the write cannot be completed ({error.message})"
            raise OffsetOutOfRangeError(text, **error.details) from None
        loaded = read_manifest(found[0].body) if found else None
        if loaded is None:
            raise CorruptBatchError(f"offset {offset} of {self._queue} has no manifest of version {FORMAT_VERSION}")
        if loaded.write != write:
            raise InvalidArgumentError(
                f"applications {write.application!r} and {loaded.write.application!r} have the same producer id; rename one"
            )
        return loaded

    async def _notes(self, write: WriteName) -> int:
        """Number of control messages of the write.  Read from the producer table, which outlives the messages: a
        sequence number that is out of order is rejected with the expected one.
        """
        try:
            await self._note(write, NEVER_NEXT_SEQUENCE, b"")
        except OutOfOrderSequenceError as error:
            return error.detail_int("expected")
        raise CorruptBatchError(
            f"{self._queue}: sequence number {NEVER_NEXT_SEQUENCE} of write {write.number} of {write.application} was accepted"
        )

    async def _send(self, write: WriteName, parts: Sequence[StagedRange]) -> None:
        """Publish the parts: those for each replica group in order, all groups at once."""
        lanes: dict[str, list[StagedRange]] = {}
        for part in parts:
            lanes.setdefault(part.target, []).append(part)
        if SEVERAL_GROUPS in lanes:
            lanes = {SEVERAL_GROUPS: list(parts)}
        slots = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def send_lane(target: str, lane: Sequence[StagedRange]) -> None:
            async with slots:
                await self._send_lane(write, target, lane)

        # A group that fails does not stop the others: what they have stored need not be sent by the next attempt.
        ended = await asyncio.gather(*(send_lane(*each) for each in lanes.items()), return_exceptions=True)
        for error in ended:
            if error is not None:
                with explaining_fewer_queues():
                    raise error

    async def _send_lane(self, write: WriteName, target: str, parts: Sequence[StagedRange]) -> None:
        """Publish parts one after the other; they share no queue with other lanes."""
        taken: dict[TargetQueue, int] = {}
        for part in parts:
            async for group, record in self._staged_batches(part):
                if target not in (group, SEVERAL_GROUPS):
                    raise CorruptBatchError(f"{part}: found a batch for {group}")
                view = BatchView(memoryview(record))
                queue = TargetQueue(group, view.topic, view.queue_id)
                first = taken.get(queue, 0)
                taken[queue] = first + view.count
                await self._sender.send(group, sequenced(record, write.sequence(first)))
        await self._sender.flush(target or None)

    async def _staged_batches(self, part: StagedRange) -> AsyncIterator[tuple[str, memoryview]]:
        """Staged batches of one task, in order.  Raises OffsetOutOfRangeError if expired, CorruptBatchError if bytes
        differ.
        """
        reader, crc, size = StagedBatchReader(), 0, 0
        try:
            async for chunk in self._staged.read_chunks(
                self._queue.topic, part.queue_id, part.first, part.end, replica_group=part.group, tags=part.tag
            ):
                for message in self._staged.with_tags(chunk, part.tag):
                    crc, size = crc32c(message.body, value=crc), size + len(message.body)
                    for staged in reader.feed(message.body):
                        yield staged
        except OffsetOutOfRangeError as error:
            text = f"the rows staged in {self._queue.topic} have expired; the write cannot be completed ({error.message})"
            raise OffsetOutOfRangeError(text, **error.details) from None
        reader.finish()
        if (crc, size) != (part.crc, part.size_bytes):
            raise CorruptBatchError(f"{part}: found {size} bytes with crc {crc:#010x}")


def _check_topic(earlier: Manifest, topic: str | None, topics: Sequence[str]) -> None:
    """Rows for other topics would be taken for repeated ones, and be lost without a word."""
    # A batch of a query may name other topics when it runs again, as those of the day.
    is_query = earlier.write.application.startswith(QUERY)
    if None in (earlier.topic, topic) or (is_query and earlier.topic == topic):
        return
    are_others = set(earlier.topics).isdisjoint(topics) if earlier.topics and topics else earlier.topic != topic
    if not are_others:
        return
    write, before = earlier.write, _shown(earlier.topic, earlier.topics)
    expected = f"a txnAppId for each topic, or {before} if this is the same write again"
    if is_query:
        expected = (
            f"{before} until this batch is done, if the query is to write elsewhere from now on, or a checkpoint of its own, not a copy"
        )
    raise InvalidArgumentError(
        f"write {write.number} of {write.application} was made to {before}, so nothing was stored in {_shown(topic, topics)}; "
        f"expected {expected}"
    )


def _shown(topic: str | None, topics: Sequence[str]) -> str:
    if len(topics) == 1 or (topic and not topics):
        return f"topic {topics[0] if topics else topic}"
    more = ", ..." if len(topics) > SHOWN_TOPICS else ""
    return f"topics {', '.join(topics[:SHOWN_TOPICS])}{more}" if topics else "the topics that its rows name"
