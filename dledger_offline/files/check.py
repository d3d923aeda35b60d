"""The files of one stopped node, checked: what it reads of itself when it starts, log, index units, hard state, and what the store derived
from them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from broker.process.data_dir_lock import holder_pid
from broker.process.folder_formats import refuse_newer_files
from broker.process.foreign_files import foreign_files
from broker.process.identity import IDENTITY_FILE, RESTORING_MARK, read_identity
from dledger.log.report import DamageKind, Finding
from dledger.log.verify import verify_log
from dledger.membership import boot_history, lineage, peer_stores
from dledger.runtime.env import Disk
from dledger.runtime.real_disk import RealDisk
from dledger.snapshot.install import INSTALL_PATH
from dledger_wire.errors import DataDirectoryError
from store.offline.verify import verify_store


async def verify(folder: str | Path, on_progress: Callable[[int], None] = lambda _bytes: None) -> AsyncIterator[Finding]:
    """Everything that is not as it should be in the folder of a stopped node.  ``on_progress`` gets the bytes that were checked so far.

    DataDirectoryError when the node runs, when a catch-up copy is not complete, and for a file of a newer release, which this build cannot
    judge.
    """
    folder = str(folder)
    pid = holder_pid(folder)
    if pid is not None:
        raise DataDirectoryError(f"data folder {folder} is in use by pid {pid}; stop the node, or use verify --online")
    disk = RealDisk(folder)
    await refuse_newer_files(disk)
    if (Path(folder) / INSTALL_PATH).is_file():
        raise DataDirectoryError(f"{folder}: a catch-up copy is not complete ({INSTALL_PATH}); start the node once to complete it")
    async for finding in _own_files(disk):
        yield finding
    async for finding in verify_log(disk, on_progress=on_progress):
        if finding.kind is not DamageKind.FOREIGN_FILE:  # they come all together
            yield finding
    async for finding in verify_store(disk):
        yield finding
    for path in await foreign_files(disk, thorough=True):
        what = "a restore has not ended here" if path == RESTORING_MARK else "not a file of ours; left alone"
        yield Finding(disk.local_path(path), 0, 0, DamageKind.FOREIGN_FILE, what)


async def _own_files(disk: Disk) -> AsyncIterator[Finding]:
    """Those that a node reads before its log, read as it reads them."""
    readers: dict[str, Callable[[], Awaitable[object]]] = {
        IDENTITY_FILE: lambda: read_identity(disk),
        boot_history.PATH: lambda: boot_history.read_boots(disk),
        lineage.PATH: lambda: lineage.read_lineage(disk),
        peer_stores.PATH: lambda: peer_stores.read_stores(disk),
    }
    for path, read in readers.items():
        try:
            if await disk.exists(path):
                await read()
        except DataDirectoryError as error:
            where = disk.local_path(path)
            yield Finding(where, 0, 0, DamageKind.OWN_FILE, error.message.removeprefix(where).lstrip(": "))
