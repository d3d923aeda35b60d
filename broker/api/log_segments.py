"""The segments of a node's log for operators: checksums of what is committed, and deletion of old segments.

Replicas are byte-identical up to any position that all of them have committed, so equal checksums prove equal content: that is what
``dledger verify --online`` compares.  The bytes of the files are compared, even where the log has them in memory; only bytes not written
yet are taken from memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from broker.context import ServiceContext
from broker.support.messages import message_of
from dledger.log.bulk_turns import TURN_BYTES, TakeTurn, at_once
from dledger.log.log import Log
from dledger_wire._pb import admin_pb2, retention_pb2
from dledger_wire.checksum import crc32c
from dledger_wire.errors import InvalidArgumentError, StorageDamagedError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server


@dataclass(frozen=True, slots=True)
class SegmentSum:
    """The entries of one segment below the wanted position; the filler behind them is not part of it."""

    start_pos: int
    size_bytes: int
    crc: int


async def committed_end(log: Log, commit_index: int) -> int:
    """The position behind the last committed entry."""
    if commit_index < log.first_index:
        return log.first_pos
    place = log.locate(commit_index) or await log.find(commit_index)
    return place.end_pos


async def segment_sums(log: Log, upto_pos: int, take_turn: TakeTurn = at_once) -> list[SegmentSum]:
    """One checksum a segment, in order; reads in bounded pieces off the loop and lets other work run between them."""
    sums = []
    segments = log.segments
    for number, segment in enumerate(segments):
        if segment.start_pos >= upto_pos:
            break
        end = upto_pos
        if number + 1 < len(segments) and segments[number + 1].start_pos < upto_pos:
            end = (await log.find(segments[number + 1].first_index - 1)).end_pos
        crc, pos = 0, segment.start_pos
        while pos < end:
            size = min(TURN_BYTES, end - pos)
            await take_turn(size)
            piece = await _stored(log, pos, size)
            crc = crc32c(piece, value=crc)
            pos += len(piece)
            await asyncio.sleep(0)
        sums.append(SegmentSum(segment.start_pos, end - segment.start_pos, crc))
    return sums


async def _stored(log: Log, pos: int, size: int) -> bytes:
    written = log.written_pos - pos
    return await log.read_stored(pos, min(size, written)) if written > 0 else await log.read_bytes(pos, size)


class FoundDamage:
    """Damage found by a comparison of replicas; forgotten once the bytes are intact again or deleted."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}  # entry -> what is wrong with it

    def add(self, damage: StorageDamagedError) -> bool:
        """Whether it was not known yet."""
        index = damage.detail_int("index")
        is_new = index not in self._texts
        self._texts[index] = damage.message
        return is_new

    @property
    def texts(self) -> list[str]:
        """What was damaged when it was looked at last."""
        return list(self._texts.values())

    async def still_damaged(self, log: Log) -> list[str]:
        """What is still damaged, in order of entries; each is checked again."""
        for index in sorted(self._texts):
            try:
                if log.first_index <= index <= log.last.index:
                    await log.check_stored(index, index)
                self._texts.pop(index, None)
            except StorageDamagedError as damage:
                self._texts[index] = damage.message
        return self.texts


async def check_segment(log: Log, start_pos: int, upto_pos: int, take_turn: TakeTurn = at_once) -> None:
    """Check one segment's entries in its file, as far as it lies below ``upto_pos``; StorageDamagedError names the first damaged one."""
    segments = log.segments
    upto_pos = min(upto_pos, log.written_pos)
    for number, segment in enumerate(segments):
        if segment.start_pos == start_pos:
            last = segments[number + 1].first_index - 1 if number + 1 < len(segments) else log.last.index
            while last >= segment.first_index and (log.locate(last) or await log.find(last)).end_pos > upto_pos:
                last -= 1
            await log.check_stored(segment.first_index, last, take_turn)


class LogSegmentService:
    """Every node serves it for its own log."""

    def __init__(self, context: ServiceContext, damage: FoundDamage) -> None:
        self._context = context
        self._damage = damage

    def register(self, server: Server) -> None:
        methods.SEGMENT_CHECKSUMS.serve(server, self.segment_checksums)
        methods.EXPIRE.serve(server, self.expire)

    async def segment_checksums(self, request: admin_pb2.ChecksumRequest, _caller: CallContext) -> admin_pb2.ChecksumReply:
        log, raft = self._context.raft.log, self._context.raft
        committed_pos = await committed_end(log, raft.commit_index)
        wanted = request.upto_pos or committed_pos
        if wanted > committed_pos:
            raise InvalidArgumentError(f"position {wanted} is not committed here yet (committed: {committed_pos})")
        if request.HasField("checked_segment"):
            try:
                await check_segment(log, request.checked_segment, wanted, raft.bulk.take)
            except StorageDamagedError as damage:
                log.measures.corruptions += self._damage.add(damage)
                raise
        reply = admin_pb2.ChecksumReply(committed_pos=committed_pos, first_pos=log.first_pos)
        for found in await segment_sums(log, wanted, raft.bulk.take):
            reply.segments.append(message_of(admin_pb2.SegmentChecksum, found))
        return reply

    async def expire(self, request: retention_pb2.ExpireRequest, _caller: CallContext) -> retention_pb2.ExpireReply:
        done = await self._context.store.expiry.expire(request.reserved_ms if request.has_reserved else None)
        return message_of(retention_pb2.ExpireReply, done, id=self._context.settings.node.id)
