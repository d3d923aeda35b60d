"""RocketMQ's CommitLog, read from its first file to its end: every message with its place, and everything that is damaged.

Owns the walk over files and frames.  Files of a DLedger log (RocketMQ's replicated mode) wrap each message in an entry of 48 more bytes;
a broker that was changed to that mode has plain files first.  Nothing is believed: magic, sizes, place and CRC of each message are checked.

    file        [frame | entry]... filler to its end; the last one goes on with zeros
    damage      a wrong body CRC costs one message, everything else the rest of the file: where the next one begins is not known
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from dledger_wire.checksum import crc32
from dledger_wire.frames.frame_layout import (
    BODY_CRC_MASK,
    HEAD_SIZE,
    IPV4_HOST_SIZE,
    IPV6_HOST_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_FRAME_SIZE,
)
from dledger_wire.status import SysFlag

BLOCK_BYTES = 4 << 20
WIDER = IPV6_HOST_SIZE - IPV4_HOST_SIZE
STORED_MS_AT = 56  # with an IPv4 born host
INNER_BATCH = 0x80  # bits of SYSFLAG: several messages in one body
NEED_UNWRAP = 0x40
ENTRY = struct.Struct(">iiqqqiiii")  # magic, size, index, term, pos, channel, chain CRC, body CRC, body length
ENTRY_FILLER = -1
ENTRY_MESSAGE = 1
ENTRY_KINDS = (ENTRY_MESSAGE, 2, 3)  # 2 and 3: no message, of later releases
HEAD = struct.Struct(">iiiiiqqi")  # total size, magic, body CRC, queue id, flag, queue offset, physical offset, sys flag
_TWO = struct.Struct(">ii")
_INT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file; ``first``: the position of its first byte in the log.  ``wrapped``: of a DLedger log."""

    path: str
    first: int
    size_bytes: int
    wrapped: bool

    @property
    def end(self) -> int:
        return self.first + self.size_bytes


@dataclass(slots=True)
class StoredMessage:
    """A message as it stands in the log.  ``end``: the position behind it."""

    pos: int
    end: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    frame: bytes
    body_at: int  # in the frame
    topic_at: int  # of the topic's length, where the body ends
    properties_at: int

    @property
    def stored_ms(self) -> int:
        """When the old broker stored it."""
        at = STORED_MS_AT + WIDER * bool(self.sys_flag & SysFlag.BORN_HOST_V6)
        return int.from_bytes(self.frame[at : at + 8], "big", signed=True)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes from ``pos`` to ``end`` that cannot be used, and why: file, place and what was expected, in one line."""

    pos: int
    end: int
    text: str


class _Window:
    """The bytes of a file, read in large blocks."""

    def __init__(self, file: LogFile) -> None:
        self._handle = os.open(file.path, os.O_RDONLY)
        self._at, self._bytes = 0, b""

    def read(self, at: int, size: int) -> bytes:
        """At most ``size`` bytes; fewer at the file's end."""
        if not self._at <= at or at + size > self._at + len(self._bytes):
            self._bytes, self._at = os.pread(self._handle, max(size, BLOCK_BYTES), at), at
        return self._bytes[at - self._at : at - self._at + size]

    def close(self) -> None:
        os.close(self._handle)


class CommitLog:
    """The files of a log, by position.  ``committed_index``: of a DLedger log, the newest entry that is known to be committed."""

    def __init__(self, files: Sequence[LogFile], committed_index: int | None = None) -> None:
        self.files = sorted(files, key=lambda file: file.first)
        while len(self.files) > 1 and not any(_begin(self.files[-1])):  # made before it is needed
            self.files.pop()
        self.first = self.files[0].first
        self.end = self.first  # once it was read: behind its last message
        self.uncommitted = 0  # entries of a DLedger log that the last reading left out
        self._committed_index = committed_index

    def read(self, *, pos: int = 0, dispatched: int = 0) -> Iterator[StoredMessage | Damage]:
        """Every message from ``pos`` on, which is where one begins.  ``dispatched``: what consume queues have, which is committed."""
        expected, self.uncommitted = self.first, 0
        start = max(0, bisect_right([file.first for file in self.files], max(pos, self.first)) - 1)
        for number, file in enumerate(self.files):
            if file.first != expected and number:
                yield Damage(expected, file.first, f"{file.path}: the log goes on here, expected a file that begins at {expected}")
            expected = file.end
            if number >= start:
                is_last = number == len(self.files) - 1
                if not (yield from self._read_file(file, max(pos - file.first, 0), dispatched, is_last=is_last)):
                    return

    def _read_file(self, file: LogFile, at: int, dispatched: int, *, is_last: bool) -> Generator[StoredMessage | Damage, None, bool]:
        """The messages of one file; whether the log goes on behind it."""
        window = _Window(file)
        try:
            while at + _TWO.size <= file.size_bytes:
                first, second = _TWO.unpack(window.read(at, _TWO.size))
                if (first == ENTRY_FILLER) if file.wrapped else (second == MAGIC_BLANK):
                    self.end = file.end
                    return True
                if first == second == 0:
                    if not is_last:
                        yield _damage(file, at, file.size_bytes, "zeros, expected a message or the filler of a full file")
                    return not is_last
                step = self._entry(file, window, at, dispatched) if file.wrapped else _frame(file, window, at, at)
                if isinstance(step, int):
                    at += step
                    continue
                if isinstance(step, StoredMessage):
                    self.end = step.end
                yield step
                at = step.end - file.first
        finally:
            window.close()
        if at < file.size_bytes and is_last:
            yield _damage(file, at, file.size_bytes, f"{file.size_bytes - at} bytes left, expected a message or zeros")
        return True

    def _entry(self, file: LogFile, window: _Window, at: int, dispatched: int) -> StoredMessage | Damage | int:
        """The message of an entry, or how many bytes to go on where there is none that counts."""
        head = window.read(at, ENTRY.size)
        if len(head) < ENTRY.size:
            return _damage(file, at, file.size_bytes, f"{len(head)} bytes left, expected an entry of at least {ENTRY.size}")
        magic, size, index, _term, pos, _channel, _chain, _crc, length = ENTRY.unpack(head)
        if magic not in ENTRY_KINDS:
            return _damage(file, at, file.size_bytes, f"magic {magic}, expected 1 (an entry of a DLedger log)")
        if size != ENTRY.size + length or length < 0 or at + size > file.size_bytes:
            return _damage(file, at, file.size_bytes, f"entry of {size} bytes, expected {ENTRY.size + length} of {file.size_bytes - at}")
        if pos != file.first + at:
            return _damage(file, at, file.size_bytes, f"entry says position {pos}, expected {file.first + at}")
        if file.first + at >= dispatched and (self._committed_index is None or index > self._committed_index):
            self.uncommitted += 1
            return int(size)
        if magic != ENTRY_MESSAGE:
            return int(size)
        return _frame(file, window, at + ENTRY.size, at)


def _begin(file: LogFile) -> bytes:
    with open(file.path, "rb") as opened:
        return opened.read(_TWO.size)


def _damage(file: LogFile, at: int, end: int, what: str) -> Damage:
    return Damage(file.first + at, file.first + end, f"{file.path} at {at}: {what}")


def _frame(file: LogFile, window: _Window, at: int, begins_at: int) -> StoredMessage | Damage:
    """The message at ``at``, of what begins at ``begins_at``."""
    head = window.read(at, HEAD.size)
    left = file.size_bytes - at
    if len(head) < HEAD.size:
        return _damage(file, begins_at, file.size_bytes, f"{left} bytes left, expected a message of at least {MIN_FRAME_SIZE}")
    size, magic, body_crc, queue_id, _flag, queue_offset, physical_offset, sys_flag = HEAD.unpack(head)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return _damage(file, begins_at, file.size_bytes, f"magic {magic & 0xFFFFFFFF:#010x}, expected {MAGIC_V1 & 0xFFFFFFFF:#010x}")
    if not MIN_FRAME_SIZE <= size <= left:
        return _damage(file, begins_at, file.size_bytes, f"message of {size} bytes, expected {MIN_FRAME_SIZE} to {left}")
    frame = window.read(at, size)
    body_at = HEAD_SIZE + WIDER * bool(sys_flag & SysFlag.BORN_HOST_V6) + WIDER * bool(sys_flag & SysFlag.STORE_HOST_V6)
    places = _places(frame, body_at, 2 if magic == MAGIC_V2 else 1)
    if places is None:
        return _damage(file, begins_at, file.size_bytes, f"lengths of body, topic and properties do not add up, expected {size} bytes")
    topic_at, properties_at, topic = places
    end = file.first + at + size
    if physical_offset != file.first + at:
        what = f"message says position {physical_offset}, expected {file.first + at}"
    elif sys_flag & (INNER_BATCH | NEED_UNWRAP):
        what = f"message {queue_offset} of {topic}/{queue_id} is a batch of queue.type=BatchCQ, expected single messages"
    elif (found := crc32(memoryview(frame)[body_at:topic_at]) & BODY_CRC_MASK) != body_crc:
        what = f"message {queue_offset} of {topic}/{queue_id}: body has CRC {found:#010x}, expected {body_crc & 0xFFFFFFFF:#010x}"
    else:
        return StoredMessage(file.first + begins_at, end, topic, queue_id, queue_offset, sys_flag, frame, body_at, topic_at, properties_at)
    return Damage(file.first + begins_at, end, f"{file.path} at {begins_at}: {what}")


def _places(frame: bytes, body_at: int, width: int) -> tuple[int, int, str] | None:
    """(where the topic's length stands, where properties begin, the topic); None when the lengths do not add up."""
    size = len(frame)
    if body_at + width + 2 > size:
        return None
    topic_at = body_at + _INT.unpack_from(frame, body_at - 4)[0]
    if not body_at <= topic_at <= size - width - 2:
        return None
    properties_at = topic_at + width + int.from_bytes(frame[topic_at : topic_at + width], "big") + 2
    if properties_at > size or properties_at + int.from_bytes(frame[properties_at - 2 : properties_at], "big") != size:
        return None
    try:
        return topic_at, properties_at, frame[topic_at + width : properties_at - 2].decode()
    except UnicodeDecodeError:
        return None
