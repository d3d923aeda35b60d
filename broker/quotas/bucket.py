"""A token bucket that may be overdrawn: one limit of one name on this node.

Owns how much of a rate is left, how long an overdraft takes to be paid, and what was used lately.  Reads no clock.
"""

from __future__ import annotations

import math

BURST_S = 1.0
MAX_DEBT_S = 60.0  # the longest that one request makes a stream wait, so that a tiny limit stops no client for ever
AVERAGED_S = 5.0


class Bucket:
    """Full at first: it holds what the rate gives in a second."""

    __slots__ = ("_at_s", "_balance", "_used", "rate")

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = rate
        self._balance, self._at_s, self._used = rate * BURST_S, now_s, 0.0

    def take(self, amount: int, now_s: float) -> None:
        """Use ``amount``, whatever is left; many requests together may owe no more than one."""
        self._pass(now_s)
        self._balance = max(self._balance - amount, -MAX_DEBT_S * self.rate)
        self._used += amount / AVERAGED_S

    def debt_s(self, now_s: float) -> float:
        """How long until nothing is owed."""
        self._pass(now_s)
        return max(0.0, -self._balance / self.rate)

    def used_a_second(self, now_s: float) -> float:
        """The average of the last seconds."""
        self._pass(now_s)
        return self._used

    def _pass(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        if passed_s > 0:
            self._at_s = now_s
            self._balance = min(self._balance + passed_s * self.rate, self.rate * BURST_S)
            self._used *= math.exp(-passed_s / AVERAGED_S)
