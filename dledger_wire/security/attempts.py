"""How often a source may try something in the name of a user, such as a password.

Counted before the outcome is known, so that attempts at the same time do not pass the limit.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable

from dledger_wire.errors import AuthenticationFailedError

OF_USER = 10  # wrong passwords of one source for one user within WINDOW_S
WINDOW_S = 60.0
MAX_COUNTED = 10_000

_Key = tuple[str, str]


class TooManyAttemptsError(AuthenticationFailedError):
    """This source has tried too often; ``details["reason"]`` is ``REASON``."""

    REASON = "too_many_attempts"


class Attempts:
    """Attempts by source, and by source and user, of the last ``WINDOW_S`` seconds; those being checked count as well.

    ``what`` they are, in the text of the error.  ``of_source`` is for all users: many people may share an address.
    """

    def __init__(self, clock: Callable[[], float], *, of_source: int, of_user: int = OF_USER, what: str = "wrong passwords") -> None:
        self._clock = clock
        self._of_source, self._of_user, self._what = of_source, of_user, what
        self._times: dict[_Key, deque[float]] = {}

    def reserve(self, source: str, user: str) -> Callable[[], None]:
        """Count one attempt; what is returned takes it back.  TooManyAttemptsError when there were too many."""
        source = _network(source)
        keys = ((source, ""), (source, user))
        now_s = self._clock()
        if len(self._recent(keys[0], now_s)) >= self._of_source or len(self._recent(keys[1], now_s)) >= self._of_user:
            where = f" from {source}" if source else ""
            text = f"too many {self._what} of {user or 'a user'}{where}; try again in {WINDOW_S:g} s"
            raise TooManyAttemptsError(text, reason=TooManyAttemptsError.REASON, user=user)
        for key in keys:
            self._add(key, now_s)

        def give_back() -> None:
            for key in keys:
                times = self._times.get(key)
                if times is not None and now_s in times:
                    times.remove(now_s)
                    if not times:
                        del self._times[key]

        return give_back

    def _recent(self, key: _Key, now_s: float) -> deque[float]:
        times = self._times.get(key, deque())
        while times and times[0] <= now_s - WINDOW_S:
            times.popleft()
        return times

    def _add(self, key: _Key, now_s: float) -> None:
        if key not in self._times and len(self._times) >= MAX_COUNTED:
            del self._times[next(iter(self._times))]
        self._times.setdefault(key, deque()).append(now_s)


def _network(source: str) -> str:
    """The address; of IPv6 its /64, which is what one host has."""
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return source
    if address.version == 4:
        return str(address)
    mapped = address.ipv4_mapped
    return str(mapped or ipaddress.ip_network((address, 64), strict=False))
