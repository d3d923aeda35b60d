"""What a client that goes on trying says in the log of a replica group that it cannot reach: a line when that lasts, one when it is over.

Owns how long is long.  An election or a restart of a node is over before.
"""

from __future__ import annotations

import logging

from dledger_client.cluster.retry import is_retriable
from dledger_wire.clock import Clock
from dledger_wire.errors import AuthenticationFailedError, BusyError, DledgerError

LONG_MS = 5_000
QUIET_MS = 60_000  # between two outages that are logged: a cluster may come and go

_logger = logging.getLogger(__name__)


class OutageNotes:
    """Of one replica group.  ``client``: its name, for people."""

    def __init__(self, client: str, replica_group: str, clock: Clock) -> None:
        self._client, self._replica_group, self._clock = client, replica_group, clock
        self._since_ms: int | None = None
        self._is_logged = False
        self._quiet_until_ms = 0

    def failed(self, error: DledgerError) -> None:
        """An attempt failed.  What needs a change by an operator is logged where it comes up."""
        if not is_retriable(error) or isinstance(error, AuthenticationFailedError | BusyError):
            return
        now_ms = self._clock.monotonic_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        if not self._is_logged and now_ms - self._since_ms >= LONG_MS and now_ms >= self._quiet_until_ms:
            self._is_logged, self._quiet_until_ms = True, now_ms + QUIET_MS
            text = "%s: replica group %s cannot be reached since %.0f s, trying again and again: %s"
            _logger.warning(text, self._client, self._replica_group, self._seconds(now_ms), error.message)

    def reached(self) -> None:
        """The leader does its work."""
        if self._is_logged:
            text = "%s: replica group %s is reached again after %.0f s"
            _logger.warning(text, self._client, self._replica_group, self._seconds(self._clock.monotonic_ms()))
        self._since_ms, self._is_logged = None, False

    def _seconds(self, now_ms: int) -> float:
        return (now_ms - (self._since_ms or now_ms)) / 1000
