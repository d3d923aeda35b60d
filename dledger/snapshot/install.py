"""Installing a snapshot: it replaces the old log and state as a whole or not at all.

Owns ``copy/install.json``.  Once that file is durable, the snapshot is this node's state: the steps that move it into place may stop
anywhere and are repeated at the next start, before anything is opened.  Until then the old log and state are untouched.  Every
step is idempotent: a file is moved if it has not been moved yet.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass

from dledger.log.recovery import remove_segment
from dledger.log.segment import UNITS_FOLDER, FilePool, list_starts, log_path, units_path
from dledger.log.start import LogStart, save_log_start
from dledger.runtime.env import Disk, is_full, read_file
from dledger.runtime.folders import LOG_FOLDER, SNAPSHOT_FOLDER
from dledger.snapshot.plan import SnapshotPlan
from dledger.snapshot.receiver import received_log_path, received_state_path, received_units_path
from dledger_wire import strict_json
from dledger_wire.checksum import crc32c
from dledger_wire.errors import CorruptEntryError, StorageDamagedError

INSTALL_PATH = f"{SNAPSHOT_FOLDER}/install.json"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Installation:
    """What goes where: segments by start, ``files`` as (path, number under copy/state or -1 for one to be removed)."""

    start: LogStart
    segments: list[int]
    files: list[tuple[str, int]]
    configuration: str  # content of configuration.json


def installation_of(plan: SnapshotPlan, configuration: str) -> Installation:
    files = [(file.path, number if file.size_bytes >= 0 else -1) for number, file in enumerate(plan.files)]
    return Installation(plan.start, [segment.start_pos for segment in plan.segments], files, configuration)


async def check_whole(disk: Disk, plan: SnapshotPlan) -> None:
    """CorruptEntryError when a file of the snapshot is missing."""
    paths = [path for segment in plan.segments for path in (received_log_path(segment.start_pos), received_units_path(segment.start_pos))]
    paths += [received_state_path(number) for number, file in enumerate(plan.files) if file.size_bytes >= 0]
    for path in paths:
        if not await disk.exists(path):
            raise CorruptEntryError(f"{disk.local_path(path)} of the snapshot is missing")


async def decide(disk: Disk, installation: Installation) -> bool:
    """Commit to the install; every file of the snapshot must be synced already.

    False when the disk is full and nothing was decided.  After any other error the outcome is unknown: the old log must not be used.
    """
    text = json.dumps(asdict(installation), sort_keys=True)
    try:
        await disk.write_atomic(INSTALL_PATH, json.dumps({"install": text, "crc32c": crc32c(text.encode())}).encode())
    except OSError as error:
        if not is_full(error):
            raise
        if await disk.exists(INSTALL_PATH):
            await disk.remove(INSTALL_PATH)
        return False
    return True


async def finish(disk: Disk, configuration_path: str) -> bool:
    """Move a snapshot that was committed to into place; False when there is none.  No file of the folder may be open."""
    if not await disk.exists(INSTALL_PATH):
        return False
    installation = await _load(disk)
    await _move_segments(disk, installation)
    for path, number in installation.files:
        if number >= 0:
            await _move(disk, received_state_path(number), path)
        elif await disk.exists(path):
            await disk.remove(path)
    await save_log_start(disk, installation.start)
    await disk.write_atomic(configuration_path, installation.configuration.encode())
    await disk.remove(INSTALL_PATH)
    await clear(disk)
    _logger.warning(
        "snapshot installed; the log now starts at entry %d", installation.start.first_index, extra={"event": "snapshot_installed"}
    )
    return True


async def _load(disk: Disk) -> Installation:
    data = await read_file(disk, INSTALL_PATH)
    try:
        record = strict_json.parse(data)
        text = record["install"]
        if record["crc32c"] == crc32c(text.encode()):
            fields = strict_json.parse(text)
            files = [(str(path), int(number)) for path, number in fields["files"]]
            return Installation(LogStart(**fields["start"]), fields["segments"], files, fields["configuration"])
    except (ValueError, KeyError, TypeError):
        pass
    path = disk.local_path(INSTALL_PATH)
    raise StorageDamagedError(f"{path} is damaged: a snapshot may be half installed; replace this node as a member", file=path, pos=0)


async def _move_segments(disk: Disk, installation: Installation) -> None:
    files = FilePool(disk, 4)
    try:
        old = {*(await list_starts(disk, LOG_FOLDER))[0], *(await list_starts(disk, UNITS_FOLDER))[0]}
        for start_pos in sorted(old - set(installation.segments)):
            await remove_segment(disk, files, start_pos)
    finally:
        await files.close()
    for start_pos in installation.segments:
        await _move(disk, received_log_path(start_pos), log_path(start_pos))
        await _move(disk, received_units_path(start_pos), units_path(start_pos))


async def _move(disk: Disk, source: str, target: str) -> None:
    if await disk.exists(source):
        await disk.rename(source, target)


async def clear(disk: Disk) -> None:
    """Remove the files of an unfinished snapshot."""
    for folder in (LOG_FOLDER, UNITS_FOLDER, "state"):
        for name in await disk.list(f"{SNAPSHOT_FOLDER}/{folder}"):
            if not name.endswith("/"):
                await disk.remove(f"{SNAPSHOT_FOLDER}/{folder}/{name}")
    for name in await disk.list(SNAPSHOT_FOLDER):
        if not name.endswith("/"):
            await disk.remove(f"{SNAPSHOT_FOLDER}/{name}")
