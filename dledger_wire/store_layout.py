"""Byte layouts of the files derived from the log: queue unit, index file, checkpoint.  RocketMQ's, all integers big-endian.

Owns the struct formats and the sizes they must have (tables: docs/reference/formats.md); ``dtypes`` has them for numpy, and nothing
else spells one of them out.

    consumequeue/TOPIC/QUEUE/20 digits   QUEUE_UNIT[300 000]
    index/yyyyMMddHHmmssSSS              INDEX_HEADER | slots u32[5 000 000] | INDEX_ENTRY[20 000 000]
    checkpoint                           CHECKPOINT, zeros up to 4096 bytes
"""

from __future__ import annotations

import struct
from typing import Final

QUEUE_UNIT: Final = struct.Struct(">qiq")
QUEUE_UNIT_SIZE: Final = 20
QUEUE_UNITS_PER_FILE: Final = 300_000
QUEUE_FILLER_SIZE: Final = 0x7FFFFFFF  # size field of the units before a queue's first valid one; position and tag hash 0

#   0  begin timestamp: store time of the first entry, ms
#   8  end timestamp
#   16 begin physical offset
#   24 end physical offset
#   32 used slots
#   36 entry count, starts at 1: entry 0 is never used
INDEX_HEADER: Final = struct.Struct(">qqqqii")
INDEX_HEADER_SIZE: Final = 40
INDEX_SLOTS: Final = 5_000_000
INDEX_ENTRY_SIZE: Final = 20
INDEX_ENTRIES: Final = 20_000_000

#   0  store time flushed in the log, ms
#   8  store time flushed in the queues
#   16 store time flushed in the index
#   24 master flushed offset
#   32 confirmed offset
CHECKPOINT: Final = struct.Struct(">qqqqq")
CHECKPOINT_FILE_SIZE: Final = 4096

for _size, _expected in (
    (QUEUE_UNIT.size, QUEUE_UNIT_SIZE),
    (INDEX_HEADER.size, INDEX_HEADER_SIZE),
    (CHECKPOINT.size, 40),
):
    if _size != _expected:
        raise ImportError(f"a layout of the store takes {_size} bytes, expected {_expected}")
