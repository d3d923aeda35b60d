"""Settings of the Raft core, all in milliseconds, bytes or counts, with the checks between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Timers and windows of one replica.

    A drawn timeout lies between the election timeout and twice of it.  The election timeout is ``election_timeout_ms``, or less while
    messages come in time: down to ``least_election_timeout_ms`` when none was late within ``lateness_window_ms``.  For ``wary_ms`` after a
    silence that the least one does not bridge, it is the configured one again; each time for twice as long as before (``silence.py``).
    ``commit_notice_delay_ms``: how long an idle follower may wait for a commit notice; under load the next entries carry it.
    ``loses_unsynced``: a loss of power may take what was acknowledged (ASYNC_FLUSH), so a majority may forget what is committed.
    The windows bound what a leader keeps in flight to one follower, and what it keeps uncommitted (then it answers BUSY).
    """

    heartbeat_interval_ms: int = 100
    election_timeout_ms: int = 600
    least_election_timeout_ms: int = 200
    lateness_window_ms: int = 300_000
    wary_ms: int = 300_000
    commit_notice_delay_ms: int = 0
    max_inflight_messages: int = 64
    max_inflight_bytes: int = 32 << 20
    max_append_bytes: int = 4 << 20
    max_uncommitted_bytes: int = 64 << 20
    priority: int = 0
    loses_unsynced: bool = False

    def __post_init__(self) -> None:
        if self.heartbeat_interval_ms * 3 > self.election_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms {self.heartbeat_interval_ms}: "
                f"expected at most a third of election_timeout_ms {self.election_timeout_ms}"
            )
        if self.max_append_bytes > self.max_inflight_bytes:
            raise ValueError("max_append_bytes: expected at most max_inflight_bytes")
