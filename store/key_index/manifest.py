"""config/keyIndex.json: what the key index holds, file by file, and how far along the log it has come.

Owns the file.  It is outside ``index/``, where RocketMQ takes every file for an index file.  One line of checksum, one of JSON,
replaced as a whole; what its files hold up to their marks is durable before, as is the log up to ``index``.  A file that cannot be used is
none: the index is rebuilt from the log.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace

from dledger.runtime.env import Disk, read_file_unless_lost
from dledger_wire import strict_json
from dledger_wire.checksum import crc32c
from dledger_wire.formats import KEY_INDEX
from store.durability.snapshots import config_path
from store.key_index.index_file import Geometry, IndexMark, created_ms_of

MARKS = "keyIndex.json"
FORMAT = KEY_INDEX.current


@dataclass(frozen=True, slots=True)
class IndexMarks:
    """Everything up to log entry ``index`` of ``term`` (0: unknown) is in ``files``.  Building goes on behind it, with the message at
    ``resume_pos`` but for the first ``resume_skip`` of its keys when a file was given up in the middle of an entry."""

    geometry: Geometry
    index: int = 0
    term: int = 0
    store_ms: int = 0
    resume_pos: int = 0
    resume_skip: int = 0
    files: list[IndexMark] = field(default_factory=list)

    def without_first(self, count: int) -> IndexMarks:
        return replace(self, files=self.files[count:])

    def up_to(self, count: int) -> IndexMarks:
        """Without the files behind the first ``count``: as things stood when the next one was begun."""
        if count >= len(self.files):
            return self
        given_up = self.files[count]
        store_ms = self.files[count - 1].end_ms if count else 0
        return IndexMarks(
            self.geometry,
            given_up.first_index - 1,
            0,
            store_ms,
            given_up.begin_pos,
            given_up.skip,
            [replace(mark) for mark in self.files[:count]],
        )


def encode_marks(marks: IndexMarks) -> bytes:
    body = json.dumps(
        {
            "format": FORMAT,
            "slots": marks.geometry.slots,
            "entries": marks.geometry.entries,
            "index": marks.index,
            "term": marks.term,
            "storeTimestamp": marks.store_ms,
            "resume": [marks.resume_pos, marks.resume_skip],
            "files": [asdict(mark) for mark in marks.files],
        },
        separators=(",", ":"),
    ).encode()
    return json.dumps({"crc32c": f"{crc32c(body):08x}"}).encode() + b"\n" + body + b"\n"


def decode_marks(data: bytes) -> IndexMarks | None:
    """The marks; None when these are not bytes of ``encode_marks``."""
    head, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    names = {each.name for each in fields(IndexMark)}
    try:
        if strict_json.parse(head)["crc32c"] != f"{crc32c(body):08x}":
            return None
        found = strict_json.parse(body)
        files = [IndexMark(**row) for row in found["files"] if set(row) == names]
        if found["format"] != FORMAT or len(files) != len(found["files"]) or any(created_ms_of(mark.name) is None for mark in files):
            return None
        geometry = Geometry(found["slots"], found["entries"])
        resume_pos, resume_skip = found["resume"]
        return IndexMarks(geometry, found["index"], found["term"], found["storeTimestamp"], resume_pos, resume_skip, files)
    except (ValueError, KeyError, TypeError):
        return None


async def write_marks(disk: Disk, marks: IndexMarks) -> None:
    await disk.write_atomic(config_path(MARKS), encode_marks(marks))


async def read_marks(disk: Disk) -> tuple[IndexMarks | None, bool]:
    """(what the file says, whether there is a file); it says nothing when it is damaged."""
    data = await read_file_unless_lost(disk, config_path(MARKS))
    return (None, False) if data is None else (decode_marks(data), True)
