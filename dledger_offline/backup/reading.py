"""The bytes of a backup, checked as they are read: parts against their sha256, entries one after the other.

Owns what damage of a repository reads like: file and place, in one line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from dledger.log.entry import Header, RawEntry, header_fault, parse_entry
from dledger.snapshot.receiver import EntryCheck
from dledger_offline.backup.manifest import GroupBackup, Part, StateFile
from dledger_offline.backup.repository import Repository
from dledger_wire.errors import CorruptEntryError, StorageDamagedError
from dledger_wire.layout import ENTRY_HEADER_SIZE


def damaged(repository: Repository, path: str, what: str, pos: int = 0) -> StorageDamagedError:
    """A file of the repository is not what its manifest says."""
    place = repository.place(path)
    return StorageDamagedError(f"{place} is damaged: {what}", file=place, pos=pos)


def pieces(repository: Repository, file: Part | StateFile) -> Iterator[bytes]:
    """The bytes of a file.  StorageDamagedError at their end, or where they go on behind it, when they are not those that were written."""
    checksum, size = hashlib.sha256(), 0
    for piece in repository.read(file.file):
        checksum.update(piece)
        size += len(piece)
        if size > file.size_bytes:
            break
        yield piece
    if size != file.size_bytes:
        raise damaged(repository, file.file, f"{size} bytes, expected {file.size_bytes}", min(size, file.size_bytes))
    if checksum.hexdigest() != file.sha256:
        raise damaged(repository, file.file, "its checksum does not match")


def state_content(repository: Repository, file: StateFile) -> bytes:
    """A file of the state, as a whole."""
    return b"".join(pieces(repository, file))


def check_part(repository: Repository, part: Part, check: EntryCheck) -> None:
    """Check a part's bytes and entries.  ``check`` stands where the part begins, and then where it ends."""
    try:
        for piece in pieces(repository, part):
            check.feed(piece)
    except CorruptEntryError as error:
        raise damaged(repository, part.file, error.message, check.pos - part.pos) from None
    if (check.pos, check.index - 1, check.term, check.chain_crc) != (part.end_pos, part.last_index, part.last_term, part.chain_crc):
        raise damaged(repository, part.file, f"it ends with entry {check.index - 1}, expected {part.last_index}", check.pos - part.pos)


def entries_from(repository: Repository, group: GroupBackup, index: int) -> Iterator[RawEntry]:
    """The entries from ``index`` on, and some before it: from the beginning of the part that holds it.  Bodies are checked."""
    for part in group.parts():
        if part.last_index < index:
            continue
        rest = bytearray()
        for piece in pieces(repository, part):
            rest += piece
            at = 0
            view = memoryview(bytes(rest))
            while len(view) - at >= ENTRY_HEADER_SIZE:
                header = Header.unpack(view, at)
                fault = header_fault(header, part.size_bytes)
                if fault is not None:
                    raise damaged(repository, part.file, fault, header.pos - part.pos)
                if header.size > len(view) - at:
                    break
                try:
                    yield parse_entry(view, at)
                except CorruptEntryError as error:
                    raise damaged(repository, part.file, error.message, header.pos - part.pos) from None
                at += header.size
            rest = rest[at:]
