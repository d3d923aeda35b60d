"""What a backup reads of a replica: a plan, its log from a position on, files of its state; each piece is checked by its checksum.

For who administers the cluster.  The plan is handed out as it came: what it means belongs to the replicated log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self, Unpack

from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.security import SecuritySettings
from dledger_wire._pb import copy_pb2
from dledger_wire.checksum import crc32c
from dledger_wire.errors import CorruptEntryError, DeadlineExceededError, DledgerError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import ByteStream

PIECE_TIMEOUT_S = 30.0  # a node that many copy from gives each its share of what it may give away a second
END_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Replica:
    """Whom to read from: a node of a replica group."""

    cluster: str
    group: str
    node_id: str
    address: str


class ReplicaCopy:
    """A copy of one replica, consistent at one entry, on a connection of its own; ``label`` tells it from others at the replica.

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
