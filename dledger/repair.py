"""Repair of damaged entries with the bytes of a peer.

The files of all replicas are identical, so a damaged entry is fetched from a peer that has it committed, checked, and written over the
bad bytes (which are kept in ``quarantine``).  Owns both ends: serving committed entries, and repairing a log that was opened with damage.

A replica with a damaged log does not take part in the group until it is repaired: it neither votes nor acknowledges nor leads, since
what is damaged may be committed, and truncating could lose it.  Only a peer that has another entry committed at that index proves
that this one never was, nor anything written after it.  If it is the peer known by that name, and the entry's header and its index
unit agree on the entry's identity (the header and the chain, where the units are lost), the log is truncated before it, and
replication brings the rest.  If no peer can help within ``limit_s`` the start fails with the exact position.
Damage found later, when an entry is read for a peer or a consumer, is repaired the same way while the node keeps running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from dledger.core.types import EntryId, NodeId
from dledger.log import quarantine
from dledger.log.config import LogConfig
from dledger.log.entry import Header, RawEntry, parse_entry
from dledger.log.index_units import EntryPlace
from dledger.log.log import Log
from dledger.log.report import DamageKind, Finding, RecoveryReport
from dledger.log.segment import Segment, log_path
from dledger.membership.lineage import Lineage, named
from dledger.membership.peer_stores import PeerStores
from dledger.runtime.env import BLOCK_BYTES, Buffer, Environment, File, SyncFailedError, is_unreadable
from dledger.transport.link import NodeIdentity
from dledger_wire._pb import raft_pb2
from dledger_wire.errors import CorruptEntryError, DledgerError, InvalidArgumentError, StorageDamagedError
from dledger_wire.layout import ENTRY_HEADER_SIZE, FILLER, FILLER_SIZE, MAGIC_FILLER
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import connect_to
from dledger_wire.tasks import BackgroundTasks

FETCH_TIMEOUT_S = 5.0
RETRY_S = 0.5
FETCHED = (DamageKind.BAD_ENTRY, DamageKind.MISSING_ENTRY)

T = TypeVar("T")

_logger = logging.getLogger(__name__)


async def serve_entry(identity: NodeIdentity, lineage: Lineage, log: Log, commit_index: int, data: bytes) -> bytes:
    """The answer to a peer that asks for an entry; only what is committed here and whole is given out."""
    request = raft_pb2.EntryRequest()
    try:
        request.ParseFromString(data)
    except Exception as error:  # protobuf raises its own class
        raise InvalidArgumentError("malformed entry request") from error
    if (request.cluster, request.group) != (identity.cluster, identity.group):
        raise InvalidArgumentError(f"group: expected {identity.cluster}/{identity.group}, got {request.cluster}/{request.group}")
    if request.lineage != lineage.id:
        raise InvalidArgumentError(f"lineage: {identity.node_id} has the log of {named(lineage.id)}, not that of {named(request.lineage)}")
    wanted = EntryId(request.entry.index, request.entry.term)
    if wanted.index > commit_index:
        raise InvalidArgumentError(f"entry {wanted.index} of term {wanted.term} is not committed here")
    if wanted.index < log.first_index:
        raise InvalidArgumentError(f"entry {wanted.index} was deleted here with the head of the log, which begins at {log.first_index}")
    entries = await log.read(wanted.index, 0, wanted.index)
    if not entries:
        raise InvalidArgumentError(f"entry {wanted.index} of term {wanted.term} is no longer in the log")
    if (term := entries[0].term) != wanted.term:  # by its own bytes: of old entries the terms in memory are the index units'
        text = f"entry {wanted.index} of term {wanted.term} was never committed, one of term {term} was"
        raise InvalidArgumentError(text, committed_term=term, store_id=identity.store_id)
    return envelope.encode(raft_pb2.CopyChunk(pos=entries[0].pos), entries[0].buffers)


class LogRepairer:
    """Repairs damaged entries of the log in use, one at a time."""

    def __init__(self, new_repair: Callable[[], PeerRepair], log: Callable[[], Log], tasks: BackgroundTasks) -> None:
        self._new_repair = new_repair
        self._log = log
        self._tasks = tasks
        self._under_way: set[int] = set()
        self._unrepaired: dict[EntryId, str] = {}  # what is damaged and not whole yet
        self._one_at_a_time = asyncio.Lock()

    @property
    def unrepaired(self) -> list[str]:
        """Known damage that could not be repaired so far, by index; trimmed or replaced entries no longer count."""
        log = self._log()
        self._unrepaired = {
            entry: text for entry, text in self._unrepaired.items() if entry.index >= log.first_index and log.entry_id(entry.index) == entry
        }
        return [text for _, text in sorted(self._unrepaired.items(), key=lambda item: item[0].index)]

    def found(self, damage: StorageDamagedError) -> None:
        """Put right in the background what ``damage`` names."""
        index = int(damage.details.get("index") or 0)
        if index and index not in self._under_way:
            self._under_way.add(index)
            self._tasks.spawn(self._repair_in_background(index, damage), "repair")

    async def repair(self, damage: StorageDamagedError) -> bool:
        """Whether what ``damage`` names is whole now."""
        index = int(damage.details.get("index") or 0)
        return bool(index) and await self._repair(index, damage)

    async def _repair(self, index: int, damage: StorageDamagedError) -> bool:
        async with self._one_at_a_time:
            entry = self._log().entry_id(index)
            if entry is None:
                return False
            whole = await self._is_whole(index)  # it may have been repaired meanwhile
            if not whole:
                if entry not in self._unrepaired:  # readers that need the entry ask again and again
                    self._unrepaired[entry] = damage.message
                    self._log().measures.corruptions += 1
                    _logger.error("%s", damage.message, extra={"event": "log_damaged"})
                # A sector may take what is written and still not be read.
                whole = await self._fetched(index, damage) and await self._is_whole(index)
            if whole:
                self._unrepaired.pop(entry, None)
            return whole

    async def _fetched(self, index: int, damage: StorageDamagedError) -> bool:
        try:
            return await self._new_repair().repair_entry(self._log(), index)
        except SyncFailedError:
            raise  # what the disk holds is not known from here on: the node ends, as by every failed sync
        except OSError as error:  # the entry stays as it was
            text = f"{damage.message}; a peer's bytes cannot be written: {error.strerror}"
            raise StorageDamagedError(text, file=damage.details.get("file", ""), index=index) from error

    async def _is_whole(self, index: int) -> bool:
        with contextlib.suppress(StorageDamagedError):
            await self._log().read(index, 0, index)
            return True
        return False

    async def _repair_in_background(self, index: int, damage: StorageDamagedError) -> None:
        try:
            await self._repair(index, damage)
        except DledgerError as error:
            _logger.error("entry %d not repaired: %s", index, error.message, extra={"event": "entry_not_repaired"})
        finally:
            await asyncio.sleep(1)  # not again at once when it did not help
            self._under_way.discard(index)


class _ReplacedError(Exception):
    """A peer has committed another entry in the place of the one asked for."""


class PeerRepair:
    """Repairs one node's log before the node takes part."""

    def __init__(
        self,
        identity: NodeIdentity,
        env: Environment,
        addresses: Mapping[NodeId, str],
        stores: PeerStores,
        lineage: Lineage,
        config: LogConfig,
        *,
        limit_s: float,
    ) -> None:
        self._identity = identity
        self._env = env
        self.stores = stores
        self._lineage = lineage
        self._addresses = {node: address for node, address in addresses.items() if node != identity.node_id}
        self._config = config
        self._limit_ms = int(limit_s * 1000)

    async def run(self, log: Log, report: RecoveryReport) -> tuple[Log, RecoveryReport]:
        """The log, reopened without damage.  StorageDamagedError names what could not be repaired, and ``log`` is closed then."""
        deadline_ms = self._env.clock.monotonic_ms() + self._limit_ms
        measures = log.measures
        measures.corruptions += len(report.damaged)
        try:
            while report.damaged:
                _logger.error(
                    "%s: the log is %s; fetching the bytes from peers",
                    self._identity.node_id,
                    report.summary(),
                    extra={"event": "log_damaged"},
                )
                while not await self._round(log, report):
                    if self._env.clock.monotonic_ms() >= deadline_ms:
                        raise self._hopeless(report.damaged[0])
                    await asyncio.sleep(RETRY_S)
                await log.close()
                log, report = await Log.open(self._env.disk, self._config, measures)
                if report.damaged and self._env.clock.monotonic_ms() >= deadline_ms:
                    raise self._hopeless(report.damaged[0])
        except BaseException:
            await log.close()
            raise
        _logger.warning("%s: the log is repaired, %s", self._identity.node_id, report.summary(), extra={"event": "log_repaired"})
        return log, report

    async def _round(self, log: Log, report: RecoveryReport) -> int:
        """Try every damaged entry once; how many were repaired."""
        repaired = 0
        for finding in report.damaged:
            place = log.locate(finding.index)
            if finding.kind not in FETCHED or place is None:
                if finding is report.damaged[0]:
                    raise self._hopeless(finding)
                break  # a filler, or what cannot be found: checked again when the entries before it are intact
            try:
                entry = await self._fetch(place)
            except _ReplacedError as replaced:
                if not await _names_itself(log, place):
                    continue
                _logger.warning(
                    "%s: the log is truncated before entry %d: %s",
                    self._identity.node_id,
                    place.index,
                    replaced,
                    extra={"event": "log_truncated"},
                )
                await log.discard_from(place.index)
                return repaired + 1  # what else was damaged stands before it, or is gone with it
            if entry is not None:
                repaired += await self._written(log, entry)
        return repaired

    async def _written(self, log: Log, entry: RawEntry) -> bool:
        """Whether it, or the one that it follows, could be written now."""
        try:
            if await self._write(log, entry):
                return True
            # Its bytes are right, so what it has to follow is not: a start takes headers before the verified end as they stand.
            place = log.locate(entry.index - 1)
            before = await self._fetch(place) if place is not None else None
            return before is not None and await self._write(log, before)
        except (StorageDamagedError, _ReplacedError) as error:
            _logger.info("%s: %s", self._identity.node_id, error)
            return False

    async def reading(self, log: Log, read: Callable[[], Awaitable[T]]) -> T:
        """The result of ``read``, which a start cannot do without, after repairing the damaged entries it meets.

        StorageDamagedError when one cannot be repaired within the limit.
        """
        deadline_ms, logged = self._env.clock.monotonic_ms() + self._limit_ms, ""
        while True:
            try:
                return await read()
            except StorageDamagedError as damage:
                index = damage.detail_int("index")
                if not log.first_index <= index <= log.last.index or self._env.clock.monotonic_ms() >= deadline_ms:
                    raise
                if logged != damage.message:
                    logged = damage.message
                    _logger.error("%s; fetching the bytes from peers", logged, extra={"event": "log_damaged"})
                if not await self.repair_entry(log, index):
                    await asyncio.sleep(RETRY_S)

    async def repair_entry(self, log: Log, index: int, *, with_the_one_before: bool = True) -> bool:
        """Put one entry right while the log is in use; one that is whole as it stands, by the entry it follows.  False: not possible now.

        Also in the segment being written, once the entry is durable: writes to a disk go one after the other, each changes its own bytes
        only, and what the log may still have to write of a shared block are the same bytes as a peer's.
        """
        if index > log.durable.index:
            return False
        place = await log.find(index)
        try:
            entry = await self._fetch(place)
        except _ReplacedError:
            return False  # the leader will have it cut
        if entry is None or log.term_at(index) != entry.term or index < log.first_index:
            return False
        was_whole = not await self._write(log, entry)
        log.entry_repaired(entry)
        if was_whole and with_the_one_before and index > log.first_index:
            # Its bytes are right, so what it has to follow is not: a start takes headers before the verified end as they stand.
            return await self.repair_entry(log, index - 1, with_the_one_before=False)
        return True

    async def _fetch(self, place: EntryPlace) -> RawEntry | None:
        """The entry from the first peer that has it whole; _ReplacedError when one has another entry committed in its place."""
        for node, address in sorted(self._addresses.items()):
            channel = connect_to(self._env.network, address, self._identity.principal_of(node))
            try:
                answer = await channel.call(methods.FETCH_ENTRY.path, self._request(place), timeout_s=FETCH_TIMEOUT_S)
                return _checked(answer, place)
            except DledgerError as error:
                # Truncation cannot be undone, so only a replica on its known folder counts.
                is_other = error.detail_int("committed_term", place.term) != place.term
                if is_other and self.stores.is_known(node, error.details.get("store_id", "")):
                    raise _ReplacedError(f"{node}: {error.message}") from error
                _logger.info("%s: %s cannot provide entry %d: %s", self._identity.node_id, node, place.index, error.message)
            finally:
                await channel.close()
        return None

    def _request(self, place: EntryPlace) -> bytes:
        entry = raft_pb2.EntryIdentity(index=place.index, term=place.term)
        own, lineage = self._identity, self._lineage.id
        request = raft_pb2.EntryRequest(cluster=own.cluster, group=own.group, entry=entry, lineage=lineage)
        return bytes(request.SerializeToString())

    async def _write(self, log: Log, entry: RawEntry) -> bool:
        """Keep the bad bytes, then write the good ones over them.  False: they were the same."""
        disk = self._env.disk
        start_pos = max(segment.start_pos for segment in log.segments if segment.start_pos <= entry.pos)
        file = await disk.open(log_path(start_pos))
        try:
            try:
                bad = await file.pread(entry.pos - start_pos, entry.size_bytes)
            except OSError:
                bad = b""  # nothing to keep of a sector that cannot be read; what is written there makes it readable again
            if bad == b"".join(entry.buffers):
                return False
            if bad:
                await quarantine.keep_replaced(disk, start_pos, entry.pos, bad)
            await self._overwrite(log, file, start_pos, entry)
        finally:
            await file.close()
        log.measures.repairs += 1
        _logger.warning("%s: entry %d repaired from a peer", self._identity.node_id, entry.index, extra={"event": "entry_repaired"})
        return True

    async def _overwrite(self, log: Log, file: File, start_pos: int, entry: RawEntry) -> None:
        try:
            await file.pwrite(entry.pos - start_pos, list(entry.buffers), sync=True)
        except OSError as error:
            if isinstance(error, SyncFailedError) or not is_unreadable(error):
                raise
            following = _segment_after(log, start_pos)
            pos, data = await self._whole_blocks(log, start_pos, following, entry)
            if _segment_after(log, start_pos) != following:  # the log was cut, and may go on where the filler is
                raise StorageDamagedError(f"entry {entry.index}: its segment has changed meanwhile", index=entry.index) from error
            await file.pwrite(pos - start_pos, [data], sync=True)

    async def _whole_blocks(self, log: Log, start_pos: int, following: Segment | None, entry: RawEntry) -> tuple[int, bytes]:
        """Position and bytes of the blocks that an entry lies in, made of what peers have committed around it.

        StorageDamagedError when they cannot provide all of it now, or the log ends in the last block and may be written there meanwhile.
        """
        last_index = following.first_index - 1 if following is not None else log.durable.index
        pos = entry.pos - (entry.pos - start_pos) % BLOCK_BYTES
        end = entry.end_pos + (start_pos - entry.end_pos) % BLOCK_BYTES
        entries = [entry]
        while entries[0].pos > pos:
            entries.insert(0, await self._beside(log, entries[0].index - 1))
        while entries[-1].end_pos < end and entries[-1].index < last_index:
            entries.append(await self._beside(log, entries[-1].index + 1))
        pieces: list[Buffer] = [piece for each in entries for piece in each.buffers]
        behind = entries[-1].end_pos
        if behind < end:
            if following is None and not isinstance(log.failure, StorageDamagedError):
                raise StorageDamagedError(
                    f"entry {entry.index}: it shares a block that cannot be read with the log's end; restart this node", index=entry.index
                )
            if following is None:  # opened with damage, so nothing is written; what was behind the last entry was never reported durable
                pieces += [bytes(end - behind)]
                return pos, b"".join(pieces)[pos - entries[0].pos :]
            end = min(end, following.start_pos)
            pieces += [FILLER.pack(MAGIC_FILLER, following.start_pos - behind), bytes(max(0, end - behind - FILLER_SIZE))]
        return pos, b"".join(pieces)[pos - entries[0].pos :][: end - pos]

    async def _beside(self, log: Log, index: int) -> RawEntry:
        """An entry beside the one to repair, from a peer."""
        with contextlib.suppress(_ReplacedError):
            if index >= log.first_index and (found := await self._fetch(await log.find(index))) is not None:
                return found
        raise StorageDamagedError(f"entry {index}: no peer can provide it, and the one beside it is repaired with it", index=index)

    def _hopeless(self, finding: Finding) -> StorageDamagedError:
        tried = "no peer could provide the bytes" if finding.kind in FETCHED else "peers provide entries only"
        text = f"{finding}; {tried}; replace this node as a member, or repair its disk"
        return StorageDamagedError(text, file=finding.file, pos=finding.pos, index=finding.index)


def _segment_after(log: Log, start_pos: int) -> Segment | None:
    return next((segment for segment in log.segments if segment.start_pos > start_pos), None)


async def _names_itself(log: Log, place: EntryPlace) -> bool:
    """Whether the damaged entry's header agrees with where its index unit (a header with the right chain, if that is lost) puts it.

    A unit has no checksum, so alone it does not justify truncation.
    """
    try:
        return Header.unpack(await log.read_stored(place.pos, ENTRY_HEADER_SIZE)).is_of(place)
    except StorageDamagedError:  # the file ends before
        return False


def _checked(answer: bytes, place: EntryPlace) -> RawEntry:
    """The entry of an answer; CorruptEntryError unless it is whole and belongs exactly where the damage is."""
    _header, payload = envelope.decode(raft_pb2.CopyChunk, answer)
    entry = parse_entry(memoryview(bytes(payload)))
    found: Sequence[int] = (entry.index, entry.term, entry.pos, entry.size_bytes)
    if found != (place.index, place.term, place.pos, place.size):
        raise CorruptEntryError(f"entry {place.index}: a peer returned a different one, {found}", index=place.index)
    return entry
