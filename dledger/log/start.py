"""Where a log starts after its head was trimmed: ``logstart.json``, replaced atomically before any segment is deleted.

Owns the facts that go with the deleted entries: the identity of the entry just below the start (Raft compares with it) and its chain
CRC (the first kept entry continues it).  A log that was never trimmed has no such file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from dledger.core.types import EntryId
from dledger.runtime.env import Disk
from dledger_wire import strict_json
from dledger_wire.checksum import crc32c
from dledger_wire.errors import StorageDamagedError

LOG_START_PATH: Final = "logstart.json"


@dataclass(frozen=True, slots=True)
class LogStart:
    """The first kept entry and its place, and what lay just before it."""

    first_index: int = 1
    first_pos: int = 0
    before_term: int = 0
    before_chain_crc: int = 0

    @property
    def before(self) -> EntryId:
        return EntryId(self.first_index - 1, self.before_term)


def encode_log_start(start: LogStart) -> bytes:
    fields = json.dumps(asdict(start), sort_keys=True)
    return json.dumps({"start": asdict(start), "crc32c": crc32c(fields.encode())}, indent=1).encode() + b"\n"


def decode_log_start(data: bytes) -> LogStart | None:
    """The start, or None when the bytes are not one."""
    try:
        record = strict_json.parse(data)
        start = LogStart(**record["start"])
        crc = record["crc32c"]
    except (ValueError, TypeError, KeyError):
        return None
    if crc != crc32c(json.dumps(asdict(start), sort_keys=True).encode()):
        return None
    return start


async def load_log_start(disk: Disk) -> LogStart:
    """The start of the log; StorageDamagedError when the file is there but unreadable."""
    try:
        file = await disk.open(LOG_START_PATH)
    except FileNotFoundError:
        return LogStart()
    data = await file.pread(0, 1 << 16)
    await file.close()
    start = decode_log_start(data)
    if start is None:
        path = disk.local_path(LOG_START_PATH)
        raise StorageDamagedError(f"{path} is damaged: the start of this log is unknown", file=path, pos=0)
    return start


async def save_log_start(disk: Disk, start: LogStart) -> None:
    await disk.write_atomic(LOG_START_PATH, encode_log_start(start))
