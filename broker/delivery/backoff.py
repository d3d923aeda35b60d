"""Backoff and error logging of background services.

Owns the retry delay of one service.  Transient errors (another leader, a busy log) are retried at once.  Errors that last until an operator
acts, such as damage that no peer can repair, are logged once, retried with exponential backoff, and logged once more when they are over.
"""

from __future__ import annotations

import logging

from dledger_wire.errors import (
    CorruptBatchError,
    CorruptFrameError,
    DledgerError,
    InvalidArgumentError,
    MessageTooLargeError,
    StorageDamagedError,
)

RETRY_S = 0.05
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.25, 4.0

_LASTING = (StorageDamagedError, CorruptFrameError, CorruptBatchError, MessageTooLargeError, InvalidArgumentError)


class Backoff:
    """The backoff of ``service``, which is its name in log lines."""

    def __init__(self, logger: logging.Logger, service: str) -> None:
        self._logger = logger
        self._service = service
        self._logged = ""
        self._delay_s = MIN_BACKOFF_S

    def delay_s(self, error: DledgerError) -> float:
        """Log ``error`` and return the seconds to wait before the next attempt."""
        if not isinstance(error, _LASTING):
            self._logger.info("%s failed, retrying in %.2f s: %s", self._service, RETRY_S, error.message)
            return RETRY_S
        if error.message != self._logged:
            self._logged, self._delay_s = error.message, MIN_BACKOFF_S
            self._logger.error(
                "%s failed, retrying every %.2f to %.0f s: %s",
                self._service,
                MIN_BACKOFF_S,
                MAX_BACKOFF_S,
                error.message,
                extra={"event": "service_failing"},
            )
        delay_s = self._delay_s
        self._delay_s = min(MAX_BACKOFF_S, 2 * self._delay_s)
        return delay_s

    def reset(self) -> None:
        """The last attempt succeeded."""
        if self._logged:
            self._logger.warning("%s recovered", self._service, extra={"event": "service_recovered"})
            self._logged, self._delay_s = "", MIN_BACKOFF_S
