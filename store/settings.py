"""Settings of the message store.  Those RocketMQ has keep its names and units (bytes, ms)."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger_wire.feature_levels import THIS_BUILD, LevelRange
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.store_layout import INDEX_ENTRIES, INDEX_SLOTS, QUEUE_UNIT_SIZE, QUEUE_UNITS_PER_FILE

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DiskLimit:
    """So much of a disk is to stay free, or else there are no new messages: the larger of both.  Without any the ratio of use decides."""

    free_bytes: int = 0
    free_percent: float = 0.0

    def of(self, total_bytes: int) -> int:
        """In bytes."""
        return max(self.free_bytes, int(total_bytes * self.free_percent / 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Sizes and intervals; the defaults are for production, tests and the simulator use small ones.

    ``store_host`` is the node's address as it is stamped into frames.  ``queue_tail_units``: newest units of a queue kept in memory.
    ``diskSpaceEnoughFree``: with so much free, no disk counts as too full (``expiry.py``).
    ``reserve_bytes``: room kept for deleting from a full disk (``reserve.py``).
    ``snapshot_interval_ms``: how often the derived state is made durable, which bounds what a restart applies again.
    ``chunk_bytes``, ``chunk_messages``: of one message of a fetch's answer; the columns that readers make of small ones fit a core's cache.
    ``stored_bytes``: frames are read, not sent out of the log's files, below that size or below ``stored_run_bytes`` a run on average.
    ``levels``: the feature levels that this build can do.
    """

    store_host: str = "0.0.0.0:0"
    maxMessageSize: int = 4 << 20
    mappedFileSizeConsumeQueue: int = QUEUE_UNITS_PER_FILE * QUEUE_UNIT_SIZE
    flushIntervalConsumeQueue: int = 1000
    flushConsumeQueueLeastPages: int = 2
    flushConsumeQueueThoroughInterval: int = 60_000
    messageIndexEnable: bool = True
    maxHashSlotNum: int = INDEX_SLOTS
    maxIndexNum: int = INDEX_ENTRIES
    defaultQueryMaxNum: int = 32
    fileReservedTime: int = 48 * 3_600_000
    deleteWhen: str = "04"
    cleanResourceInterval: int = 10_000
    deleteFileBatchMax: int = 10
    cleanFileForciblyEnable: bool = True
    cleanFileForciblyAfter: int = 5 * 60_000
    diskMaxUsedSpaceRatio: int = 75
    diskSpaceCleanForciblyRatio: int = 85
    diskSpaceWarningLevelRatio: int = 90
    diskSpaceEnoughFree: int = 16 << 30
    reserve_bytes: int = 4 << 20
    snapshot_interval_ms: int = 5000
    queue_tail_units: int = 8192
    max_unflushed_units: int = 2_000_000
    chunk_bytes: int = 2 << 20
    chunk_messages: int = 5000
    span_gap_bytes: int = 16 << 10
    stored_bytes: int = 64 << 10
    stored_run_bytes: int = 32 << 10
    open_files_limit: int = 64
    max_producers: int = 10_000
    levels: LevelRange = THIS_BUILD
    producer_expiry_ms: int = 7 * 86_400_000
    store_host_bytes: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        if self.mappedFileSizeConsumeQueue < QUEUE_UNIT_SIZE or self.mappedFileSizeConsumeQueue % QUEUE_UNIT_SIZE:
            raise ValueError(f"mappedFileSizeConsumeQueue {self.mappedFileSizeConsumeQueue}: expected a multiple of {QUEUE_UNIT_SIZE}")
        if self.maxHashSlotNum < 1 or self.maxIndexNum < 2:
            raise ValueError("maxHashSlotNum or maxIndexNum is too small")
        object.__setattr__(self, "store_host_bytes", pack_host(self.store_host))

    @property
    def delete_hours(self) -> tuple[int, ...]:
        """The hours of the day that ``deleteWhen`` names."""
        return tuple(int(hour) for hour in self.deleteWhen.split(";"))

    @property
    def min_flush_units(self) -> int:
        """How many new units of a queue are worth a write of its own."""
        return self.flushConsumeQueueLeastPages * PAGE_BYTES // QUEUE_UNIT_SIZE

    @property
    def queue_file_units(self) -> int:
        return self.mappedFileSizeConsumeQueue // QUEUE_UNIT_SIZE
