"""Up to which entry a group is restored, and from which state: the end of a backup, or the last entry of a time.

Owns the choice.  A state is of one entry, that at which its backup was made.  For a time between two backups the state of the earlier one
is taken with the log of the later one; the node replays what lies between.  Without an earlier state a log that still begins with its
first entry is replayed whole.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime

from dledger.log.entry import RawEntry
from dledger_offline.backup.manifest import GroupBackup, Manifest
from dledger_offline.backup.reading import entries_from
from dledger_offline.backup.repository import Repository
from dledger_wire.batches.batch import BatchView
from dledger_wire.errors import InvalidArgumentError, StorageDamagedError
from store.log_view import entry_records


@dataclass(frozen=True, slots=True)
class Point:
    """The last entry that is restored.  ``state`` is of the backup whose state is at it or before; None: the log is replayed whole."""

    log: GroupBackup
    state: GroupBackup | None
    index: int
    term: int
    end_pos: int
    chain_crc: int
    stored_ms: int


def end_of(group: GroupBackup) -> Point:
    """All of a backup."""
    return Point(group, group, group.last_index, group.last_term, group.end_pos, group.chain_crc, group.stored_ms)


def with_true_times(manifests: list[Manifest]) -> list[Manifest]:
    """Backups in the order in which they were made, none begun later than one behind it: a clock that was ahead does not count."""
    found: list[Manifest] = []
    for manifest in reversed(manifests):
        ahead = bool(found) and found[-1].created_ms < manifest.created_ms
        found.append(manifest.model_copy(update={"created_ms": found[-1].created_ms}) if ahead else manifest)
    return found[::-1]


def backup_for(repository: Repository, manifests: list[Manifest], at_ms: int) -> Manifest:
    """The earliest backup that has everything up to a time.  InvalidArgumentError when all are older."""
    for number, manifest in enumerate(manifests):
        if manifest.covers(at_ms) and not _lacks(repository, manifest, manifests[number + 1 :], at_ms):
            return manifest
    newest = f"the newest backup was begun at {time_text(manifests[-1].created_ms)}" if manifests else "there is no backup"
    raise InvalidArgumentError(f"{repository.url}: {newest}, nothing later can be restored")


def _lacks(repository: Repository, manifest: Manifest, later: list[Manifest], at_ms: int) -> bool:
    """Whether a later backup shows that something of that time came behind this one: then the clock of this one's node was ahead."""
    for name, group in manifest.groups.items():
        found = (each.groups[name] for each in later if name in each.groups)
        newer = next((each for each in found if each.last_index > group.last_index), None)
        if group.stored_ms < at_ms and newer is not None and 0 < _first_time_behind(repository, newer, group.last_index) <= at_ms:
            return True
    return False


def _first_time_behind(repository: Repository, log: GroupBackup, index: int) -> int:
    """When the first message or command behind an entry was stored; 0 when that is unknown."""
    with contextlib.suppress(StorageDamagedError):  # what is restored may need nothing of it
        for entry in entries_from(repository, log, index + 1):
            if entry.index > index and (found := time_of(entry)):
                return found
    return 0


def point_at(repository: Repository, manifests: list[Manifest], manifest: Manifest, name: str, at_ms: int) -> Point:
    """The last entry of group ``name`` whose time is not after ``at_ms``.  InvalidArgumentError names the earliest time that there is."""
    log = manifest.groups[name]
    if log.stored_ms <= at_ms:
        return end_of(log)
    states = [found for each in manifests if (found := each.groups.get(name)) is not None and _fits(found, log)]
    usable = [state for state in states if state.stored_ms <= at_ms]
    state = max(usable, key=lambda found: found.last_index, default=None)
    if state is None and log.first_index > 1:
        earliest = min(found.stored_ms for found in (*states, log))
        raise _too_early(name, manifest, earliest)
    return _scan(repository, log, state, at_ms) or _before_the_first(repository, log, name, manifest)


def _fits(state: GroupBackup, log: GroupBackup) -> bool:
    """Whether the entry of a state is in the log, or just below its first one, so that the log goes on from there."""
    if (state.last_index, state.last_term, state.chain_crc) == (log.first_index - 1, log.before_term, log.before_chain_crc):
        return True
    return log.first_index <= state.last_index <= log.last_index


def _scan(repository: Repository, log: GroupBackup, state: GroupBackup | None, at_ms: int) -> Point | None:
    """Entries behind the state's up to the first one that is too late; None when there is none before that."""
    last: Point | None = None
    known_ms = 0
    if state is not None:
        known_ms = state.stored_ms
        last = Point(log, state, state.last_index, state.last_term, state.end_pos, state.chain_crc, state.stored_ms)
    first = state.last_index if state is not None else 0
    for entry in entries_from(repository, log, max(first, log.first_index)):
        if state is not None and entry.index == first and (entry.term, entry.chain_crc) != (state.last_term, state.chain_crc):
            raise InvalidArgumentError(f"{repository.url}: the backups are of different clusters; expected --backup without --at")
        if entry.index <= first:
            continue
        known_ms = max(known_ms, time_of(entry))
        if known_ms > at_ms:
            return last
        if known_ms:
            last = Point(log, state, entry.index, entry.term, entry.end_pos, entry.chain_crc, known_ms)
    return last


def time_of(entry: RawEntry) -> int:
    """When the newest message or command in an entry was stored, ms since 1970; 0 for an entry without any."""
    newest = 0
    for _, record in entry_records(entry):
        newest = max(newest, record.store_timestamp if isinstance(record, BatchView) else int(record.arguments.get("at_ms", 0)))
    return newest


def _before_the_first(repository: Repository, log: GroupBackup, name: str, manifest: Manifest) -> Point:
    for entry in entries_from(repository, log, log.first_index):
        if time_of(entry):
            raise _too_early(name, manifest, time_of(entry))
    raise _too_early(name, manifest, log.stored_ms)


def _too_early(name: str, manifest: Manifest, earliest_ms: int) -> InvalidArgumentError:
    text = f"replica group {name}: backup {manifest.id} has nothing of that time; the earliest it can give is {time_text(earliest_ms)}"
    return InvalidArgumentError(text)


def time_text(at_ms: int) -> str:
    """A time as --at takes it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
