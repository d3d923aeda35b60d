"""Which backups go: all but the newest of each replica group, and then the files that no backup names any more.

Files of a backup that is being taken are named by no manifest yet, so what is young stays: a name says when its backup began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from dledger_offline.backup.manifest import Manifest, time_of_id
from dledger_offline.backup.repository import Repository
from dledger_wire.errors import StorageDamagedError

UNFINISHED_KEPT = timedelta(days=1)


def keep_newest(repository: Repository, count: int, left_aside: Callable[[StorageDamagedError], None] = lambda _error: None) -> list[str]:
    """Remove all backups but the ``count`` newest of each replica group, and what nothing needs; the ids of those removed.

    Which files a damaged backup needs is not known: as long as one is kept, all files stay, and ``left_aside`` gets it.
    """
    found = repository.manifests()
    removed = _replaced(found, count)
    went = {file for backup_id in removed for file in _files_of(found[backup_id])}
    kept = [each for backup_id, each in found.items() if backup_id not in removed]
    needed = {file for each in kept for file in _files_of(each)}
    for backup_id in removed:
        repository.remove_backup(backup_id)
    damages = [each for each in kept if isinstance(each, StorageDamagedError)]
    for damage in damages:
        left_aside(damage)
    if damages:
        return removed
    latest = time_of_id(datetime.now(UTC) - UNFINISHED_KEPT)
    for path in repository.sizes():
        if path not in needed and (path in went or _begun(path) < latest):
            repository.remove(path)
    return removed


def _replaced(found: dict[str, Manifest | StorageDamagedError], count: int) -> list[str]:
    """The backups of whose every group there are ``count`` newer ones: one of a single group replaces nothing of the others.

    A damaged backup replaces none, and goes as one of all groups would.
    """
    every = {name for each in found.values() if isinstance(each, Manifest) for name in each.groups}
    newer, replaced = Counter[str](), []
    for backup_id, each in reversed(found.items()):
        groups = each.groups.keys() if isinstance(each, Manifest) else every
        if groups and all(newer[name] >= count for name in groups):
            replaced.append(backup_id)
        if isinstance(each, Manifest):
            newer.update(groups)
    return replaced[::-1]


def _files_of(found: Manifest | StorageDamagedError) -> set[str]:
    """Of a damaged manifest it is not known; its files go when they are old enough."""
    return found.files() if isinstance(found, Manifest) else set()


def _begun(path: str) -> str:
    """When the backup began that made a file, as it stands in ids; of other files nothing is known, and they stay."""
    folders = path.split("/")
    if len(folders) == 3 and folders[1] == "log":
        return folders[2].partition("-")[2].partition("-")[2]
    if len(folders) > 3 and folders[1] == "state":
        return folders[2]
    return "9"
