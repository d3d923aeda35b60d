"""What an operator is to know of the certificate and the ports of a process: in its log, its status, and as values for metrics.

Owns the words and the times: a certificate that expires within 30 days is logged once a day, and at once when a week, a day or nothing
is left.  Looking also makes files be read that were replaced while no client connected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from broker.config.security import Step
from dledger_wire.clock import Clock
from dledger_wire.errors import ConfigError
from dledger_wire.security.network_security import NetworkSecurity

LOOK_S = 10.0
DAY_MS = 86_400_000
RENEW = "replace the file (dledger certs create), it is read without a restart"
LEVELS_DAYS = (30, 7, 1, 0)  # of what is left

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CertificateWatch:
    """Of one process; ``run`` it for what goes to the log.  ``expired`` is called at each look, with what is to
    be done or nothing."""

    network: NetworkSecurity
    step: Step
    clock: Clock
    expired: Callable[[str], object] = field(default=lambda _why: None)
    _logged_ms: int = field(default=0, init=False)
    _logged_level: int = field(default=LEVELS_DAYS[0] + 1, init=False)

    @property
    def expires_at_ms(self) -> int:
        """When the certificate in use expires, milliseconds since the epoch; 0 without one."""
        return self.network.tls.expires_at_ms if self.network.tls is not None else 0

    @property
    def plaintext_connections(self) -> int:
        """How many connections came without TLS since the start."""
        return self.network.counts["plaintext"]

    def warnings(self) -> list[str]:
        """What is to be done, for the status of the process; empty when nothing is."""
        found = []
        expiry = self._expiry()
        if expiry:
            found.append(expiry)
        if self.network.tls is not None and self.network.tls.trouble:
            found.append(f"new certificates cannot be used: {self.network.tls.trouble}")
        if self.step is not Step.ONLY:
            found.append(f"takes plaintext (security.tls.step {self.step}): {self.plaintext_connections} connections since the start")
        return found

    def _left_ms(self) -> int:
        return self.expires_at_ms - self.clock.wall_ms()

    def _expiry(self) -> str:
        if not self.expires_at_ms or self._left_ms() >= LEVELS_DAYS[0] * DAY_MS:
            return ""
        left_ms = self._left_ms()
        if left_ms <= 0:
            return self.expiry_passed()
        days = left_ms // DAY_MS
        return f"its certificate expires in {days} days" if days > 1 else f"its certificate expires in {left_ms // 3_600_000} hours"

    def expiry_passed(self) -> str:
        """Which file has expired, since when, and what to do; empty while it has not."""
        if self.network.tls is None or not self.expires_at_ms or self._left_ms() > 0:
            return ""
        at = datetime.fromtimestamp(self.expires_at_ms / 1000, UTC)
        return f"its certificate {self.network.tls.settings.cert} expired on {at:%Y-%m-%d %H:%M} UTC: {RENEW}"

    async def run(self) -> None:
        """Look now and again, for as long as the process runs."""
        if self.step is not Step.ONLY:
            _logger.warning(
                "plaintext is accepted: security.tls.step is %s; every connection without TLS is readable on its way",
                self.step,
                extra={"event": "plaintext_accepted"},
            )
        while self.network.tls is not None:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Read files that were replaced, and log what is due."""
        if self.network.tls is None:
            return
        try:
            self.network.tls.client()
            self.network.tls.server()
        except ConfigError as error:  # they were there at the start
            _logger.warning("%s", error.message, extra={"event": "certificate_unusable"})
        self.expired(self.expiry_passed())
        text, now_ms = self._expiry(), self.clock.wall_ms()
        if not text:
            self._logged_level = LEVELS_DAYS[0] + 1
            return
        level = min(days for days in LEVELS_DAYS if self._left_ms() <= days * DAY_MS)
        if level < self._logged_level or now_ms - self._logged_ms >= DAY_MS:
            self._logged_level, self._logged_ms = level, now_ms
            _logger.warning(
                "%s: %s; replace its file, it is read without a restart",
                self.network.tls.settings.cert,
                text.partition(": ")[0],
                extra={"event": "certificate_expires"},
            )
