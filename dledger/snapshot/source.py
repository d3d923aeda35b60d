"""Serving snapshots to replicas that catch up and to backups: plans, ranges of the log, files of the state machine.

Owns the snapshots being served: each pins the head of the log and holds the state machine's files of its moment in memory, until it has
been idle for a while.  Bytes are sent with a checksum per piece only; the receiver checks every entry.  One budget of bytes per second is
shared by all snapshots, and they give way to writes, so that the group keeps serving.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from dledger.log.bulk_turns import MOST_S, BulkTurns
from dledger.log.log import Log
from dledger.membership.configuration import Configuration
from dledger.runtime.env import Clock, Random
from dledger.snapshot.plan import PlanSegment, SnapshotPlan, StateSnapshot, state_files
from dledger.transport.link import NodeIdentity
from dledger_wire._pb import copy_pb2
from dledger_wire.checksum import crc32c
from dledger_wire.errors import BusyError, DeadlineExceededError, InvalidArgumentError, NotReadyError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Server

PIECE_BYTES = 1 << 20
# A small budget is spent in small pieces, so that a receiver does not wait seconds for the next one.
PIECES_PER_S = 4
SMALLEST_PIECE = 4096
MAX_SNAPSHOTS = 4
MAX_BACKUPS = 4  # beside them: a backup keeps no replica from catching up
UNUSED_MS = 120_000
BACKUP_BARRIER_S = 10.0  # a third of the time that a caller waits for a plan
# The budget never holds more than this much of a second, however long nothing was sent.
BURST_S = 0.05

_logger = logging.getLogger(__name__)
Request = TypeVar("Request", bound=Message)


@dataclass(frozen=True, slots=True)
class Captured:
    """A consistent cut: the log up to the entry the state holds, and the configuration there."""

    log: Log
    state: StateSnapshot
    configuration: Configuration | None
    configuration_index: int


@dataclass(slots=True)
class _Copy:
    plan: SnapshotPlan
    state: StateSnapshot
    node_id: str  # of the replica that takes it, or the id of the backup
    used_ms: int
    is_backup: bool


class Budget:
    """So many bytes a second; 0: as many as there are.  A node has ``turns``, too, which writes leave."""

    def __init__(self, clock: Clock, bytes_per_s: int, turns: BulkTurns | None = None) -> None:
        self._clock = clock
        self.bytes_per_s = bytes_per_s
        self._turns = turns
        self._free_at_ms = 0.0

    async def take(self, size: int) -> None:
        """Wait until ``size`` more bytes may go."""
        if self._turns is not None:
            await self._turns.take(size, MOST_S)
        if not self.bytes_per_s:
            return
        now_ms = self._clock.monotonic_ms()
        due_ms = max(self._free_at_ms, now_ms - BURST_S * 1000)
        self._free_at_ms = due_ms + size / self.bytes_per_s * 1000
        if due_ms > now_ms:
            await asyncio.sleep((due_ms - now_ms) / 1000)


class SnapshotSource:
    """The snapshots that one node serves."""

    def __init__(
        self,
        identity: NodeIdentity,
        clock: Clock,
        random: Random,
        budget: Budget,
        capture: Callable[[], Awaitable[Captured]],
        check_copier: Callable[[str, str], None],
        read_barrier: Callable[[float], Awaitable[object]],
    ) -> None:
        self._identity = identity
        self._check_copier = check_copier
        self._clock = clock
        self._random = random
        self._capture = capture
        self._read_barrier = read_barrier
        self._budget, bytes_per_s = budget, budget.bytes_per_s
        self._piece_bytes = min(PIECE_BYTES, max(SMALLEST_PIECE, bytes_per_s // PIECES_PER_S)) if bytes_per_s else PIECE_BYTES
        self._copies: dict[str, _Copy] = {}
        self._logs: dict[str, Log] = {}

    def register(self, server: Server) -> None:
        methods.COPY_PLAN.serve_bytes(server, self.plan)
        methods.COPY_LOG.serve(server, self.log)
        methods.COPY_STATE.serve_bytes(server, self.state)
        methods.BACKUP_PLAN.serve_bytes(server, self.backup_plan)
        methods.BACKUP_LOG.serve(server, self.log)
        methods.BACKUP_STATE.serve_bytes(server, self.state)
        methods.BACKUP_END.serve(server, self.backup_ended)

    @property
    def pinned_index(self) -> int | None:
        """The first entry that a snapshot in progress still needs; None when there is none."""
        self._forget_unused()
        return min((copy.plan.start.first_index for copy in self._copies.values()), default=None)

    def _forget_unused(self) -> None:
        since_ms = self._clock.monotonic_ms() - UNUSED_MS
        for copy_id in [copy_id for copy_id, copy in self._copies.items() if copy.used_ms < since_ms]:
            self._drop(copy_id)

    def _drop(self, copy_id: str) -> None:
        del self._copies[copy_id], self._logs[copy_id]

    def clear(self) -> None:
        """Drop all snapshots: the log they were taken from is being replaced."""
        for copy_id in list(self._copies):
            self._drop(copy_id)

    # Plans

    async def plan(self, data: bytes, _context: CallContext) -> bytes:
        """For a replica that catches up."""
        request = self._decoded(copy_pb2.CopyPlanRequest, data)
        self._check_copier(request.node_id, request.lineage)
        return (await self._planned(request.node_id, is_backup=False)).encode()

    async def backup_plan(self, data: bytes, _context: CallContext) -> bytes:
        """For a backup, which is no member.  NotReadyError unless everything committed before the request is in it.

        A replica that catches up gets the rest from the leader.  A backup has no such source, and counts as complete up to its beginning.
        """
        request = self._decoded(copy_pb2.CopyPlanRequest, data)
        try:
            await self._read_barrier(BACKUP_BARRIER_S)
        except (NotReadyError, DeadlineExceededError) as error:
            raise NotReadyError(f"it may lack what the group has committed ({error.message})") from error
        return (await self._planned(request.node_id, is_backup=True)).encode()

    async def backup_ended(self, request: copy_pb2.CopyEndRequest, _context: CallContext) -> copy_pb2.CopyEnded:
        """A backup needs its copy no more; of a copy that is not known any more nothing is said."""
        copy = self._copies.get(request.copy_id)
        if copy is not None and copy.is_backup:
            self._drop(request.copy_id)
        return copy_pb2.CopyEnded()

    async def _planned(self, node_id: str, *, is_backup: bool) -> SnapshotPlan:
        self._forget_unused()
        # A node that requests another plan abandoned its earlier snapshot; what it has received fits the new one too.
        same_kind = {copy_id: copy for copy_id, copy in self._copies.items() if copy.is_backup == is_backup}
        for copy_id in [copy_id for copy_id, copy in same_kind.items() if copy.node_id == node_id]:
            self._drop(copy_id)
            del same_kind[copy_id]
        if len(same_kind) >= (MAX_BACKUPS if is_backup else MAX_SNAPSHOTS):
            what = f"{MAX_BACKUPS} backups" if is_backup else f"{MAX_SNAPSHOTS} snapshots"
            raise BusyError(f"{self._identity.node_id}: already serving {what}")
        captured = await self._capture()
        copy_id = f"{self._random.getrandbits(64):016x}"
        plan = await self._made(copy_id, captured)
        self._copies[copy_id] = _Copy(plan, captured.state, node_id, self._clock.monotonic_ms(), is_backup)
        self._logs[copy_id] = captured.log
        text = "%s: serving %s a snapshot of entries %d to %d, %d bytes"
        taker = f"backup {node_id}" if is_backup else node_id
        _logger.info(text, self._identity.node_id, taker, plan.start.first_index, plan.last.index, plan.size_bytes)
        return plan

    async def _made(self, copy_id: str, captured: Captured) -> SnapshotPlan:
        log, last_index = captured.log, captured.state.index
        start, segments = log.start, []
        listed = [segment for segment in log.segments if segment.first_index <= last_index]
        for number, segment in enumerate(listed):
            end_index = listed[number + 1].first_index - 1 if number + 1 < len(listed) else last_index
            if end_index >= segment.first_index:
                place = log.locate(end_index) or await log.find(end_index)
                segments.append(PlanSegment(segment.start_pos, segment.first_index, place.end_pos))
        last = log.entry_id(last_index)
        if log.start != start or last is None or not segments:
            raise BusyError(f"{self._identity.node_id}: the log has just changed; retry")
        identity, files = self._identity, state_files(captured.state.files)
        configuration, index = captured.configuration, captured.configuration_index
        return SnapshotPlan(copy_id, identity.cluster, identity.group, start, last, tuple(segments), files, configuration, index)

    # Bytes

    async def log(self, stream: ByteStream, _context: CallContext) -> None:
        request = self._decoded(copy_pb2.CopyLogRequest, await stream.read() or b"")
        copy, log = self._find(request.copy_id), self._logs[request.copy_id]
        loop = asyncio.get_running_loop()
        ahead: asyncio.Task[bytes] | None = None
        try:
            for pos, size in _pieces(copy.plan, request.from_pos, self._piece_bytes):
                data = await (ahead if ahead is not None else log.read_bytes(pos, size))
                following = _piece_after(copy.plan, pos + size, self._piece_bytes)
                ahead = loop.create_task(log.read_bytes(*following), name="copy ahead") if following is not None else None
                await self._budget.take(size)
                copy.used_ms = self._clock.monotonic_ms()
                await stream.write(self._piece(request.copy_id, pos, data))
        finally:
            if ahead is not None and not ahead.done():
                ahead.cancel()
                await asyncio.wait([ahead])

    async def state(self, data: bytes, _context: CallContext) -> bytes:
        request = self._decoded(copy_pb2.CopyStateRequest, data)
        copy = self._find(request.copy_id)
        content = copy.state.files.get(request.path)
        if content is None or request.from_pos > len(content):
            raise InvalidArgumentError(f"snapshot {request.copy_id}: no {request.path} at {request.from_pos}")
        piece = content[request.from_pos : request.from_pos + self._piece_bytes]
        await self._budget.take(len(piece))
        copy.used_ms = self._clock.monotonic_ms()
        return self._piece(request.copy_id, request.from_pos, piece)

    def _piece(self, copy_id: str, pos: int, data: bytes) -> bytes:
        return envelope.encode(copy_pb2.CopyPiece(copy_id=copy_id, pos=pos, crc=crc32c(data)), (data,))

    def _find(self, copy_id: str) -> _Copy:
        copy = self._copies.get(copy_id)
        if copy is None:
            raise InvalidArgumentError(f"{self._identity.node_id} has no snapshot {copy_id!r}; request a new plan")
        return copy

    def _decoded(self, cls: type[Request], data: bytes) -> Request:
        """The request, if it is one and means this group."""
        message: Request = cls()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise InvalidArgumentError("malformed snapshot request") from error
        own = (self._identity.cluster, self._identity.group)
        named = (str(getattr(message, "cluster", "")), str(getattr(message, "group", "")))
        if named != own:
            raise InvalidArgumentError(f"group: expected {'/'.join(own)}, got {'/'.join(named)}")
        return message


def _pieces(plan: SnapshotPlan, from_pos: int, most: int) -> Iterator[tuple[int, int]]:
    """(position, size) of every piece from ``from_pos`` on."""
    piece = _piece_after(plan, from_pos, most)
    while piece is not None:
        yield piece
        piece = _piece_after(plan, piece[0] + piece[1], most)


def _piece_after(plan: SnapshotPlan, pos: int, most: int) -> tuple[int, int] | None:
    """The piece that starts at ``pos``, or where the entries go on behind a filler; None at the plan's end."""
    for segment in plan.segments:
        if pos < segment.end_pos:
            start = max(pos, segment.start_pos)
            return start, min(most, segment.end_pos - start)
    return None
