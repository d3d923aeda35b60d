"""Publishing what tasks have staged: once, whoever tries how often (docs/adr, exactly-once writes from Spark).

Owns the staging topic's content and the commit of one write.  A write is named by an application (a streaming query, a job) and a number
(its batch); from both comes the identity under which it is numbered in the log.

    tasks     stage their packs as messages of one tag, and tell the driver where: a ``Staged``
    commit    the manifest, a list of Staged, goes under number 0 of the write: the first manifest of a write wins, whoever wrote it
              the packs it names go to their queues, in its order, numbered from 0 in each queue
              a note that it is done, under number 1

Another attempt finds the manifest, sends the same records under the same numbers, and the log takes what it lacks.  A job without a name
makes no other attempt: ``finish`` does what its commit left (finish.py).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dledger_client import Message
from dledger_client.aio.consumer import PullConsumer
from dledger_client.producer.idempotent_writer import IdempotentWriter, SequencedRecord, sequenced
from dledger_client.producer.record_encoder import encode_messages
from dledger_wire.batches.batch import BatchView, Sequence64
from dledger_wire.checksum import crc32c
from dledger_wire.errors import (
    CorruptBatchError,
    DledgerError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from pyspark_dledger.write.staged_batches import Lane, Maker, PackReader

CONTROL_QUEUE = 0  # of the staging topic
FORMAT_VERSION = 1
MANIFEST, DONE, NEVER_NEXT = 0, 1, 1 << 20  # numbers of notes about a write
DONE_BODY = b"done"
UNNAMED_JOB = "job:"
_OWN_IDS = 1 << 62  # ids the cluster gives are log positions, far below


@dataclass(frozen=True, slots=True)
class Staged:
    """Where one task's packs are: messages of ``tag`` in one queue of the staging topic, ``first`` to ``end``, with size and crc32c of
    all their bodies."""

    group: str
    queue_id: int
    first: int
    end: int
    tag: str
    rows: int
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class WriteName:
    """``number`` counts the writes of ``application``; a later one fences off all before it."""

    application: str
    number: int

    @property
    def may_be_repeated(self) -> bool:
        """Whether there can be another attempt under this name: a job that its user gave no name has a new one each time."""
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
    """``rows`` of the write; ``resumed``: an earlier attempt had committed the manifest, ``rows`` are those of its tasks, None when it had
    done all of it: what it named may be expired by now."""

    rows: int | None
    resumed: bool


def read_manifest(body: bytes) -> tuple[WriteName, list[Staged]] | None:
    """What a note says if it is a manifest of this version."""
    try:
        loaded: dict[str, Any] = json.loads(zlib.decompress(body))
    except (zlib.error, ValueError):
        return None
    if loaded.get("version") != FORMAT_VERSION:
        return None
    return WriteName(loaded["application"], loaded["number"]), [Staged(**part) for part in loaded["parts"]]


class Publisher:
    """Commits one write.  ``control`` reads from leaders, ``staged`` from anybody."""

    def __init__(
        self, control: PullConsumer, staged: PullConsumer, sender: IdempotentWriter, maker: Maker, staging_topic: str, staging_group: str
    ) -> None:
        self._control = control
        self._staged = staged
        self._sender = sender
        self._maker = maker
        self._lane = Lane(staging_group, staging_topic, CONTROL_QUEUE)

    async def publish(self, write: WriteName, parts: Sequence[Staged]) -> Published:
        """Everything the tasks staged, or what the tasks of an earlier attempt did, also when this one has no rows.  ProducerFencedError: a
        later write was there."""
        manifest = {"version": FORMAT_VERSION, "application": write.application, "number": write.number}
        body = zlib.compress(json.dumps(manifest | {"parts": [asdict(part) for part in parts]}).encode())
        try:
            note = await self._note(write, MANIFEST, body)
        except ProducerFencedError as error:
            raise ProducerFencedError(
                f"write {write.number} of {write.application} comes after a later one of the same application; nothing was stored",
                **error.details,
            ) from None
        if note.duplicate:
            if await self._notes(write) > DONE:
                return Published(None, resumed=True)
            parts = await self._manifest_at(write, note.first_offset)
        try:
            await self._send(write, parts)
            await self._note(write, DONE, DONE_BODY)
        except DledgerError as error:
            if write.may_be_repeated:
                raise
            hint = "a part of the rows may be stored: 'dledger spark finish' stores the rest, a new write all of them again"
            raise type(error)(f"{error.message}; {hint}", **error.details) from None
        return Published(sum(part.rows for part in parts), resumed=note.duplicate)

    async def finish(self, write: WriteName, parts: Sequence[Staged]) -> bool:
        """Do what a commit that died left of its manifest's ``parts``; whether there was anything left.  Safe beside a commit that lives.

        ProducerFencedError: a later write was there; OffsetOutOfRangeError: it is too long ago."""
        notes = await self._notes(write)
        if notes > DONE:
            return False
        if notes == MANIFEST:
            raise OffsetOutOfRangeError(f"write {write.number} of {write.application} is too long ago: brokers remember it no more")
        await self._send(write, parts)
        await self._note(write, DONE, DONE_BODY)
        return True

    async def _note(self, write: WriteName, sequence: int, body: bytes) -> SequencedRecord:
        """A message about the write in the control queue."""
        message = Message(self._lane.topic, body, tags=write.tag)
        ids = self._maker.ids.take(1)
        wall_ms, born_host = self._maker.wall_ms(), self._maker.born_host
        parts = encode_messages(self._lane.topic, self._lane.queue_id, [message], ids, born_ms=wall_ms, born_host=born_host)
        record = sequenced(b"".join(parts), write.sequence(sequence))
        await self._sender.send(self._lane.group, record)
        await self._sender.flush()
        return record

    async def _manifest_at(self, write: WriteName, offset: int) -> list[Staged]:
        try:
            found = await self._control.fetch(self._lane.topic, self._lane.queue_id, offset, 1, replica_group=self._lane.group)
        except OffsetOutOfRangeError as error:
            text = f"the manifest of this write in {self._lane.topic} is expired; it cannot be finished ({error.message})"
            raise OffsetOutOfRangeError(text, **error.details) from None
        loaded = read_manifest(found[0].body) if found else None
        if loaded is None:
            raise CorruptBatchError(f"offset {offset} of {self._lane} holds no manifest of version {FORMAT_VERSION}")
        named, parts = loaded
        if named != write:
            raise InvalidArgumentError(f"applications {write.application!r} and {named.application!r} have one id; rename one")
        return parts

    async def _notes(self, write: WriteName) -> int:
        """How many of the write's notes there are.  Asked of the table of producers, which outlives the notes: a number that cannot be next
        is refused with the one that is."""
        try:
            await self._note(write, NEVER_NEXT, b"")
        except OutOfOrderSequenceError as error:
            return error.detail_int("expected")
        raise CorruptBatchError(f"{self._lane}: number {NEVER_NEXT} of write {write.number} of {write.application} was taken")

    async def _send(self, write: WriteName, parts: Sequence[Staged]) -> None:
        taken: dict[Lane, int] = {}
        for part in parts:
            async for group, record in self._packs(part):
                view = BatchView(memoryview(record))
                lane = Lane(group, view.topic, view.queue_id)
                first = taken.get(lane, 0)
                taken[lane] = first + view.count
                await self._sender.send(group, sequenced(record, write.sequence(first)))
        await self._sender.flush()

    async def _packs(self, part: Staged) -> AsyncIterator[tuple[str, bytes]]:
        """The packs of one task, in order.  OffsetOutOfRangeError when they are no longer held, CorruptBatchError when bytes differ."""
        reader, crc, size = PackReader(), 0, 0
        try:
            async for chunk in self._staged.read_chunks(
                self._lane.topic, part.queue_id, part.first, part.end, replica_group=part.group, tags=part.tag
            ):
                for message in self._staged.with_tags(chunk, part.tag):
                    crc, size = crc32c(message.body, value=crc), size + len(message.body)
                    for pack in reader.feed(message.body):
                        yield pack
        except OffsetOutOfRangeError as error:
            text = f"the rows staged in {self._lane.topic} are expired; this write cannot be finished ({error.message})"
            raise OffsetOutOfRangeError(text, **error.details) from None
        reader.finish()
        if (crc, size) != (part.crc, part.size_bytes):
            raise CorruptBatchError(f"{part}: found {size} bytes with crc {crc:#010x}")
