"""Replicas of a group read and compared while they serve: by the checksums of their committed segments, or copied whole for a backup.

Owns the reads of one replica: a plan, its log from a position on, files of its state; each piece is checked by its checksum.  The plan is
handed out as it came: what it means belongs to the replicated log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, Unpack

from dledger_client.admin.calls import ClusterCalls
from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.security import SecuritySettings
from dledger_wire._pb import admin_pb2, copy_pb2
from dledger_wire.checksum import crc32c
from dledger_wire.errors import CorruptEntryError, DeadlineExceededError, DledgerError, StorageDamagedError, UnreachableError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import ByteStream

PIECE_TIMEOUT_S = 30.0  # a node that many copy from gives each its share of what it may give away a second
END_TIMEOUT_S = 2.0
SLOWEST_PER_S = 4 << 20  # bytes that a node checks a second, at least, beside writes and other readers


@dataclass(frozen=True, slots=True)
class Replica:
    """The node to read from."""

    cluster: str
    group: str
    node_id: str
    address: str


class ReplicaCopy:
    """A copy of one replica, consistent at one entry, on a connection of its own; ``label`` identifies it at the replica.

    The replica keeps what the plan names until the copy is closed, or for a while after the last piece.
    """

    def __init__(self, replica: Replica, label: str, **security: Unpack[SecuritySettings]) -> None:
        self.replica = replica
        self._label = label
        self._channel = environment_for(replica.address, **security).network.connect(replica.address)
        self._copy_id = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        own = self.replica
        try:
            if self._copy_id and error is None:
                request = copy_pb2.CopyEndRequest(cluster=own.cluster, group=own.group, copy_id=self._copy_id)
                with contextlib.suppress(DledgerError):  # the replica forgets it by itself
                    await methods.BACKUP_END.call(self._channel, request, timeout_s=END_TIMEOUT_S)
        finally:
            await self._channel.close()

    async def plan(self) -> bytes:
        """What there is to copy.  PermissionDeniedError unless the caller administers the cluster."""
        own = self.replica
        request = copy_pb2.CopyPlanRequest(cluster=own.cluster, group=own.group, node_id=self._label)
        data = await methods.BACKUP_PLAN.call_bytes(self._channel, request, timeout_s=PIECE_TIMEOUT_S)
        self._copy_id = methods.BACKUP_PLAN.parse_response(data, own.address).copy_id
        return data

    async def log(self, from_pos: int) -> AsyncIterator[tuple[int, memoryview]]:
        """The entries from ``from_pos`` to the plan's end: (position, bytes), in pieces that end with a segment at the latest."""
        own = self.replica
        stream = methods.BACKUP_LOG.open(self._channel)
        request = copy_pb2.CopyLogRequest(cluster=own.cluster, group=own.group, copy_id=self._copy_id, from_pos=from_pos)
        await stream.write(request.SerializeToString())
        await stream.close()
        while (piece := await self._read(stream)) is not None:
            yield self._checked(piece)

    async def state(self, path: str, size_bytes: int) -> bytes:
        """A file of the state."""
        own = self.replica
        content = bytearray()
        while len(content) < size_bytes:
            request = copy_pb2.CopyStateRequest(
                cluster=own.cluster, group=own.group, copy_id=self._copy_id, path=path, from_pos=len(content)
            )
            piece = await methods.BACKUP_STATE.call_bytes(self._channel, request, timeout_s=PIECE_TIMEOUT_S)
            pos, data = self._checked(piece)
            if pos != len(content) or not data:
                raise CorruptEntryError(f"{path}: a piece at {pos}, expected one at {len(content)}")
            content += data
        return bytes(content)

    async def _read(self, stream: ByteStream) -> bytes | None:
        try:
            async with asyncio.timeout(PIECE_TIMEOUT_S):
                return await stream.read()
        except TimeoutError:
            raise DeadlineExceededError(f"no data for {PIECE_TIMEOUT_S:g} s") from None

    def _checked(self, piece: bytes) -> tuple[int, memoryview]:
        """Position and bytes of a piece.  CorruptEntryError unless it belongs to this copy and is intact."""
        header, payload = envelope.decode(copy_pb2.CopyPiece, piece)
        if header.copy_id != self._copy_id:
            raise CorruptEntryError(f"a piece of copy {header.copy_id!r}, expected {self._copy_id!r}")
        if crc32c(payload) != header.crc:
            raise CorruptEntryError(f"the checksum of a piece at {header.pos} does not match")
        return header.pos, payload


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """The replicas of one group, compared over what all of them have committed.

    Attributes:
        replica_group: The group of nodes.
        end_pos: Byte position in the log up to which they were compared.
        compared_bytes: How many bytes of the log that were.
        replicas: Ids of the nodes compared: members, without learners that have nothing yet.
        unreachable: Ids of the members that did not answer.
        difference: What differs, with file and position of the damage when one is found; empty when all are equal.
        checksums: Of each replica: start position of a segment -> CRC-32 of its bytes up to ``end_pos``.
    """

    replica_group: str
    end_pos: int
    compared_bytes: int
    replicas: tuple[str, ...]
    unreachable: tuple[str, ...]
    difference: str
    checksums: Mapping[str, Mapping[int, int]]

    @property
    def equal(self) -> bool:
        """Whether every compared segment is the same on all replicas."""
        return not self.difference


async def compare_replicas(calls: ClusterCalls, group: ReplicaGroupStatus) -> ReplicaComparison:
    """UnreachableError when no node of the group answers."""
    members = [node for node in group.nodes if group.is_member(node.id)]
    # A learner that joins has nothing yet that could differ.
    reachable = [node for node in members if node.reachable and (node.committed_pos or node.id in group.voters)]
    missing = [node.id for node in members if not node.reachable]
    if not reachable:
        raise UnreachableError(f"no node reachable at {', '.join(node.address for node in group.nodes)}")
    end_pos = min(node.committed_pos for node in reachable)
    addresses = {node.id: node.address for node in reachable}
    answers = await asyncio.gather(*(_all_checksums(calls, address, end_pos) for address in addresses.values()), return_exceptions=True)
    replies: dict[str, admin_pb2.ChecksumReply] = {}
    damaged = ""
    for node_id, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, UnreachableError | DeadlineExceededError):
            missing.append(node_id)
        elif isinstance(answer, DledgerError):
            damaged = damaged or f"{node_id}: {answer}"
        elif isinstance(answer, BaseException):
            raise answer
        else:
            replies[node_id] = answer
    compared, difference, segment = _first_difference(replies)
    if segment is not None:
        size_bytes = max(each.size_bytes for reply in replies.values() for each in reply.segments if each.start_pos == segment)
        asked = {node_id: addresses[node_id] for node_id in replies}
        difference = await _damage_in(calls, asked, end_pos, segment, size_bytes) or difference
    checksums = {node_id: {segment.start_pos: segment.crc for segment in reply.segments} for node_id, reply in replies.items()}
    return ReplicaComparison(group.name, end_pos, compared, tuple(replies), tuple(missing), damaged or difference, checksums)


async def _damage_in(calls: ClusterCalls, addresses: Mapping[str, str], end_pos: int, segment: int, size_bytes: int) -> str:
    """Have each replica check the entries of a segment that differs: the damages found; empty when there are none."""
    asked = (_checksums(calls, address, end_pos, size_bytes, segment) for address in addresses.values())
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found = [f"{node_id}: {answer}" for node_id, answer in zip(addresses, answers, strict=True) if isinstance(answer, StorageDamagedError)]
    return "; ".join(found)


async def _all_checksums(calls: ClusterCalls, address: str, end_pos: int) -> admin_pb2.ChecksumReply:
    first_pos = (await _checksums(calls, address, min(end_pos, 1), 0)).first_pos
    return await _checksums(calls, address, end_pos, max(0, end_pos - first_pos))


async def _checksums(
    calls: ClusterCalls, address: str, end_pos: int, size_bytes: int, checked_segment: int | None = None
) -> admin_pb2.ChecksumReply:
    """``size_bytes``: how much the node has to read for it, which gives way to writes."""
    request = admin_pb2.ChecksumRequest(upto_pos=end_pos, checked_segment=checked_segment)
    timeout_s = calls.timeout_ms / 1000 + size_bytes / SLOWEST_PER_S
    return await methods.SEGMENT_CHECKSUMS.call(calls.router.channel(address), request, timeout_s=timeout_s)


def _first_difference(replies: Mapping[str, admin_pb2.ChecksumReply]) -> tuple[int, str, int | None]:
    """(bytes compared, how two replicas differ, in which segment first).  Segments that not all replicas have are left out."""
    if not replies:
        return 0, "", None
    first_pos = max(reply.first_pos for reply in replies.values())
    known: dict[int, tuple[str, int, int]] = {}
    compared = 0
    for node_id, reply in replies.items():
        for segment in reply.segments:
            if segment.start_pos < first_pos:
                continue
            other = known.setdefault(segment.start_pos, (node_id, segment.size_bytes, segment.crc))
            compared += segment.size_bytes if other[0] == node_id else 0
            if (segment.size_bytes, segment.crc) != other[1:]:
                text = f"segment {segment.start_pos:020d} differs between {other[0]} ({other[1]} bytes, crc {other[2]:08x})"
                return compared, f"{text} and {node_id} ({segment.size_bytes} bytes, crc {segment.crc:08x})", segment.start_pos
    counts = {node_id: sum(segment.start_pos >= first_pos for segment in reply.segments) for node_id, reply in replies.items()}
    if len(set(counts.values())) > 1:
        return compared, f"replicas hold different numbers of segments: {counts}", None
    return compared, "", None
