"""Which backups go: all but the newest of each replica group, and then the files that no backup names any more.

Files of a backup that is being taken are named by no manifest yet, so what is young stays: a name says when its backup began.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from dledger_cli.backup.manifest import time_of_id
from dledger_cli.backup.repository import Repository
from dledger_wire.errors import StorageDamagedError

UNFINISHED_KEPT = timedelta(days=1)


def keep_newest(repository: Repository, count: int) -> list[str]:
    """Remove all backups but the ``count`` newest of each replica group, and what nothing needs; the ids of those removed."""
    ids = repository.ids()
    removed = _replaced(repository, ids, count)
    kept = [backup_id for backup_id in ids if backup_id not in removed]
    needed = {file for backup_id in kept for file in repository.manifest(backup_id).files()}
    went = {file for backup_id in removed for file in _files_of(repository, backup_id)} - needed
    for backup_id in removed:
        repository.remove_backup(backup_id)
    latest = time_of_id(datetime.now(UTC) - UNFINISHED_KEPT)
    for path in repository.sizes():
        if path in went or (path not in needed and _begun(path) < latest):
            repository.remove(path)
    return removed


def _replaced(repository: Repository, ids: list[str], count: int) -> list[str]:
    """The backups of whose every group there are ``count`` newer ones: one of a single group replaces nothing of the others."""
    newer, replaced = Counter[str](), []
    for backup_id in reversed(ids):
        groups = repository.manifest(backup_id).groups
        if all(newer[name] >= count for name in groups):
            replaced.append(backup_id)
        newer.update(groups.keys())
    return replaced[::-1]


def _files_of(repository: Repository, backup_id: str) -> set[str]:
    """Of a damaged manifest it is not known; its files go when they are old enough."""
    try:
        return repository.manifest(backup_id).files()
    except StorageDamagedError:
        return set()


def _begun(path: str) -> str:
    """When the backup began that made a file, as it stands in ids; of other files nothing is known, and they stay."""
    folders = path.split("/")
    if len(folders) == 3 and folders[1] == "log":
        return folders[2].partition("-")[2].partition("-")[2]
    if len(folders) > 3 and folders[1] == "state":
        return folders[2]
    return "9"
