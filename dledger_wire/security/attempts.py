"""How often a source may try something in the name of a user, such as a password.

``Attempts`` refuses what goes beyond a limit; they are counted before the outcome is known, so that those at the same time do not pass it.
``WrongPasswords`` only slows a source down: a program with an old password, which tries again and again, locks no other one out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dledger_wire.addresses import source_of
from dledger_wire.errors import AuthenticationFailedError

OF_USER = 10  # wrong passwords of one source for one user within WINDOW_S
WINDOW_S = 60.0
AT_ONCE = 100  # wrong passwords within WINDOW_S that are answered at once: a program tries each node several times
HOLD_S = 1.0
MAX_HELD = 5  # of one source for one user
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
        source = source_of(source)
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


@dataclass(slots=True)
class _Wrong:
    """When a source was wrong for a user, and when its refusals began to be held back; the newest last."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=AT_ONCE + 1))
    held: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_HELD))


class WrongPasswords:
    """Wrong passwords by source and user.  Beyond ``AT_ONCE`` of the last ``WINDOW_S`` seconds each refusal is held back for ``HOLD_S``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: dict[_Key, _Wrong] = {}

    def check(self, source: str, user: str) -> None:
        """TooManyAttemptsError while ``MAX_HELD`` refusals are held back: guessing does not get faster by more connections."""
        found = self._wrong.get((source_of(source), user))
        if found is not None and len(_newer(found.held, self._clock() - HOLD_S)) >= MAX_HELD:
            text = f"too many wrong passwords of {user} from {source}; try again in {HOLD_S:g} s"
            raise TooManyAttemptsError(text, reason=TooManyAttemptsError.REASON, user=user)

    def wrong(self, source: str, user: str) -> float:
        """Count one; returns for how many seconds to hold its refusal back."""
        key, now_s = (source_of(source), user), self._clock()
        if key not in self._wrong and len(self._wrong) >= MAX_COUNTED:
            del self._wrong[next(iter(self._wrong))]
        found = self._wrong.setdefault(key, _Wrong())
        found.times.append(now_s)
        if len(_newer(found.times, now_s - WINDOW_S)) <= AT_ONCE:
            return 0.0
        found.held.append(now_s)
        return HOLD_S


def _newer(times: deque[float], than_s: float) -> deque[float]:
    while times and times[0] <= than_s:
        times.popleft()
    return times
