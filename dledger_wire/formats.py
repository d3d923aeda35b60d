"""The versions of everything that outlives a process: what this build writes, and what it reads.

Owns the numbers; the layouts belong to the modules named in docs/reference/formats.md, which has the same table.  A format that gets a new
number here is written by this build from the feature level on that brings it (``feature_levels.py``), never before.

Versioned files state their version in the first bytes, so a file can be refused by name without being understood.  A JSON file has it as
its first field, ``format``; one without it has format 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dledger_wire.errors import DataDirectoryError

HEAD_BYTES: Final = 4096  # a version stands in these


@dataclass(frozen=True, slots=True)
class Format:
    """``file``: path in the data folder.  ``rebuilt``: made of the log, so a newer one is rewritten instead of being refused."""

    name: str
    file: str
    current: int = 1
    oldest: int = 1
    rebuilt: bool = False

    @property
    def reads(self) -> str:
        """The numbers that this build reads, as text."""
        return f"{self.oldest}" if self.oldest == self.current else f"{self.oldest} to {self.current}"


IDENTITY: Final = Format("identity of the folder", "identity.json")
HARD_STATE: Final = Format("hard state", "hardstate")
ENTRY: Final = Format("log entry, by its magic", "commitlog/", current=3)
RECORD: Final = Format("record in a log entry", "commitlog/")
SNAPSHOT: Final = Format("snapshot", "config/applied.json")
SECTION: Final = Format("section of a snapshot", "config/")
KEY_INDEX: Final = Format("marks of the key index", "config/keyIndex.json", rebuilt=True)

FORMATS: Final = (
    IDENTITY,
    HARD_STATE,
    ENTRY,
    RECORD,
    SNAPSHOT,
    SECTION,
    KEY_INDEX,
    Format("start of the log", "logstart.json"),
    Format("committed configuration", "configuration.json"),
    Format("data folders of peers", "peers.json"),
    Format("starts of the folder", "lives.json"),
    Format("lineage of the folder", "lineage.json"),
    Format("mark of unsynced data", "unsynced.json"),
    Format("group of a spare node", "spare.json"),
    Format("progress of a copy", "copy/progress.json"),
    Format("copy to be installed", "copy/install.json"),
    Format("changes of leader", "leaders.json"),
    Format("removed replica groups", "removed.json"),
)

_FIRST_FIELD: Final = re.compile(rb'\A(?:\{"crc32c": *"[0-9a-f]{1,8}"\}\n)?\{\s*"format(?:_version)?"\s*:\s*(\d{1,9})\s*[,}]')


def json_version(head: bytes) -> int | None:
    """The number that a JSON file, or one with a line of checksum before it, has in its first field; None when it has none."""
    found = _FIRST_FIELD.match(head)
    return None if found is None else int(found.group(1))


def newer(where: str, found: int, known: Format) -> DataDirectoryError:
    """The refusal of what a newer release wrote; ``where`` names the file."""
    return DataDirectoryError(f"{where}: format {found}; this build reads {known.reads}: start a newer release", format=str(found))
