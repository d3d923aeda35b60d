"""What a backup is: its manifest, which is written last, so that what has none is no backup.

Owns the manifest's fields, their checks and its bytes: a line with the sha256 of the rest, one of JSON.  The log is kept in parts, each a
run of entries of one segment that never changes; manifests share them, so that the next backup adds only what is new.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dledger.core.types import EntryId
from dledger.log.start import LogStart
from dledger.membership.configuration import Configuration
from dledger_wire import strict_json
from dledger_wire.errors import CorruptEntryError, StorageDamagedError
from dledger_wire.printable import printable

FORMAT = 1
_STATE_PATH = re.compile(r"config/[A-Za-z]{1,64}\.json")  # what snapshots of the store have
MAX_STATE_BYTES = 1 << 30  # of one file; it is kept in memory while it is read


def _file_of_repository(path: str) -> str:
    if not path.isprintable() or "\\" in path or not all(part.strip(".") for part in path.split("/")):
        raise ValueError("expected the path of a file of the repository")
    return path


def _file_of_state(path: str) -> str:
    if _STATE_PATH.fullmatch(path) is None:
        raise ValueError("expected the path of a file of the replicated state")
    return path


FilePath = Annotated[str, AfterValidator(_file_of_repository)]
Size = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Part(_Model):
    """A file with entries of one segment: from ``pos`` on, up to the end of entry ``last_index``."""

    file: FilePath
    pos: Size
    size_bytes: Size
    sha256: str
    last_index: int
    last_term: int
    chain_crc: int

    @property
    def end_pos(self) -> int:
        return self.pos + self.size_bytes


class SegmentCopy(_Model):
    """The entries of one segment."""

    start_pos: int
    first_index: int
    parts: tuple[Part, ...]

    @property
    def end_pos(self) -> int:
        return self.parts[-1].end_pos


class StateFile(_Model):
    """A file of the replicated state; ``path`` is its place in a data folder."""

    path: Annotated[str, AfterValidator(_file_of_state)]
    file: FilePath
    size_bytes: Annotated[int, Field(ge=0, le=MAX_STATE_BYTES)]
    sha256: str


class GroupBackup(_Model):
    """One replica group at its entry ``last_index``: the log up to there, and the state there.

    ``configuration`` is the body of the configuration entry that counts there, ``configuration_index`` its index (0: none yet).
    ``stored_ms`` is the time of the newest message or command.
    """

    node: str
    first_index: int
    first_pos: int
    before_term: int
    before_chain_crc: int
    last_index: int
    last_term: int
    stored_ms: int
    configuration: str
    configuration_index: int
    queue_file_units: int
    segments: tuple[SegmentCopy, ...]
    state: tuple[StateFile, ...]

    @property
    def start(self) -> LogStart:
        return LogStart(self.first_index, self.first_pos, self.before_term, self.before_chain_crc)

    @property
    def last(self) -> EntryId:
        return EntryId(self.last_index, self.last_term)

    @property
    def chain_crc(self) -> int:
        """Of the last entry: it stands for the whole log up to there."""
        return self.segments[-1].parts[-1].chain_crc

    @property
    def end_pos(self) -> int:
        return self.segments[-1].end_pos

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts()) + sum(file.size_bytes for file in self.state)

    def parts(self) -> Iterator[Part]:
        for segment in self.segments:
            yield from segment.parts

    def members(self) -> Configuration | None:
        """CorruptEntryError when the configuration is not one."""
        return Configuration.decode(self.configuration.encode()) if self.configuration else None


class Manifest(_Model):
    """A whole backup.  ``created_ms`` is when it began."""

    format: int = FORMAT
    id: str
    cluster: str
    software: str
    created_ms: int
    groups: dict[str, GroupBackup]

    def covers(self, at_ms: int) -> bool:
        """Whether nothing that was stored until a time can be missing: it began later, or has something later of every group."""
        return self.created_ms >= at_ms or all(group.stored_ms >= at_ms for group in self.groups.values())

    def files(self) -> set[str]:
        """Every file that it needs."""
        return set(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Every file that it needs, with its size."""
        found: dict[str, int] = {}
        for group in self.groups.values():
            found |= {part.file: part.size_bytes for part in group.parts()} | {file.file: file.size_bytes for file in group.state}
        return found


def time_of_id(moment: datetime) -> str:
    """How the ids of backups begin that begin at a moment (UTC): they sort by time."""
    return f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03d}Z"


def moment_of_id(backup_id: str) -> datetime:
    """When a backup began, to the millisecond, as its id says."""
    text = backup_id.partition("Z")[0]
    return datetime.strptime(f"{text}000", "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC)


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest."""
    text = json.dumps(manifest.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode() + b"\n" + text + b"\n"


def decode(data: bytes, place: str) -> Manifest:
    """The manifest at ``place``.  StorageDamagedError when it is damaged, or of a format this program does not read."""
    head, _, rest = data.partition(b"\n")
    text = rest.removesuffix(b"\n")
    try:
        if strict_json.parse(head)["sha256"] != hashlib.sha256(text).hexdigest():
            raise _damaged(place, "its checksum does not match")
        version = strict_json.parse(text)["format"]
        if version != FORMAT:
            raise StorageDamagedError(f"{place} has format {version}, this program reads {FORMAT}", file=place, pos=0)
        manifest = Manifest.model_validate_json(text)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(place, _reason(error)) from None
    for name, group in manifest.groups.items():
        fault = _fault(group)
        if fault:
            raise _damaged(place, f"replica group {name}: {fault}")
    return manifest


def _reason(error: Exception) -> str:
    """In one line of printable text: a manifest may say anything."""
    if not isinstance(error, ValidationError):
        return printable(str(error))
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return printable(f"{where}: {first['msg']}")


def _damaged(place: str, what: str) -> StorageDamagedError:
    return StorageDamagedError(f"{place} is damaged: {what}", file=place, pos=0)


def _fault(group: GroupBackup) -> str:
    """What cannot be in a group's backup; empty for nothing."""
    if not group.segments or any(not segment.parts for segment in group.segments):
        return "a log without entries"
    first = group.segments[0]
    if (first.start_pos, first.first_index) != (group.first_pos, group.first_index):
        return f"the first segment is at {first.start_pos}, the log begins at {group.first_pos}"
    for segment in group.segments:
        if segment.parts[0].pos != segment.start_pos or any(low.end_pos != high.pos for low, high in pairwise(segment.parts)):
            return f"the parts of the segment at {segment.start_pos} have gaps"
    for low, high in pairwise(group.segments):
        if low.end_pos > high.start_pos or low.parts[-1].last_index + 1 != high.first_index:
            return f"the segment at {high.start_pos} does not follow the one before"
    last = group.segments[-1].parts[-1]
    if (last.last_index, last.last_term) != (group.last_index, group.last_term):
        return f"the log ends with entry {last.last_index}, expected {group.last_index}"
    try:
        group.members()
    except CorruptEntryError as error:
        return error.message
    return ""
