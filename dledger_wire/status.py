"""Small vocabularies of messages: send statuses, permission bits, states of replica groups, system flags."""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag


class SendStatus(Enum):
    """The status of a sent message, with RocketMQ's names. Messages with another status than SEND_OK fail with an error that carries it.

    Attributes:
        SEND_OK: Stored by a majority of the replica group.
        FLUSH_DISK_TIMEOUT: Not written to disk by a majority in time.
        FLUSH_SLAVE_TIMEOUT: Not replicated to a majority in time.
        SLAVE_NOT_AVAILABLE: Too few replicas for a majority respond.
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class Perm(IntFlag):
    """Permission bits of a topic.

    Attributes:
        NONE: Neither.
        WRITE: Producers may write (2).
        READ: Consumers may read (4).
        READ_WRITE: Both (6).
    """

    NONE = 0
    WRITE = 2
    READ = 4
    READ_WRITE = 6


def unread_queues(read_queues: int, write_queues: int) -> str:
    """The queues of a topic that no consumer could read from, as text; empty when there are none."""
    return f"queues {read_queues} to {write_queues - 1} would be written to and not read" if write_queues > read_queues else ""


# The state of a replica group: it takes messages; it takes no new ones; it is no more.
ACTIVE, DRAINING, REMOVED = "active", "draining", "removed"


class SysFlag(IntFlag):
    """Bits of a frame's SYSFLAG field."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300


TRANSACTION_MASK = 0xC
COMPRESSION_MASK = 0x700


class Turn(IntEnum):
    """Of a replica group, to take a spare node in: what its master registers, and the directory returns."""

    NONE = 0
    ASKED = 1
    HELD = 2


class Compression(IntEnum):
    """Compression types as they stand in bits 8 to 10 of SYSFLAG; 0 beside the compressed bit means zlib (RocketMQ before 5.0)."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3
