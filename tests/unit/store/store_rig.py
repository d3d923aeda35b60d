"""What the tests of the store share: a store over a real log on the crash disk, without Raft: whoever appends also commits."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from dledger.core.types import EntryId, EntryKind
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.replica.proposals import Payload
from dledger.runtime.env import Disk, Environment, Network
from dledger_wire.batches.batch import Sequence64, encode_batch_parts, stamp_unique
from dledger_wire.check import require
from dledger_wire.frames.frame import Frame, decode_frame, encode_frame
from dledger_wire.java_hash import java_hash, key_hash
from dledger_wire.layout import ENTRY_HEADER_SIZE
from store.append.prepared import BatchOutcome
from store.commands.command import Command
from store.commands.topics import CreateTopic
from store.queues.queue_files import Units
from store.settings import StoreSettings
from store.state.json_pieces import pieces
from store.state.sequences import QueueKey
from store.store import MessageStore
from tests.waiting import LIMIT_S

LOG = LogConfig(segment_bytes=4096, cache_bytes=2000, verify_bytes=None, fill_window_bytes=0, units_sync_delay_ms=0, piece_bytes=512)
# Nothing happens by itself: the tests flush and save when they want to.
NEVER_MS = 1_000_000_000
TINY = StoreSettings(
    mappedFileSizeConsumeQueue=7 * 20,
    flushIntervalConsumeQueue=NEVER_MS,
    snapshot_interval_ms=NEVER_MS,
    cleanResourceInterval=NEVER_MS,
    cleanFileForciblyAfter=0,
    queue_tail_units=5,
    open_files_limit=4,
    store_host="10.1.2.3:7000",
    maxHashSlotNum=11,
    maxIndexNum=40,
)


ResultT = TypeVar("ResultT")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), LIMIT_S)

    asyncio.run(bounded())


class StepClock:
    """A millisecond passes with every look."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        self.now_ms += 1
        return self.now_ms


def frames_of(topic: str, queue_id: int, bodies: Sequence[bytes], **fields: Any) -> list[Frame]:
    """Messages; ``tags``, ``keys`` and ``unique`` are lists as long as ``bodies``; ``more`` are properties of each."""
    tags, keys, unique = (fields.get(name) or [""] * len(bodies) for name in ("tags", "keys", "unique"))
    frames = []
    for body, tag, key, unique_key in zip(bodies, tags, keys, unique, strict=True):
        named = {"UNIQ_KEY": unique_key, "TAGS": tag, "KEYS": key}
        properties = {name: value for name, value in named.items() if value} | (fields.get("more") or {})
        frames.append(Frame(queue_id, 0, 0, body, topic, properties, born_timestamp=1))
    return frames


def batch_of(topic: str, queue_id: int, bodies: Sequence[bytes], *, sequence: Sequence64 | None = None, **fields: Any) -> bytes:
    """One batch record as a client sends it."""
    recognised = bool(fields.pop("recognised", False))
    return batch_of_frames(topic, frames_of(topic, queue_id, bodies, **fields), sequence=sequence, recognised=recognised)


def batch_of_frames(topic: str, messages: Sequence[Frame], *, sequence: Sequence64 | None = None, recognised: bool = False) -> bytes:
    """One batch record of messages for the queue that they name."""
    queue_id = messages[0].queue_id
    packed = [encode_frame(message) for message in messages]
    words = [(number, word) for number, message in enumerate(messages) for word in message.properties.get("KEYS", "").split()]
    unique = [message.properties.get("UNIQ_KEY") for message in messages]
    parts = encode_batch_parts(
        topic,
        queue_id,
        b"".join(packed),
        np.array([len(frame) for frame in packed], np.uint32),
        np.array([java_hash(message.properties.get("TAGS", "")) for message in messages], np.int32),
        np.array([key_hash(topic, key) if key else 0 for key in unique], np.int32),
        key_owners=np.array([number for number, _ in words], np.uint32),
        key_hashes=np.array([key_hash(topic, word) for _, word in words], np.int32),
        sequence=sequence,
    )
    if recognised:
        stamp_unique(parts)
    return b"".join(parts)


class RigHead:
    """Cuts the log's head as a lone node would."""

    def __init__(self, log: Log, store: MessageStore) -> None:
        self.log = log
        self.store = store
        self.limit: int | None = None
        self.is_low = self.sheds = False
        self.kept = (0, 0)

    def may_hand_over(self) -> bool:
        return False

    def kept_elsewhere(self) -> tuple[int, int]:
        return self.kept

    def trim_limit(self) -> int:
        return self.store.applied_index if self.limit is None else self.limit

    async def truncate_head(self, upto_index: int) -> int:
        return await self.log.trim(min(upto_index + 1, self.trim_limit()))

    def low_on_space(self, on: bool, *, sheds: bool = False) -> None:
        self.is_low, self.sheds = on, sheds


class StoreRig:
    """One replica that is its own majority: ``append`` seals into the log, ``commit`` syncs and applies."""

    def __init__(self, log: Log, store: MessageStore, disk: Disk) -> None:
        self.log = log
        self.store = store
        self.disk = disk
        self.head = RigHead(log, store)
        store.expire_with(self.head, lambda: 0)
        self.term = max(1, log.last.term)

    @classmethod
    async def open(cls, disk: Disk, settings: StoreSettings = TINY, *, log: LogConfig = LOG, clock: StepClock | None = None) -> StoreRig:
        """Open log and store, and apply what the snapshot does not hold."""
        opened, report = await Log.open(disk, log)
        require(not report.damaged, "a damaged log: %s", report.damaged)
        env = Environment(clock or StepClock(), random.Random(0), disk, cast(Network, None))
        store = MessageStore(settings, env, role_changed=lambda _event: None, failed=_fail)
        rig = cls(opened, store, disk)
        await store.recover(opened)
        await rig.apply(opened.last.index)
        store.become_master(rig.term)
        return rig

    def append(self, payload: Payload) -> EntryId:
        size = ENTRY_HEADER_SIZE + payload.size_bytes
        pos = self.log.place(size)
        index = self.log.last.index + 1
        entry = self.log.encode(self.term, EntryKind.NORMAL, payload.seal(pos + ENTRY_HEADER_SIZE, index, self.term))
        require(entry.pos == pos and entry.size_bytes == size, "entry at %d of %d bytes", entry.pos, entry.size_bytes)
        self.log.append(entry)
        return entry.id

    def promise(self) -> None:
        """What a node does before its first entry of a term."""
        self.log.save_hard_state(self.term, None)

    async def sync(self) -> None:
        await self.log.flush(sync=True)

    async def apply(self, upto: int) -> None:
        """Apply up to entry ``upto``, in batches as a node does."""
        while self.store.applied_index < upto:
            await self.store.apply(await self.log.read(self.store.applied_index + 1, 1500, upto))

    async def commit(self) -> None:
        await self.sync()
        await self.apply(self.log.last.index)

    async def send(self, records: bytes) -> list[BatchOutcome]:
        """Store a payload and commit it."""
        prepared = self.store.prepare(records)
        if prepared.size_bytes:
            self.append(prepared)
        await self.commit()
        return prepared.outcomes

    async def command(self, command: Command[ResultT]) -> ResultT:
        prepared = self.store.command(command)
        self.append(prepared)
        await self.commit()
        return prepared.result()

    async def topic(self, name: str = "t", queues: int = 2) -> None:
        self.promise()
        await self.command(CreateTopic(name=name, write_queues=queues))

    async def save(self) -> bool:
        """Write a snapshot now."""
        persistence = self.store._persistence
        require(persistence is not None, "the store is not open")
        return bool(persistence is not None and await persistence.save())

    async def save_index(self) -> bool:
        """Make the key index durable now, log and all."""
        index = self.store.index
        await self.sync()
        # Between two additions: only then may it be persisted.
        return index is not None and await index.caught_up(self.store.applied_index, 10) and await index.files.persist()

    @property
    def saved_index(self) -> int:
        persistence = self.store._persistence
        return persistence.saved_index if persistence is not None else 0

    async def close(self) -> None:
        await self.store.close()
        await self.log.close()

    async def entries(self) -> list[RawEntry]:
        entries: list[RawEntry] = []
        while (index := self.log.first_index + len(entries)) <= self.log.last.index:
            entries += await self.log.read(index, 4096, self.log.last.index)
        return entries

    async def units(self, key: QueueKey) -> Units:
        """Every unit of a queue, through its files and memory."""
        queue = self.store.queues.get(key)
        if queue is None:
            return np.empty(0)
        pieces = []
        offset = queue.min_offset
        while offset < queue.max_offset:
            pieces.append(await queue.read(offset, 1000))
            offset += len(pieces[-1])
        return np.concatenate(pieces) if pieces else np.empty(0)

    async def read_all(self, key: QueueKey, *, max_bytes: int = 700) -> list[Frame]:
        """Every message of a queue, through the store's reads."""
        low, high = self.store.reader.bounds(*key)
        frames: list[Frame] = []
        while low + len(frames) < high:
            chunk = await self.store.read(*key, low + len(frames), max_bytes=max_bytes)
            require(chunk.count, "nothing at %d of %d", low + len(frames), high)
            data, at = b"".join(chunk.frames), 0
            for _ in range(chunk.count):
                frames.append(decode_frame(data, at))
                at += frames[-1].total_size
            require(at == len(data), "%d bytes of frames, %d bytes", at, len(data))
        return frames

    def state(self) -> dict[str, Any]:
        """Everything derived, as the next snapshot would name it."""
        snapshot = self.store._capture()
        marks = {key: (mark.min_offset, mark.max_offset, mark.last_end_pos) for key, mark in snapshot.queues.items()}
        return {
            "index": snapshot.index,
            "messages": snapshot.messages,
            "sections": {name: json.loads(b"".join(pieces(data))) for name, data in snapshot.sections.items()},
            "sequences": self.store.sequences.dump(),
            "queues": marks,
        }


def _fail(error: BaseException) -> None:
    raise error
