"""Settings of the log on disk."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_wire.layout import ENTRY_HEADER_SIZE, FILLER_SIZE, MAX_SEGMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Sizes and limits; the defaults are for production, tests use tiny ones.

    ``cache_bytes``: newest raw entries kept in memory for replication and apply, with what their objects take.
    ``places_limit``: newest entries whose place is in
    memory (21 bytes each); older places are read from the index units.  ``fill_window_bytes``: how far ahead of the write position
    blocks are written with zeros in the background, 0 for never.  ``verify_bytes``: how much of the log's end a start checks byte by
    byte (None: all of it); before that it trusts the index units, and every read checks what it reads.  It must be well above what can
    be uncommitted at a time, since no cut reaches below it.  ``unsynced_bytes``: with so much written and not synced a flush syncs, also
    without a request: what is not synced stays in the cache, beyond its limit.  ``units_sync_delay_ms``: index
    units, written within the flush, are synced together this long after it; 0 syncs them within it, before it reports anything durable.
    """

    segment_bytes: int = 1 << 30
    cache_bytes: int = 64 << 20
    places_limit: int = 1_000_000
    piece_bytes: int = 4 << 20
    fill_window_bytes: int = 256 << 20
    fill_step_bytes: int = 1 << 20
    verify_bytes: int | None = 256 << 20
    unsynced_bytes: int = 8 << 20
    units_sync_delay_ms: int = 20
    open_files_limit: int = 64
    # The driver flushes about this much at a time, so that a slow disk shows progress well within an election timeout.
    flush_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        smallest = ENTRY_HEADER_SIZE + FILLER_SIZE
        if not smallest <= self.segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(f"segment_bytes {self.segment_bytes}: expected {smallest} to {MAX_SEGMENT_BYTES}")
        if self.places_limit < 1 or self.piece_bytes < ENTRY_HEADER_SIZE or self.open_files_limit < 4:
            raise ValueError("places_limit, piece_bytes or open_files_limit is too small")
        if self.fill_window_bytes and self.fill_step_bytes < 1:
            raise ValueError(f"fill_step_bytes {self.fill_step_bytes}: expected at least 1")

    @property
    def units_step_bytes(self) -> int:
        """Index-unit files grow by steps of zeros, so that a unit's write meets written blocks; smaller in tiny tests."""
        return min(64 << 10, max(1 << 10, self.segment_bytes >> 6))

    @property
    def max_entry_bytes(self) -> int:
        """The largest entry that still leaves room for a filler in a segment of its own."""
        return self.segment_bytes - FILLER_SIZE
