"""The wait of one stream for the quotas that it overdraws.

Owns what the stream owes.  Nothing is refused: a stream waits, and others of the same names wait as well.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from broker.quotas.quotas import Limited, Quotas, Traffic
from dledger_wire.rpc.transport import CallContext
from dledger_wire.security.principal import Kind
from store.commands.quotas import Subject

SHORTEST_S = 0.001  # the clock counts these
LOOK_S = 1.0  # how often a wait looks whether the rule is still there

Names = list[tuple[Subject, str]]


def user_of(caller: CallContext) -> Names:
    """The caller as a subject of quotas, if it is a user."""
    return [(Subject.USER, caller.principal.name)] if caller.principal.kind is Kind.USER else []


class StreamQuota:
    """Of one stream, in one direction; ``is_overdrawn`` says that ``pay`` has to be awaited."""

    def __init__(self, quotas: Quotas, traffic: Traffic) -> None:
        self.is_overdrawn = False
        self.waited_s = 0.0
        self._quotas, self._traffic = quotas, traffic
        self._owed: dict[Limited, None] = {}

    def _take(self, subject: Subject, name: str, size_bytes: int, messages: int) -> Limited | None:
        limited = self._quotas.take(subject, name, self._traffic, size_bytes, messages)
        if limited is not None and self._debt_s(limited) > 0:
            self._owed[limited] = None
            self.is_overdrawn = True
        return limited

    def _debt_s(self, limited: Limited) -> float:
        return self._quotas.debt_s(limited, self._traffic)

    @property
    def owed_ms(self) -> int:
        """How long the stream has to wait now; to be asked while it ``is_overdrawn``."""
        return int(1000 * max(map(self._debt_s, self._owed)))

    async def pay(self, is_over: Callable[[], bool], most_s: float = math.inf) -> None:
        """Wait until nothing is owed, for ``most_s`` at most, or until ``is_over``."""
        quotas, began_s = self._quotas, self._quotas.now_s()
        slowest = max(self._owed, key=self._debt_s)
        slowest.waiting += 1
        try:
            while not is_over() and (debt_s := max(map(self._debt_s, self._owed))) > 0:
                left_s = began_s + most_s - quotas.now_s()
                if left_s <= 0:
                    break
                await asyncio.sleep(min(max(debt_s, SHORTEST_S), LOOK_S, left_s))
        finally:
            slowest.waiting -= 1
            waited_s = quotas.now_s() - began_s
            self.waited_s += waited_s
            quotas.throttled(slowest, waited_s)
        self._owed.clear()
        self.is_overdrawn = False
