"""What ``Admin`` returns of open transactions: each of them, and by replica group with the producers that can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A half message that is neither committed nor rolled back.

    Attributes:
        transaction_id: The transaction.
        producer_group: The producer group that began it.
        topic: The topic it writes to.
        queue_id: The queue it writes to.
        replica_group: The replica group that stores it.
        half_offset: Its offset among the half messages.
        stored_ms: When it was stored, milliseconds since 1970.
        check_times: How often producers were asked for its state.
        checked_ms: When they were asked last, milliseconds since 1970; 0 when they were not asked yet.
    """

    transaction_id: str
    producer_group: str
    topic: str
    queue_id: int
    replica_group: str
    half_offset: int
    stored_ms: int
    check_times: int
    checked_ms: int


@dataclass(frozen=True, slots=True)
class GroupTransactions:
    """The transactions of one replica group.

    Attributes:
        replica_group: The replica group.
        open: How many are open, of all producer groups.
        parked: How many were moved to TRANS_CHECK_MAX_TIME_TOPIC because no producer knew their state.
        transactions: The oldest open ones.
        producers: Producer group -> how many of its producers are connected and can be asked.
    """

    replica_group: str
    open: int
    parked: int
    transactions: list[OpenTransaction]
    producers: Mapping[str, int]
