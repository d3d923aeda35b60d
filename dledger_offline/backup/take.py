"""Taking a backup: from one replica of each group, what the repository does not have yet, and the manifest last.

Owns what is asked of which replica.  Followers come first, the leader last.  When a replica fails, the next one goes on behind the last
part that is whole: committed bytes are the same on all of them.  Every entry is checked on its way, and that the log continues the one of
the backup before.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING

from dledger.log.start import LogStart
from dledger.snapshot.plan import PlanSegment, SnapshotPlan
from dledger.snapshot.receiver import EntryCheck
from dledger.snapshot.source import Budget
from dledger_client.admin.replica_comparison import Replica, ReplicaCopy
from dledger_offline.backup.manifest import GroupBackup, Manifest, Part, SegmentCopy, StateFile, moment_of_id, time_of_id
from dledger_offline.backup.repository import UNKNOWN_SIZE, PartWriter, Repository
from dledger_wire.checksum import crc32c
from dledger_wire.clock import SystemClock
from dledger_wire.errors import (
    AuthenticationFailedError,
    CorruptEntryError,
    DledgerError,
    InvalidArgumentError,
    NotReadyError,
    PermissionDeniedError,
    StorageDamagedError,
    StorageFailedError,
    StorageFullError,
    UnreachableError,
)
from dledger_wire.version import installed_version
from store.durability.snapshots import APPLIED, config_path, described

if TYPE_CHECKING:
    from dledger_client.admin.cluster_status import ReplicaGroupStatus

AFTER_THE_NEWEST = timedelta(milliseconds=1)
# What another replica does not make better.
_FINAL = (PermissionDeniedError, AuthenticationFailedError, StorageFailedError, StorageFullError)


@dataclass(frozen=True, slots=True)
class _End:
    """Where a log goes on: the last entry, and what the next one must continue."""

    index: int
    term: int
    pos: int
    chain_crc: int

    @property
    def entry(self) -> tuple[int, int, int]:
        return self.index, self.term, self.chain_crc


def _begin_of(start: LogStart) -> _End:
    """What the first entry of a log goes on from."""
    return _End(start.first_index - 1, start.before_term, start.first_pos, start.before_chain_crc)


def _end_of(part: Part) -> _End:
    return _End(part.last_index, part.last_term, part.end_pos, part.chain_crc)


@dataclass(slots=True)
class Taken:
    """What was done for one group."""

    backup: GroupBackup
    added_bytes: int


def new_id(known: Iterable[str]) -> str:
    """The id of a backup that begins now: ids sort by time, and behind those that there are, also when the clock was ahead for a while."""
    newest = max((moment_of_id(backup_id) for backup_id in known), default=datetime.min.replace(tzinfo=UTC))
    return f"{time_of_id(max(datetime.now(UTC), newest + AFTER_THE_NEWEST))}-{secrets.token_hex(4)}"


def newest_of(repository: Repository, group: str, left_aside: Callable[[DledgerError], None]) -> GroupBackup | None:
    """The newest backup of a group; ``left_aside`` gets damaged ones."""
    for backup_id in reversed(repository.ids()):
        try:
            found = repository.manifest(backup_id).groups.get(group)
        except StorageDamagedError as error:
            left_aside(error)
            continue
        if found is not None:
            return found
    return None


def sources(cluster: str, status: ReplicaGroupStatus, node_id: str = "") -> list[Replica]:
    """The nodes to read from, in order; only ``node_id`` if it is given.  UnreachableError when none answers."""
    members = [node for node in status.nodes if status.is_member(node.id) and (not node_id or node.id == node_id)]
    if node_id and not members:
        raise InvalidArgumentError(f"replica group {status.name} has no member {node_id!r}; it has {', '.join(_members(status))}")
    reachable = [node for node in members if node.reachable]
    if not reachable:
        raise UnreachableError(f"replica group {status.name}: no node reachable at {', '.join(node.address for node in members)}")
    leader = status.leader.id if status.leader is not None else ""
    reachable.sort(key=lambda node: (node.id == leader, -node.applied_index))
    return [Replica(cluster, status.name, node.id, node.address) for node in reachable]


def _members(status: ReplicaGroupStatus) -> tuple[str, ...]:
    return (*status.voters, *status.learners)


@dataclass(slots=True)
class GroupTaker:
    """Takes the backup of one group.  ``before``: its newest backup; ``progress`` gets the bytes that arrived, ``left_aside`` files of
    the backup before that are damaged."""

    repository: Repository
    backup_id: str
    group: str
    before: GroupBackup | None
    bytes_per_s: int = 0
    progress: Callable[[int], None] = lambda _size: None
    left_aside: Callable[[DledgerError], None] = lambda _error: None
    added_bytes: int = 0
    _known: dict[int, list[Part]] = field(default_factory=dict)  # of each segment: what the repository has of it, from its start on
    _continues: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # of each segment of the backup before: what it goes on from
    _budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        self._budget = Budget(SystemClock(), self.bytes_per_s)

    async def take(self, replicas: Iterable[Replica]) -> Taken:
        """From the first of them that can give it.  NotReadyError says why none could."""
        await asyncio.to_thread(self._recall)
        problems = []
        for replica in replicas:
            try:
                async with ReplicaCopy(replica, self.backup_id) as copy:
                    return Taken(await self._from(copy), self.added_bytes)
            except _FINAL:
                raise
            except DledgerError as error:
                problems.append(f"{replica.node_id}: {error.message}")
        raise NotReadyError(f"replica group {self.group} was not backed up: {'; '.join(problems)}")

    async def _from(self, copy: ReplicaCopy) -> GroupBackup:
        plan = SnapshotPlan.decode(await copy.plan())
        before = self.before
        if before is not None and plan.last.index < before.last_index:
            raise NotReadyError(f"it has applied entry {plan.last.index}, {self.repository.url} has entries up to {before.last_index}")
        await self._copy_log(copy, plan)
        segments = tuple(
            SegmentCopy(start_pos=segment.start_pos, first_index=segment.first_index, parts=tuple(self._parts_of(segment)))
            for segment in plan.segments
        )
        state, queue_file_units, stored_ms = await self._copy_state(copy, plan)
        configuration = plan.configuration.encode().decode() if plan.configuration is not None else ""
        return GroupBackup(
            node=copy.replica.node_id,
            first_index=plan.start.first_index,
            first_pos=plan.start.first_pos,
            before_term=plan.start.before_term,
            before_chain_crc=plan.start.before_chain_crc,
            last_index=plan.last.index,
            last_term=plan.last.term,
            stored_ms=stored_ms,
            configuration=configuration,
            configuration_index=plan.configuration_index,
            queue_file_units=queue_file_units,
            segments=segments,
            state=state,
        )

    # The log

    def _recall(self) -> None:
        """What the repository has of the log: the parts of the backup before, in each segment up to one that is gone or cut short."""
        before, self._known, self._continues = self.before, {}, {}
        if before is None:
            return
        sizes = self.repository.sizes()
        end = _begin_of(before.start)
        for segment in before.segments:
            self._continues[segment.start_pos] = end.entry
            whole = list(takewhile(lambda part: sizes.get(part.file, 0) in (part.size_bytes, UNKNOWN_SIZE), segment.parts))
            self._known[segment.start_pos] = whole
            if len(whole) < len(segment.parts):
                place = self.repository.place(segment.parts[len(whole)].file)
                text = f"{place} is missing or cut short; it is read again, and backups that need that file stay damaged"
                self.left_aside(StorageDamagedError(text, file=place, pos=0))
            end = _end_of(segment.parts[-1])

    def _parts_of(self, segment: PlanSegment) -> list[Part]:
        """The parts that are here of a segment, from its start on without a gap."""
        return self._known.setdefault(segment.start_pos, [])

    async def _copy_log(self, copy: ReplicaCopy, plan: SnapshotPlan) -> None:
        """Read what is not here.  There may be gaps anywhere: another replica's log may begin earlier, and files may be gone."""
        end, pieces = _begin_of(plan.start), None
        for segment in plan.segments:
            if self._continues.get(segment.start_pos, end.entry) != end.entry:
                raise CorruptEntryError(self._other_log(end))
            parts = self._parts_of(segment)
            end = _end_of(parts[-1]) if parts else end
            if end.pos > segment.end_pos:
                raise CorruptEntryError(self._other_log(end))
            if parts and end.pos == segment.end_pos:
                pieces = None  # what follows is another stretch
                continue
            pos = max(end.pos, segment.start_pos)
            pieces = copy.log(pos) if pieces is None else pieces
            parts.append(await self._copy_part(pieces, EntryCheck(end.index + 1, end.term, pos, end.chain_crc, segment.end_pos), end))
            end = _end_of(parts[-1])

    async def _copy_part(self, pieces: AsyncIterator[tuple[int, memoryview]], check: EntryCheck, end: _End) -> Part:
        """The rest of a segment, behind ``end``."""
        part = _PartCopy(self.repository, f"{self.group}/log", self.backup_id, check)
        try:
            async for at, data in pieces:
                await part.take(at, data)
                self.progress(len(data))
                await self._budget.take(len(data))
                if part.done:
                    break
            made = await part.finished()
        except CorruptEntryError as error:
            if self._is_of_before(end) and check.index == end.index + 1:  # the first new entry does not fit
                raise CorruptEntryError(f"{self._other_log(end)} ({error.message})") from None
            raise
        finally:
            await part.end()
        self.added_bytes += made.size_bytes
        return made

    def _is_of_before(self, end: _End) -> bool:
        """Whether it is an entry of the backup before."""
        return self.before is not None and self.before.first_index <= end.index <= self.before.last_index

    def _other_log(self, end: _End) -> str:
        return (
            f"its log does not continue entry {end.index} of the newest backup: {self.repository.url} has backups of another cluster of "
            "that name, such as one before a restore; give this cluster a folder of its own"
        )

    # The state

    async def _copy_state(self, copy: ReplicaCopy, plan: SnapshotPlan) -> tuple[tuple[StateFile, ...], int, int]:
        """The files, and what the snapshot says: units of a queue's file, time of the newest message."""
        files, units, stored_ms = [], 0, 0
        for file in plan.files:
            if file.size_bytes < 0:
                continue
            data = await copy.state(file.path, file.size_bytes)
            if crc32c(data) != file.crc:
                raise CorruptEntryError(f"{file.path} does not match the plan")
            if file.path == config_path(APPLIED):
                snapshot = described(data)
                if snapshot is None or (snapshot.index, snapshot.term) != (plan.last.index, plan.last.term):
                    raise CorruptEntryError(f"{file.path} is not of entry {plan.last.index}")
                units, stored_ms = snapshot.queue_file_units, snapshot.store_ms
            target = f"{self.group}/state/{self.backup_id}/{file.path}"
            await asyncio.to_thread(_store, self.repository, target, data)
            self.added_bytes += len(data)
            self.progress(len(data))
            checksum = hashlib.sha256(data).hexdigest()
            files.append(StateFile(path=file.path, file=target, size_bytes=len(data), sha256=checksum))
        if not units:
            raise CorruptEntryError(f"no {APPLIED} among the files of the state")
        return tuple(files), units, stored_ms


def _store(repository: Repository, path: str, data: bytes) -> None:
    with repository.create(path) as file:
        file.write(data)


class _PartCopy:
    """One part of the log on its way into the repository; ``end`` it, and it is there only if it was ``finished``."""

    def __init__(self, repository: Repository, folder: str, backup_id: str, check: EntryCheck) -> None:
        self._path = f"{folder}/{check.pos:020d}-{check.end_pos:020d}-{backup_id}"
        self._repository, self._check, self._end_pos = repository, check, check.end_pos
        self._start_pos = self._pos = check.pos
        self._sum = hashlib.sha256()
        self._file: PartWriter | None = None
        self._whole = False

    @property
    def done(self) -> bool:
        return self._pos == self._end_pos

    async def take(self, pos: int, data: memoryview) -> None:
        """The next piece.  CorruptEntryError when it is not what must stand there."""
        if pos != self._pos or pos + len(data) > self._end_pos or not data:
            raise CorruptEntryError(f"a piece of {len(data)} bytes at {pos}, expected one at {self._pos}")
        self._check.feed(data)
        await asyncio.to_thread(self._write, data)
        self._pos += len(data)

    def _write(self, data: memoryview) -> None:
        if self._file is None:
            self._file = self._repository.create(self._path)
        self._sum.update(data)
        self._file.write(data)

    async def finished(self) -> Part:
        """It is whole.  UnreachableError when its bytes did not all come."""
        if not self.done or self._file is None:
            raise UnreachableError(f"the log ended at position {self._pos}, expected {self._end_pos}")
        check = self._check
        if check.pos != self._end_pos:
            raise CorruptEntryError(f"the entries of the segment end at {check.pos}, expected {self._end_pos}")
        await asyncio.to_thread(self._file.close)
        self._whole = True
        size = self._end_pos - self._start_pos
        place = {"file": self._path, "pos": self._start_pos, "size_bytes": size, "sha256": self._sum.hexdigest()}
        return Part(**place, last_index=check.index - 1, last_term=check.term, chain_crc=check.chain_crc)  # type: ignore[arg-type]

    async def end(self) -> None:
        if self._file is not None and not self._whole:
            await asyncio.to_thread(self._file.discard)


def manifest_of(backup_id: str, cluster: str, begun_ms: int, groups: dict[str, Taken]) -> Manifest:
    """The manifest of what was taken.  ``begun_ms`` is of before the first plan: what was stored until then is in it."""
    backups = {name: taken.backup for name, taken in groups.items()}
    return Manifest(id=backup_id, cluster=cluster, software=installed_version(), created_ms=begun_ms, groups=backups)
