"""How a service that goes on by itself takes an error: what it says, and how long it waits.

Owns that one service's patience.  What passes by itself (another master, a busy log) is tried again at once; what lasts until somebody
does something, such as damage that no peer can mend, is told once, tried again after growing waits, and told once more when it is over.
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
FIRST_S, LONGEST_S = 0.25, 4.0

_LASTING = (StorageDamagedError, CorruptFrameError, CorruptBatchError, MessageTooLargeError, InvalidArgumentError)


class Setbacks:
    """``what`` waits when something fails."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._told = ""
        self._wait_s = FIRST_S

    def after(self, error: DledgerError) -> float:
        """Seconds to wait now."""
        if not isinstance(error, _LASTING):
            self._logger.info("%s waits: %s", self._what, error.message)
            return RETRY_S
        if error.message != self._told:
            self._logger.error("%s waits, and tries again: %s", self._what, error.message)
            self._told, self._wait_s = error.message, FIRST_S
        wait_s = self._wait_s
        self._wait_s = min(LONGEST_S, 2 * self._wait_s)
        return wait_s

    def over(self) -> None:
        """It goes on."""
        if self._told:
            self._logger.warning("%s goes on", self._what)
            self._told, self._wait_s = "", FIRST_S
