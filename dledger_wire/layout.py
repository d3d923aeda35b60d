"""Byte layouts of the replicated log: entry header, index unit, filler.

Owns every struct format of the dledger log and the sizes they must have; nothing else spells one of them out.  Message frames and
queue units are RocketMQ's and live in ``frame.py``.  All integers are big-endian.

    segment file   | entry | entry | ... | filler |            an entry never spans two files
    entry          | header 48 bytes | body |
    filler         | -1 | remaining length | zeros |           at least 8 bytes are kept free for it
"""

from __future__ import annotations

import struct
from typing import Final

# The header without its chain CRC is what the chain CRC covers, in these two pieces.
#   0  magic: 1 normal, 2 no-op, 3 configuration change
#   4  size of the whole entry, header included
#   8  index
#   16 term
#   24 pos: byte position of this entry in the log
#   32 channel: reserved upstream, 0
#   36 chain CRC: crc32c over the previous entry's chain CRC and this header without this field
#   40 body CRC: crc32c of the body
#   44 body length
ENTRY_HEADER: Final = struct.Struct(">iiqqqiIIi")
CHAIN_CRC_AT: Final = 36
BODY_CRC_AT: Final = 40
CHAIN_CRC: Final = struct.Struct(">I")

#   0  magic of the entry
#   4  pos of the entry
#   12 size of the entry
#   16 index
#   24 term
INDEX_UNIT: Final = struct.Struct(">iqiqq")

#   0  magic: -1
#   4  bytes from here to the end of the segment, this header included
FILLER: Final = struct.Struct(">ii")

ENTRY_HEADER_SIZE: Final = 48
INDEX_UNIT_SIZE: Final = 32
FILLER_SIZE: Final = 8

MAGIC_NORMAL: Final = 1
MAGIC_NO_OP: Final = 2
MAGIC_CONFIG: Final = 3
MAGIC_FILLER: Final = -1

# Sizes and body lengths are signed 32-bit fields.
MAX_SEGMENT_BYTES: Final = (1 << 31) - 1
SEGMENT_NAME_DIGITS: Final = 20

for _format, _size in ((ENTRY_HEADER, ENTRY_HEADER_SIZE), (INDEX_UNIT, INDEX_UNIT_SIZE), (FILLER, FILLER_SIZE)):
    if _format.size != _size:
        raise ImportError(f"layout {_format.format!r} takes {_format.size} bytes, expected {_size}")


def segment_name(start_pos: int) -> str:
    """The file name of the segment that starts at ``start_pos``: 20 decimal digits."""
    return f"{start_pos:0{SEGMENT_NAME_DIGITS}d}"


def parse_segment_name(name: str) -> int | None:
    """The start position a file name stands for, or None when it is not a segment's name."""
    if len(name) != SEGMENT_NAME_DIGITS or not (name.isascii() and name.isdigit()):
        return None
    return int(name)
