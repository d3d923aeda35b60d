"""The hard state on disk: (term, vote), what this node promised, never to be taken back.

One file with two slots written in turn; a generation counter says which is newer, so a torn write leaves the previous promise whole.
Each slot holds its record twice, in blocks of their own: damage to a single block never brings an older promise back to life.  A record
fits a sector, so a torn write leaves each copy the old one or the new one; a slot without a readable copy is therefore damaged, may have
held the newest promise, and is refused.  Every start rewrites both slots' copies, so that single damages do not accumulate.

    0      slot 0, copy 0      8192   slot 1, copy 0
    4096   slot 0, copy 1      12288  slot 1, copy 1
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dledger.core.types import HardState, NodeId
from dledger.runtime.env import Disk, File
from dledger.runtime.folders import HARD_STATE_PATH
from dledger_wire.check import require
from dledger_wire.checksum import crc32c
from dledger_wire.errors import StorageDamagedError
from dledger_wire.formats import HARD_STATE

MAGIC: Final = 0x44_4C_48_53  # "DLHS"
FORMAT_VERSION: Final = HARD_STATE.current
COPY_BYTES: Final = 4096
SLOT_BYTES: Final = 2 * COPY_BYTES
FILE_BYTES: Final = 2 * SLOT_BYTES
MAX_VOTE_BYTES: Final = 255

_RECORD: Final = struct.Struct(
    ">"
    "I"  # 0  magic
    "H"  # 4  format version
    "H"  # 6  vote length, 0xFFFF for no vote
    "q"  # 8  generation
    "q"  # 16 term
)
_CRC: Final = struct.Struct(">I")  # after the vote: crc32c over everything before it
_NO_VOTE: Final = 0xFFFF
if _RECORD.size != 24 or _RECORD.size + MAX_VOTE_BYTES + _CRC.size > COPY_BYTES:
    raise ImportError("the hard state's record does not fit its block")


class Record(NamedTuple):
    generation: int
    state: HardState


@dataclass(slots=True)
class SlotCopy:
    """One of the four blocks as found: ``record`` is None when it holds none, ``blank`` when it was never written.

    ``version``: the format that it says it has, 0 when it says none.
    """

    pos: int
    record: Record | None
    blank: bool
    version: int = 0


def encode_record(record: Record) -> bytes:
    vote = b"" if record.state.vote is None else record.state.vote.encode()
    require(len(vote) <= MAX_VOTE_BYTES, "node id of %d bytes", len(vote))
    length = _NO_VOTE if record.state.vote is None else len(vote)
    data = _RECORD.pack(MAGIC, FORMAT_VERSION, length, record.generation, record.state.term) + vote
    return data + _CRC.pack(crc32c(data))


def decode_record(data: bytes) -> Record | None:
    """The record at the start of a block, or None when it is not whole."""
    if len(data) < _RECORD.size + _CRC.size:
        return None
    magic, version, length, generation, term = _RECORD.unpack_from(data)
    vote_size = 0 if length == _NO_VOTE else length
    end = _RECORD.size + vote_size
    if magic != MAGIC or version != FORMAT_VERSION or vote_size > MAX_VOTE_BYTES or len(data) < end + _CRC.size:
        return None
    if _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        return None
    try:
        vote = None if length == _NO_VOTE else NodeId(data[_RECORD.size : end].decode())
    except UnicodeDecodeError:
        return None
    return Record(generation, HardState(term, vote))


async def read_copies(file: File) -> list[SlotCopy]:
    """The four blocks as they stand."""
    copies = []
    for pos in range(0, FILE_BYTES, COPY_BYTES):
        try:
            data = await file.pread(pos, COPY_BYTES)
        except OSError:
            copies.append(SlotCopy(pos, None, blank=False))
        else:
            magic, version = _RECORD.unpack_from(data)[:2] if len(data) >= _RECORD.size else (0, 0)
            copies.append(SlotCopy(pos, decode_record(data), not any(data), version if magic == MAGIC else 0))
    return copies


def newer_version(copies: Sequence[SlotCopy]) -> int | None:
    """The format of a newer release that both copies of a slot have; one alone may be a damaged byte."""
    for first, second in (copies[:2], copies[2:]):
        if first.version == second.version > FORMAT_VERSION:
            return first.version
    return None


def newest_of(copies: Sequence[SlotCopy]) -> Record | None:
    """The newest record there is, if any can be read."""
    return max((copy.record for copy in copies if copy.record is not None), key=lambda record: record.generation, default=None)


def lost_slot(copies: Sequence[SlotCopy]) -> int | None:
    """Where a slot begins that has no readable copy although it was written to, so that what it promised is not known."""
    newest = newest_of(copies)
    for first, second in (copies[:2], copies[2:]):
        written = first.pos > 0 or not (first.blank and second.blank) or (newest is not None and newest.generation > 2)
        if written and first.record is None and second.record is None:
            return first.pos
    return None


class HardStateFile:
    """The open file and the newest promise in it."""

    def __init__(self, file: File, generation: int, state: HardState) -> None:
        self._file = file
        self._generation = generation
        self.state = state

    @classmethod
    async def open(cls, disk: Disk, *, log_is_empty: bool) -> HardStateFile:
        """Open or create.  StorageDamagedError when the promises of a used folder cannot be read: the node must not vote."""
        is_new = not await disk.exists(HARD_STATE_PATH)
        if is_new:
            if not log_is_empty:
                raise _lost(disk, "is missing, but the log holds entries")
            # Made whole with a first record in it, so a file without a readable record is never a crash, always damage.
            await disk.write_atomic(HARD_STATE_PATH, bytes(SLOT_BYTES) + _slot(Record(1, HardState())))
        file = await disk.open(HARD_STATE_PATH)
        copies = await read_copies(file)
        newest, lost_pos = newest_of(copies), lost_slot(copies)
        if newest is None or lost_pos is not None:
            await file.close()
            raise _lost(disk, "holds no readable record" if newest is None else f"holds neither copy of the record at byte {lost_pos}")
        if not is_new:
            # The newest record may be one that a killed process wrote and did not sync; from here on it counts as a promise.
            await file.pwrite(newest.generation % 2 * SLOT_BYTES, [_slot(newest)], sync=True)
            older = newest_of([copy for copy in copies if copy.record is not None and copy.record.generation % 2 != newest.generation % 2])
            if older is not None:
                await file.pwrite(older.generation % 2 * SLOT_BYTES, [_slot(older)], sync=True)
        return cls(file, newest.generation, newest.state)

    async def save(self, state: HardState) -> None:
        """Write and sync; only then is it the state."""
        record = Record(self._generation + 1, state)
        await self._file.pwrite(record.generation % 2 * SLOT_BYTES, [_slot(record)], sync=True)
        self._generation = record.generation
        self.state = state

    async def close(self) -> None:
        await self._file.close()


def _slot(record: Record) -> bytes:
    data = encode_record(record)
    return (data + bytes(COPY_BYTES - len(data))) * 2


def _lost(disk: Disk, what: str) -> StorageDamagedError:
    path = disk.local_path(HARD_STATE_PATH)
    text = f"{path} {what}: the node's term and vote are lost, so it must not vote; remove it from the group and add it again"
    return StorageDamagedError(text, file=path, pos=0)
