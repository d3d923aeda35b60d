"""Compression of message bodies and the SYSFLAG bits that record it.

Owns the mapping between compression type, flag bits and codec.  A body that does not decompress is CorruptFrameError.
"""

from __future__ import annotations

import threading
import zlib

import lz4.frame
import zstandard

from dledger_wire.errors import CorruptFrameError, InvalidArgumentError
from dledger_wire.status import COMPRESSION_MASK, Compression, SysFlag

DEFAULT_LEVEL = 5
MAX_BODY_BYTES = 64 << 20  # opened; as brokers allow at most for what is stored
CLAIMED_BYTES = 1 << 20  # what a body may say that it opens to, for that much memory to be taken at once
SAMPLED_FROM = 16 << 10
SAMPLE_BYTES = 4 << 10
WORTHWHILE = 0.95  # a body is stored compressed when it shrinks to less than this

_FLAGS = {
    Compression.LZ4: SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4,
    Compression.ZSTD: SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD,
    Compression.ZLIB: SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB,
}


def compression_of(name: str) -> Compression:
    """The compression of a setting's text (``zlib``, ``lz4``, ``zstd``, ``none``)."""
    try:
        return Compression[name.upper()]
    except KeyError:
        raise InvalidArgumentError(f"compression {name!r}: expected one of none, lz4, zstd, zlib") from None


def flags_of(compression: Compression) -> int:
    """The SYSFLAG bits a frame with a body of this compression carries."""
    return int(_FLAGS.get(compression, SysFlag(0)))


def compression_in(sys_flag: int) -> Compression:
    """The compression in a frame's SYSFLAG.  Raises CorruptFrameError for an unknown type."""
    if not sys_flag & SysFlag.COMPRESSED:
        return Compression.NONE
    kind = (sys_flag & COMPRESSION_MASK) >> 8
    if kind > Compression.ZLIB:
        raise CorruptFrameError(f"compression type {kind} of SYSFLAG {sys_flag:#x}: expected 0 to 3")
    return Compression(kind) if kind else Compression.ZLIB


def compress(body: bytes, compression: Compression, level: int = DEFAULT_LEVEL) -> bytes:
    """``body`` compressed; NONE returns it as it is.  Thread-safe.  LZ4 knows no levels here: it is for speed."""
    if compression is Compression.LZ4:
        # RocketMQ's reader (lz4-java) opens frames of independent blocks only.
        return bytes(lz4.frame.compress(body, compression_level=0, block_linked=False))
    if compression is Compression.ZSTD:
        return _of_thread.zstd(level).compress(body)
    if compression is Compression.ZLIB:
        return zlib.compress(body, level)
    return body


class _OfThread(threading.local):
    """zstd's contexts are costly to make and not to be shared between threads."""

    def __init__(self) -> None:
        self.by_level: dict[int, zstandard.ZstdCompressor] = {}
        self.opener = zstandard.ZstdDecompressor()

    def zstd(self, level: int) -> zstandard.ZstdCompressor:
        if level not in self.by_level:
            self.by_level[level] = zstandard.ZstdCompressor(level=level)
        return self.by_level[level]


_of_thread = _OfThread()


def is_worthwhile(body: bytes) -> bool:
    """Whether a large body looks compressible, judged by a sample of it in a hundredth of the time."""
    if len(body) < SAMPLED_FROM:
        return True
    middle = len(body) // 2
    sample = body[middle : middle + SAMPLE_BYTES]
    return len(zlib.compress(sample, 1)) < SAMPLE_BYTES * WORTHWHILE


def decompress(body: bytes | memoryview, compression: Compression, *, limit: int = MAX_BODY_BYTES) -> bytes:
    """The original body, at most ``limit`` bytes.  Raises CorruptFrameError when it does not decompress or grows past the limit."""
    name = compression.name.lower()
    try:
        if compression is Compression.LZ4:
            lz4_stream = lz4.frame.LZ4FrameDecompressor()
            # As much memory is taken at once.  A byte of LZ4 opens to at most 255.
            opened = bytes(lz4_stream.decompress(bytes(body), max_length=min(limit, 255 * len(body)) + 1))
            whole = lz4_stream.eof
        elif compression is Compression.ZSTD:
            opened, whole = _open_zstd(bytes(body), limit)
        elif compression is Compression.ZLIB:
            stream = zlib.decompressobj()
            opened = stream.decompress(body, limit + 1)
            whole = stream.eof
        else:
            return bytes(body)
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:
        raise CorruptFrameError(f"body does not decompress as {name}: {error}") from None
    if len(opened) > limit:
        raise CorruptFrameError(f"body decompresses to more than {limit} bytes")
    if not whole:
        raise CorruptFrameError(f"body does not decompress as {name}: it ends too early")
    return opened


def _open_zstd(body: bytes, limit: int) -> tuple[bytes, bool]:
    """(what a zstd frame holds, whether it is complete); stops soon behind ``limit``."""
    size = zstandard.frame_content_size(body)
    if 0 <= size <= min(limit, CLAIMED_BYTES):
        return _of_thread.opener.decompress(body), True
    # Other clients write frames that do not say how long they are, and a few bytes may claim any size.
    # A kilobyte cannot hide more than some 32 MiB.
    stream = _of_thread.opener.decompressobj()
    pieces: list[bytes] = []
    room = limit
    for at in range(0, len(body), 1024):
        pieces.append(stream.decompress(body[at : at + 1024]))
        room -= len(pieces[-1])
        if room < 0 or stream.eof:
            break
    return b"".join(pieces), stream.eof
