"""Bounds of what is promised with a tolerance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Tolerances of the checkers.

    Args:
        delay_early_ms: A delayed message may come this much before its time: clocks are read at two places.
        level_early_ms: One with a delay level may come this much before its delay is over: the delay counts from the leader's stamp, and a
            leader's time is behind by what messages between nodes took when it was compared; the next leader's may be less so.
        delay_late_ms: It may come this much after its time and its acknowledgement; faults and outages of its replica group do not count.
        outage_ms: From this time on that a probe waits for an acknowledgement there is an outage, and
        outage_factor: from this multiple of its usual wait on.
        recovery_ms: A replica group acknowledges again within this time without a fault of its own.
        replica_lag: Replicas may differ this much in their last index.
        leak_rounds: Fewer rounds than this show no leak: roles change, and caches fill for a while.  With these bounds no window of 30 to
            100 rounds of a drill of 1000 looked like one.
        leak_rss_bytes: Growth over the whole drill, from which memory that rises round after round counts as a leak.
        leak_files: The same for open files,
        leak_threads: and for threads.
        reported: At most this many violations of a kind are kept.
    """

    delay_early_ms: float = 50.0
    level_early_ms: float = 500.0
    delay_late_ms: float = 20_000.0
    outage_ms: float = 50.0
    outage_factor: float = 5.0
    recovery_ms: float = 60_000.0
    replica_lag: int = 0
    leak_rounds: int = 30
    leak_rss_bytes: int = 128 << 20
    leak_files: int = 30
    leak_threads: int = 8
    reported: int = 10_000
