"""Compression of message bodies and the SYSFLAG bits that tell it.

Owns the mapping between compression type, flag bits and codec.  A body that does not decompress is CorruptFrameError.
"""

from __future__ import annotations

import zlib

import lz4.frame
import zstandard

from dledger_wire.errors import CorruptFrameError, InvalidArgumentError
from dledger_wire.status import COMPRESSION_MASK, Compression, SysFlag

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
    """The compression that a frame's SYSFLAG tells.  Raises CorruptFrameError for an unknown type."""
    if not sys_flag & SysFlag.COMPRESSED:
        return Compression.NONE
    kind = (sys_flag & COMPRESSION_MASK) >> 8
    if kind > Compression.ZLIB:
        raise CorruptFrameError(f"compression type {kind} of SYSFLAG {sys_flag:#x}: expected 0 to 3")
    return Compression(kind) if kind else Compression.ZLIB


def compress(body: bytes, compression: Compression, level: int = 5) -> bytes:
    """``body`` compressed; NONE returns it as it is."""
    if compression is Compression.LZ4:
        return bytes(lz4.frame.compress(body, compression_level=0))
    if compression is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(body)
    if compression is Compression.ZLIB:
        return zlib.compress(body, level)
    return body


def decompress(body: bytes | memoryview, compression: Compression, *, limit: int = 64 << 20) -> bytes:
    """The original body, at most ``limit`` bytes.  Raises CorruptFrameError when it does not decompress or grows past the limit."""
    try:
        if compression is Compression.LZ4:
            opened: bytes = lz4.frame.LZ4FrameDecompressor().decompress(bytes(body), max_length=limit + 1)
        elif compression is Compression.ZSTD:
            opened = zstandard.ZstdDecompressor().decompressobj(write_size=limit + 1).decompress(bytes(body))
        elif compression is Compression.ZLIB:
            opened = zlib.decompressobj().decompress(bytes(body), limit + 1)
        else:
            return bytes(body)
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:
        raise CorruptFrameError(f"body does not decompress as {compression.name.lower()}: {error}") from None
    if len(opened) > limit:
        raise CorruptFrameError(f"body decompresses to more than {limit} bytes")
    return opened
