"""Whether messages of a producer wait because a leader's alarm keeps them out, and the notices of that.

Owns the state over all replica groups: it begins with the first that refuses by an alarm, and ends when the last one takes messages
again, or nothing is left to send.
"""

from __future__ import annotations

import logging

from dledger_client.producer.settings import ProducerOptions
from dledger_client.runtime.user_callbacks import faults
from dledger_wire.errors import DledgerError

_logger = logging.getLogger(__name__)


class Blocked:
    """Of one producer."""

    def __init__(self, options: ProducerOptions) -> None:
        self._on_blocked, self._on_unblocked = options.on_blocked, options.on_unblocked
        self._reasons: dict[str, str] = {}  # by replica group

    @property
    def reason(self) -> str:
        """The alarms and their nodes; empty while no messages wait for one to end."""
        return "; ".join(dict(self._reasons).values())

    def refused(self, replica_group: str, error: DledgerError) -> None:
        """A leader has refused messages: by an alarm, or for another reason."""
        if "alarm" not in error.details:
            self.ended(replica_group)
            return
        was_blocked = bool(self._reasons)
        self._reasons[replica_group] = error.message.partition("; ")[0]
        if not was_blocked:
            _logger.warning("blocked: %s", self.reason)
            self._notify(self._on_blocked, self.reason)

    def ended(self, replica_group: str) -> None:
        """Messages are taken again, or none waits."""
        if self._reasons.pop(replica_group, None) is not None and not self._reasons:
            _logger.warning("not blocked any more")
            self._notify(self._on_unblocked)

    def _notify(self, callback: object, *arguments: str) -> None:
        if not callable(callback):
            return
        try:
            callback(*arguments)
        except faults():
            _logger.exception("a callback of the producer failed")
