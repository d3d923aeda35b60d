"""Snapshots of the derived state: config/*.json in RocketMQ's shapes, and config/applied.json that says which log index they hold.

Owns the order of writing and the choice at start.  applied.json names each file of its snapshot with a checksum.  It steps back first and
its successor comes last, so a crash in between leaves the snapshot before whole: what it names is in the file or in its ``.bak``.  A
damaged newest snapshot falls back to the one before, and never takes its place.

    applied.json -> applied.json.bak | topics.json -> topics.json.bak | new topics.json | new applied.json
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dledger.runtime.env import Disk, read_file_unless_lost
from dledger_wire import strict_json
from dledger_wire.checksum import crc32c
from dledger_wire.formats import HEAD_BYTES, SECTION, SNAPSHOT, json_version, newer
from dledger_wire.store_layout import QUEUE_UNITS_PER_FILE
from store.queues.consume_queue import QueueMark
from store.state.json_pieces import encode, joined, pieces
from store.state.sequences import CapturedProducer, QueueKey

CONFIG_FOLDER = "config"
APPLIED = "applied.json"
BACKUP = ".bak"
FORMAT = SNAPSHOT.current


def no_snapshot(first_index: int) -> str:
    """Why there is no state where neither a snapshot nor the log's beginning is left, and what to do."""
    text = (
        f"no usable snapshot, and the log begins at entry {first_index}: the state cannot be rebuilt from it, and the node does not start"
    )
    return f"{text}; replace this node as a member (docs/guides/operate/replace-a-node.md), or put back its config folder"


@dataclass(slots=True)
class Snapshot:
    """The derived state at one log index.  ``sections``: file name under config/ -> its JSON data."""

    index: int
    term: int
    end_pos: int
    store_ms: int
    messages: int = 0
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    queues: dict[QueueKey, QueueMark] = field(default_factory=dict)
    sequences: Sequence[CapturedProducer] = ()
    sequence_rows: list[Any] = field(default_factory=list)  # in their place in one that was read
    queue_file_units: int = QUEUE_UNITS_PER_FILE
    queues_begin_pos: int = 0  # no queue has a message from before it in the log


def config_path(name: str) -> str:
    return f"{CONFIG_FOLDER}/{name}"


class Snapshots:
    """Writes and finds snapshots.  One call at a time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._current: dict[str, bytes] = {}  # content of each section's file
        self._backups: dict[str, bytes] = {}
        self._good: dict[str, bytes] = {}  # what the newest whole snapshot names
        self._named: set[int] = set()  # checksums of the files that the snapshots found name
        self._is_good = False  # applied.json and everything it names
        self.damaged: list[str] = []  # files that were found unusable at start

    @property
    def newest_is_good(self) -> bool:
        """Whether what was written last could be read; else what is found is older than the rest of the folder."""
        return self._is_good

    async def load(self) -> list[Snapshot]:
        """The good snapshots, newest first."""
        found: list[Snapshot] = []
        for name in (APPLIED, APPLIED + BACKUP):
            data = await self._read(name)
            if data is None:
                continue
            snapshot, contents = await self._parse(name, data)
            if snapshot is not None:
                self._good = self._good if found else contents
                found.append(snapshot)
                self._is_good |= name == APPLIED
        for name in found[0].sections if found else ():
            # Only what a snapshot needs counts as content: a damaged file is overwritten, never copied to its backup.
            for table, suffix in ((self._current, ""), (self._backups, BACKUP)):
                content = await self._read(name + suffix)
                if content is not None and crc32c(content) in self._named:
                    table[name] = content
        return found

    async def save(self, snapshot: Snapshot) -> None:
        """Make ``snapshot`` the newest; what its queues name must be durable already.

        One that failed half-way (a full disk) left section files that no snapshot names: they are written over, and never backed up.
        """
        if self._is_good:
            self._is_good = False
            await self._disk.rename(config_path(APPLIED), config_path(APPLIED + BACKUP))
        checksums, written = {}, {}
        for name, data in snapshot.sections.items():
            content, checksums[name] = await _encode(data)
            written[name] = content
            old = self._good.get(name)
            if old is not None and self._backups.get(name) != old:
                await self._disk.write_atomic(config_path(name + BACKUP), old)
                self._backups[name] = old
            if self._current.get(name) != content:
                await self._disk.write_atomic(config_path(name), content)
                self._current[name] = content
        await self._disk.write_atomic(config_path(APPLIED), await _encode_applied(snapshot, checksums))
        self._is_good = True
        self._good = written

    @staticmethod
    async def files(snapshot: Snapshot) -> dict[str, bytes | None]:
        """The files that hold ``snapshot`` and nothing else: content by path, None for a backup that must not stand beside them."""
        encoded = {name: await _encode(data) for name, data in snapshot.sections.items()}
        contents = {name: content for name, (content, _) in encoded.items()}
        contents[APPLIED] = await _encode_applied(snapshot, {name: checksum for name, (_, checksum) in encoded.items()})
        backups: dict[str, bytes | None] = {config_path(name + BACKUP): None for name in contents}
        return backups | {config_path(name): content for name, content in contents.items()}

    async def _read(self, name: str) -> bytes | None:
        """What a file holds, nothing where that cannot be read; None without the file."""
        return await read_file_unless_lost(self._disk, config_path(name))

    async def _parse(self, name: str, data: bytes) -> tuple[Snapshot | None, dict[str, bytes]]:
        """(the snapshot that an applied.json describes, None when it or a file of it is damaged; its section files' content)"""
        contents: dict[str, bytes] = {}
        _refuse_newer(data, self._disk.local_path(config_path(name)))
        parsed = _decode_applied(data)
        if parsed is None:
            self.damaged.append(self._disk.local_path(config_path(name)))
            return None, contents
        snapshot, checksums = parsed
        self._named.update(checksums.values())
        for section, checksum in checksums.items():
            content = await self._matching(section, checksum)
            # Files beside applied.json are exactly those it names; beside its backup there may be newer ones.
            if content is None or (name == APPLIED and content != await self._read(section)):
                self.damaged.append(self._disk.local_path(config_path(section)))
            if content is None:
                return None, contents
            version = json_version(content[:HEAD_BYTES]) or 1
            if version > SECTION.current:
                raise newer(self._disk.local_path(config_path(section)), version, SECTION)
            contents[section] = content
            snapshot.sections[section] = strict_json.parse(content)
        return snapshot, contents

    async def _matching(self, section: str, checksum: int) -> bytes | None:
        """The file of a section, or its backup, whichever has that checksum."""
        for candidate in (section, section + BACKUP):
            content = await self._read(candidate)
            if content is not None and crc32c(content) == checksum:
                return content
        return None


def described(data: bytes) -> Snapshot | None:
    """What an ``applied.json`` says, without the content of the other files; None when it is damaged."""
    parsed = _decode_applied(data)
    return parsed[0] if parsed is not None else None


async def _encode(data: Any) -> tuple[bytes, int]:
    """The bytes and checksum of a section."""
    parts, checksum = await _gathered(pieces(data))
    return b"".join(parts), checksum


async def _encode_applied(snapshot: Snapshot, checksums: dict[str, int]) -> bytes:
    """applied.json: a line with the checksum of the rest, one of JSON."""
    parts, checksum = await _gathered(_applied_pieces(snapshot, checksums))
    return b"".join([encode({"crc32c": f"{checksum:08x}"}), b"\n", *parts, b"\n"])


async def _gathered(made: Iterator[bytes]) -> tuple[list[bytes], int]:
    """The pieces and their checksum.  With breaks, as a large one takes long."""
    parts: list[bytes] = []
    value = 0
    for piece in made:
        parts.append(piece)
        value = crc32c(piece, value=value)
        await asyncio.sleep(0)
    return parts, value


def _applied_pieces(snapshot: Snapshot, checksums: dict[str, int]) -> Iterator[bytes]:
    fields = {
        "format": FORMAT,
        "index": snapshot.index,
        "term": snapshot.term,
        "endPos": snapshot.end_pos,
        "storeTimestamp": snapshot.store_ms,
        "messages": snapshot.messages,
        "files": checksums,
        "queueFileUnits": snapshot.queue_file_units,
        "queuesBeginPos": snapshot.queues_begin_pos,
    }
    yield encode(fields)[:-1] + b',"queues":['
    yield from joined(_encoded_mark(key, mark) for key, mark in snapshot.queues.items())
    yield b'],"producers":['
    yield from joined(producer.encoded() for producer in snapshot.sequences)
    yield b"]}"


def _encoded_mark(key: QueueKey, mark: QueueMark) -> bytes:
    """A queue's row as JSON; kept for later snapshots, as most queues are the same then."""
    if not mark.encoded:
        mark.encoded = encode([*key, mark.min_offset, mark.max_offset, mark.first_file, mark.last_end_pos, mark.crcs])
    return mark.encoded


def _refuse_newer(data: bytes, where: str) -> None:
    """DataDirectoryError for a whole applied.json of a newer release; a damaged one may say anything."""
    version = json_version(data[:HEAD_BYTES])
    if version is not None and version > SNAPSHOT.current and _body_of(data) is not None:
        raise newer(where, version, SNAPSHOT)


def _body_of(data: bytes) -> bytes | None:
    """What the line of checksum of an applied.json is about; None when it does not match."""
    head, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    try:
        return body if strict_json.parse(head)["crc32c"] == f"{crc32c(body):08x}" else None
    except (ValueError, KeyError, TypeError):
        return None


def _decode_applied(data: bytes) -> tuple[Snapshot, dict[str, int]] | None:
    body = _body_of(data)
    if body is None:
        return None
    try:
        fields = strict_json.parse(body)
        if fields["format"] != FORMAT:
            return None
        snapshot = Snapshot(fields["index"], fields["term"], fields["endPos"], fields["storeTimestamp"], fields["messages"])
        for topic, queue_id, low, high, first_file, last_end_pos, crcs in fields["queues"]:
            snapshot.queues[(topic, queue_id)] = QueueMark(low, high, first_file, crcs, last_end_pos)
        snapshot.sequence_rows = fields["producers"]
        snapshot.queue_file_units = fields.get("queueFileUnits", QUEUE_UNITS_PER_FILE)
        snapshot.queues_begin_pos = fields.get("queuesBeginPos", 0)
        numbers = (
            snapshot.index,
            snapshot.term,
            snapshot.end_pos,
            snapshot.store_ms,
            snapshot.messages,
            snapshot.queue_file_units,
            snapshot.queues_begin_pos,
        )
        checksums: dict[str, int] = dict(fields["files"])
        if all(isinstance(number, int) for number in (*numbers, *checksums.values())) and all(map(_is_sound, snapshot.queues.items())):
            return snapshot, checksums
        return None
    except (ValueError, KeyError, TypeError):
        return None


def _is_sound(queue: tuple[QueueKey, QueueMark]) -> bool:
    """Whether its values are of the right kinds, whatever they are."""
    (topic, queue_id), mark = queue
    numbers = queue_id, mark.min_offset, mark.max_offset, mark.first_file, mark.last_end_pos, *mark.crcs
    return isinstance(topic, str) and all(isinstance(number, int) for number in numbers)
