"""Checking a repository: every manifest, every file that one names, every entry in it.

Each file is read once, however many backups share it.  Yields what is damaged as a line with file and place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dledger.snapshot.receiver import EntryCheck
from dledger_offline.backup.manifest import GroupBackup, Manifest
from dledger_offline.backup.reading import check_part, state_content
from dledger_offline.backup.repository import Repository, found_repository
from dledger_wire.errors import StorageDamagedError


def verify_backups(source: str, progress: Callable[[int], None] = lambda _size: None) -> Iterator[StorageDamagedError]:
    """Check every backup in a folder or at a URL, the newest first; yields what is damaged, with ``file`` and ``pos`` in ``details``.

    ``progress`` gets the bytes that were read since the last call.  InvalidArgumentError when there are no backups.
    """
    return check_repository(found_repository(source), progress)


def check_repository(repository: Repository, progress: Callable[[int], None] = lambda _size: None) -> Iterator[StorageDamagedError]:
    """Everything that is not as it should be, the newest backup first."""
    checked: set[tuple[str, str]] = set()
    for backup_id in reversed(repository.ids()):
        try:
            manifest = repository.manifest(backup_id)
        except StorageDamagedError as error:
            yield error
            continue
        yield from check_backup(repository, manifest, checked, progress)


def check_backup(
    repository: Repository, manifest: Manifest, checked: set[tuple[str, str]], progress: Callable[[int], None]
) -> Iterator[StorageDamagedError]:
    """What is damaged of one backup, but for what is in ``checked`` already."""
    for group in manifest.groups.values():
        yield from _check_log(repository, group, checked, progress)
        for file in group.state:
            if _is_new(checked, file.file, file.sha256):
                try:
                    progress(len(state_content(repository, file)))
                except StorageDamagedError as error:
                    yield error


def _check_log(
    repository: Repository, group: GroupBackup, checked: set[tuple[str, str]], progress: Callable[[int], None]
) -> Iterator[StorageDamagedError]:
    index, term, chain_crc = group.first_index, group.before_term, group.before_chain_crc
    for part in group.parts():
        if _is_new(checked, part.file, part.sha256):
            try:
                check_part(repository, part, EntryCheck(index, term, part.pos, chain_crc, part.end_pos))
            except StorageDamagedError as error:
                yield error
            progress(part.size_bytes)
        index, term, chain_crc = part.last_index + 1, part.last_term, part.chain_crc


def _is_new(checked: set[tuple[str, str]], file: str, checksum: str) -> bool:
    if (file, checksum) in checked:
        return False
    checked.add((file, checksum))
    return True
