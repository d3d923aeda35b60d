"""What a snapshot is: a range of the log from its first segment to one committed entry, and the state machine's files at that entry.

Owns the value and its form on the wire.  A plan received from a peer is validated here; whether it fits this node is decided by
``catch_up.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from dledger.core.types import MAX_INDEX, MAX_TERM, EntryId
from dledger.log.log import Log
from dledger.log.start import LogStart
from dledger.membership.configuration import Configuration
from dledger_wire._pb import copy_pb2
from dledger_wire.checksum import crc32c
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.layout import MAX_SEGMENT_BYTES

_STATE_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """The state machine's files at one index: path in the data folder -> content, None for a file that must not be there."""

    index: int
    files: Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class PlanSegment:
    """Entries of one segment: from its start to behind its last entry.  All but the plan's last are whole segments."""

    start_pos: int
    first_index: int
    end_pos: int


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A file of the state machine; ``size_bytes`` -1: it must not be there."""

    path: str
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """Everything a receiver needs to know before the first byte."""

    copy_id: str
    cluster: str
    group: str
    start: LogStart
    last: EntryId
    segments: tuple[PlanSegment, ...]
    files: tuple[PlanFile, ...]
    configuration: Configuration | None
    configuration_index: int

    @property
    def size_bytes(self) -> int:
        return self.segments[-1].end_pos - self.start.first_pos

    def incompatibility(self, log: Log, commit_index: int) -> str | None:
        """Why the snapshot may not replace ``log``: it must add entries, and must not remove acknowledged ones."""
        if self.last.index <= commit_index or log.term_at(self.last.index) == self.last.term:
            return f"the snapshot ends at entry {self.last.index}, entry {commit_index} is committed here"
        if self.last.term > log.saved.term:
            return f"the snapshot ends in term {self.last.term}, this node is in term {log.saved.term}"
        return None

    def encode(self) -> bytes:
        message = copy_pb2.CopyPlan(
            copy_id=self.copy_id,
            cluster=self.cluster,
            group=self.group,
            first_index=self.start.first_index,
            first_pos=self.start.first_pos,
            before_term=self.start.before_term,
            before_chain_crc=self.start.before_chain_crc,
            last_index=self.last.index,
            last_term=self.last.term,
            configuration=self.configuration.encode() if self.configuration is not None else b"",
            configuration_index=self.configuration_index,
        )
        for segment in self.segments:
            message.segments.add(start_pos=segment.start_pos, first_index=segment.first_index, end_pos=segment.end_pos)
        for file in self.files:
            message.files.add(path=file.path, size_bytes=max(file.size_bytes, 0), crc=file.crc, absent=file.size_bytes < 0)
        return bytes(message.SerializeToString())

    @staticmethod
    def decode(data: bytes) -> SnapshotPlan:
        """InvalidArgumentError for bytes that are not a plan, or one that cannot be."""
        message = copy_pb2.CopyPlan()
        try:
            message.ParseFromString(data)
        except Exception as error:  # protobuf raises its own class
            raise InvalidArgumentError("malformed snapshot plan") from error
        plan = SnapshotPlan(
            copy_id=message.copy_id,
            cluster=message.cluster,
            group=message.group,
            start=LogStart(message.first_index, message.first_pos, message.before_term, message.before_chain_crc),
            last=EntryId(message.last_index, message.last_term),
            segments=tuple(PlanSegment(segment.start_pos, segment.first_index, segment.end_pos) for segment in message.segments),
            files=tuple(PlanFile(file.path, -1 if file.absent else file.size_bytes, file.crc) for file in message.files),
            configuration=Configuration.decode(message.configuration) if message.configuration else None,
            configuration_index=message.configuration_index,
        )
        fault = _fault(plan)
        if fault is not None:
            raise InvalidArgumentError(f"snapshot plan: {fault}")
        return plan


def state_files(files: Mapping[str, bytes | None]) -> tuple[PlanFile, ...]:
    """The files as a plan names them."""
    return tuple(PlanFile(path, -1, 0) if data is None else PlanFile(path, len(data), crc32c(data)) for path, data in files.items())


def _fault(plan: SnapshotPlan) -> str | None:
    segments, start, last = plan.segments, plan.start, plan.last
    if not plan.copy_id or not segments:
        return "no copy id or no segment"
    if (segments[0].start_pos, segments[0].first_index) != (start.first_pos, start.first_index) or start.first_index < 1:
        return f"the first segment is {segments[0]}, the log begins at {start}"
    if any(not 0 < segment.end_pos - segment.start_pos <= MAX_SEGMENT_BYTES for segment in segments):
        return "a segment of an impossible size"
    if any(low.end_pos > high.start_pos or low.first_index >= high.first_index for low, high in pairwise(segments)):
        return "segments out of order"
    if last.index > MAX_INDEX or last.term > MAX_TERM:
        return f"last entry {last}, which no log holds"
    if last.index < segments[-1].first_index or last.term < start.before_term:
        return f"last entry {last}, last segment from {segments[-1].first_index}"
    for file in plan.files:
        if _STATE_PATH.fullmatch(file.path) is None:
            return f"a file outside the data folder, {file.path!r}"
    return None
