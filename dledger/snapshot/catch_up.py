"""Catching up by snapshot: choosing a source, checking the plan, downloading, and handing over to the replica.

Owns the one snapshot that may be in progress and the choice of its source: preferably a follower that has applied enough, so that
the leader keeps serving.  A failed attempt ends; the leader offers again with its heartbeats, and the next attempt, from any
source, resumes with what is already received.  Nothing is trusted: pieces name their snapshot and position, and before anything is
replaced the replica checks again that the snapshot is needed and fits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from dledger.core.effects import FetchSnapshot
from dledger.core.types import NodeId
from dledger.runtime.env import Environment, is_full
from dledger.snapshot import install
from dledger.snapshot.plan import PlanFile, SnapshotPlan
from dledger.snapshot.receiver import SnapshotReceiver, received_state_path
from dledger.transport.link import NodeIdentity
from dledger_wire._pb import copy_pb2
from dledger_wire.checksum import crc32c
from dledger_wire.errors import (
    CorruptEntryError,
    DeadlineExceededError,
    DledgerError,
    InvalidArgumentError,
    NotReadyError,
    StorageFullError,
    UnreachableError,
)
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import ByteStream, Channel, connect_to
from dledger_wire.tasks import BackgroundTasks

CALL_TIMEOUT_S = 5.0
PIECE_TIMEOUT_S = 10.0
PAUSE_S = 0.5  # between an attempt that failed and the next

_logger = logging.getLogger(__name__)


class SnapshotTarget(Protocol):
    """The replica that installs snapshots."""

    @property
    def snapshot_wanted(self) -> FetchSnapshot | None: ...
    @property
    def lineage(self) -> str:
        """Of its folder; a source of another one refuses."""
        ...

    def snapshot_sources(self) -> Mapping[NodeId, str]:
        """Addresses of the members and of the leader."""
        ...

    def incompatibility(self, plan: SnapshotPlan) -> str | None:
        """Why a snapshot may not replace this replica's log; None when it may."""
        ...

    async def decide_snapshot(self, plan: SnapshotPlan) -> None:
        """Pause the replica and commit to the snapshot.  DledgerError: not any more."""
        ...

    async def replace_log(self, plan: SnapshotPlan) -> None:
        """Put the snapshot in place.  An error ends the replica; the next start finishes the install."""
        ...


class CatchUp:
    """Snapshot downloads of one replica, one at a time."""

    def __init__(
        self, identity: NodeIdentity, env: Environment, tasks: BackgroundTasks, target: SnapshotTarget, *, unfinished: bool
    ) -> None:
        self._identity = identity
        self._env = env
        self._tasks = tasks
        self._target = target
        self._task: asyncio.Task[None] | None = None
        self.has_leftover = unfinished  # files of a snapshot that an earlier run did not finish
        self._distrusted: dict[NodeId, None] = {}  # sources that gave damaged bytes
        self._none_sound = False  # all did in one attempt: rather this node or what lies before it is damaged
        self.state = ""  # for operators; empty when no snapshot is in progress
        self.lacks_room = False  # the disk had no room for the snapshot when that was looked at last
        self.copied_bytes = 0  # of all attempts, which shows a leader that there is progress; none after one with damaged bytes only

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def offered(self) -> None:
        """The leader offers a snapshot; a download in progress continues."""
        if not self.running:
            self.has_leftover = True
            self._task = self._tasks.spawn(self._run(), "copy")

    def entries_committed(self) -> None:
        """Entries were replicated normally: what an unfinished snapshot left behind is not needed."""
        if self.has_leftover and not self.running and self._target.snapshot_wanted is None:
            self.has_leftover, self.lacks_room, self.state = False, False, ""
            self._task = self._tasks.spawn(self._clear(), "clear-copy")

    async def _clear(self) -> None:
        try:
            await install.clear(self._env.disk)
        except OSError as error:
            _logger.warning(
                "%s: cannot remove an unfinished snapshot: %s", self._identity.node_id, error, extra={"event": "file_not_removed"}
            )

    async def _run(self) -> None:
        """One attempt."""
        try:
            plan = await self._download()
            self.lacks_room = False
            self.state = "installing a snapshot"
            await self._target.decide_snapshot(plan)
        except (DledgerError, OSError) as error:
            if isinstance(error, OSError) and not is_full(error):
                raise
            self.lacks_room |= isinstance(error, OSError | StorageFullError)
            self.state = f"snapshot interrupted: {error}"
            _logger.warning("%s: %s", self._identity.node_id, self.state, extra={"event": "snapshot_failed"})
            await asyncio.sleep(PAUSE_S)
            return
        await self._target.replace_log(plan)
        self.has_leftover = self._none_sound = False
        self.state = ""

    # The node to ask

    async def _download(self) -> SnapshotPlan:
        offer = self._target.snapshot_wanted
        if offer is None:
            raise NotReadyError("the snapshot is no longer needed")
        problems, lacks_room, damaged = [], False, 0
        for node, address in self._candidates(offer):
            channel = connect_to(self._env.network, address, self._identity.principal_of(node))
            try:
                plan = await self._plan_of(channel, node, offer)
                await self._fetch(channel, node, plan)
                return plan
            except CorruptEntryError as error:
                self._distrusted[node] = None
                damaged += 1
                problems.append(f"{node}: {error.message}")
            except DledgerError as error:
                problems.append(f"{node}: {error.message}")
                lacks_room |= isinstance(error, StorageFullError)
            finally:
                await channel.close()
        self.lacks_room = lacks_room
        self._none_sound |= bool(problems) and damaged == len(problems)
        raise UnreachableError(f"no peer provided a snapshot: {'; '.join(problems)}")

    def _candidates(self, offer: FetchSnapshot) -> list[tuple[NodeId, str]]:
        """The leader last; sources that sent damaged bytes only when no other is left."""
        addresses = {node: address for node, address in self._target.snapshot_sources().items() if node != self._identity.node_id}
        trusted = {node: address for node, address in addresses.items() if node not in self._distrusted}
        if not trusted:
            self._distrusted.clear()
            trusted = addresses
        return sorted(trusted.items(), key=lambda item: (item[0] == offer.source, item[0]))

    async def _plan_of(self, channel: Channel, node: NodeId, offer: FetchSnapshot) -> SnapshotPlan:
        own = self._identity
        request = copy_pb2.CopyPlanRequest(cluster=own.cluster, group=own.group, node_id=own.node_id, lineage=self._target.lineage)
        plan = SnapshotPlan.decode(await methods.COPY_PLAN.call_bytes(channel, request, timeout_s=CALL_TIMEOUT_S))
        if (plan.cluster, plan.group) != (own.cluster, own.group):
            raise InvalidArgumentError(f"a snapshot of {plan.cluster}/{plan.group}, expected {own.cluster}/{own.group}")
        if node != offer.source and plan.last.index < offer.last.index:
            raise NotReadyError(f"has applied {plan.last.index}, the leader had committed {offer.last.index}")
        if plan.last.index + 1 < offer.first_available:
            raise NotReadyError(f"has applied {plan.last.index}, the leader's log begins at {offer.first_available}")
        incompatibility = self._target.incompatibility(plan)
        if incompatibility is not None:
            raise NotReadyError(incompatibility)
        return plan

    # The bytes

    async def _fetch(self, channel: Channel, node: NodeId, plan: SnapshotPlan) -> None:
        disk = self._env.disk
        receiver = SnapshotReceiver(disk, plan)
        try:
            await receiver.resume()
            state_bytes = sum(file.size_bytes for file in plan.files if file.size_bytes >= 0)
            wanted, free = plan.size_bytes - receiver.received_bytes + state_bytes, await disk.free_bytes()
            if free < wanted:
                raise StorageFullError(f"the snapshot needs {wanted} more bytes; the disk has {free} free")
            self.lacks_room = False
            text = "%s: fetching a snapshot of entries %d to %d from %s, %d of %d bytes received"
            held = receiver.received_bytes
            _logger.warning(
                text,
                self._identity.node_id,
                plan.start.first_index,
                plan.last.index,
                node,
                held,
                plan.size_bytes,
                extra={"event": "snapshot_needed"},
            )
            if not receiver.done:
                await self._fetch_log(channel, node, plan, receiver)
            receiver.check_end()
        finally:
            await receiver.close()
        for number, file in enumerate(plan.files):
            if file.size_bytes >= 0:
                await self._fetch_file(channel, plan, number, file)

    async def _fetch_log(self, channel: Channel, node: NodeId, plan: SnapshotPlan, receiver: SnapshotReceiver) -> None:
        own = self._identity
        stream = methods.COPY_LOG.open(channel)
        request = copy_pb2.CopyLogRequest(cluster=own.cluster, group=own.group, copy_id=plan.copy_id, from_pos=receiver.pos)
        await stream.write(request.SerializeToString())
        await stream.close()
        while not receiver.done:
            if self._target.snapshot_wanted is None:
                raise NotReadyError("the leader's entries can be appended again")
            piece = await _read(stream)
            pos, data = _checked(plan, piece)
            await receiver.take(pos, data)
            self._received(len(data))
            self.state = f"fetching a snapshot from {node}: {receiver.received_bytes >> 20} of {plan.size_bytes >> 20} MiB"

    def _received(self, size_bytes: int) -> None:
        if not self._none_sound:  # else what is fetched again in each attempt would look like progress without end
            self.copied_bytes += size_bytes

    async def _fetch_file(self, channel: Channel, plan: SnapshotPlan, number: int, file: PlanFile) -> None:
        own = self._identity
        content = bytearray()
        while len(content) < file.size_bytes:
            request = copy_pb2.CopyStateRequest(
                cluster=own.cluster, group=own.group, copy_id=plan.copy_id, path=file.path, from_pos=len(content)
            )
            piece = await methods.COPY_STATE.call_bytes(channel, request, timeout_s=PIECE_TIMEOUT_S)
            pos, data = _checked(plan, piece)
            if pos != len(content) or not data:
                raise CorruptEntryError(f"{file.path}: a piece at {pos}, expected one at {len(content)}")
            content += data
            self._received(len(data))
        if len(content) != file.size_bytes or crc32c(content) != file.crc:
            raise CorruptEntryError(f"{file.path} does not match the plan")
        await self._env.disk.write_atomic(received_state_path(number), bytes(content))


async def _read(stream: ByteStream) -> bytes:
    try:
        async with asyncio.timeout(PIECE_TIMEOUT_S):
            piece = await stream.read()
    except TimeoutError:
        raise DeadlineExceededError(f"no data for {PIECE_TIMEOUT_S:g} s") from None
    if piece is None:
        raise UnreachableError("the source closed the stream before the snapshot was complete")
    return piece


def _checked(plan: SnapshotPlan, piece: bytes) -> tuple[int, memoryview]:
    """Position and bytes of a piece.  CorruptEntryError unless it belongs to this snapshot and is intact."""
    header, payload = envelope.decode(copy_pb2.CopyPiece, piece)
    if header.copy_id != plan.copy_id:
        raise CorruptEntryError(f"a piece of snapshot {header.copy_id!r}, expected {plan.copy_id!r}")
    if crc32c(payload) != header.crc:
        raise CorruptEntryError(f"the checksum of a piece at {header.pos} does not match")
    return header.pos, payload
