"""Sessions in memory, found by the secret in a browser's cookie.

Owns how long they last: a session ends when its user logs out, after some time without a click or a key, and with the process.  An
action that runs keeps the client of its session open until it is done.  The password is in that client and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from dledger_client.aio import Admin
from dledger_wire.errors import DledgerError

SESSION = "dledger.session"  # in the scope of a request that passed
MAX_SESSIONS = 1_000
MAX_SESSIONS_OF_USER = 20
MAX_KEPT = 100  # things of one kind, such as consumer groups whose lag is watched
TIMEOUT_MS = 10_000

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@runtime_checkable
class Closable(Protocol):
    """What a session keeps and has to end, such as a sampler."""

    def close(self) -> None:
        """End it."""


class SessionEndedError(DledgerError):
    """The user has logged out, or was away for too long."""


class Session:
    """A user of the console, with the client that asks the cluster as this user."""

    def __init__(self, user: str, admin: Admin, clock: Callable[[], float] = time.monotonic, of_user: dict[str, Any] | None = None) -> None:
        self.user = user
        self._admin = admin
        self._clock = clock
        self._kept: dict[tuple[str, str], Any] = {}  # used last, last
        self._of_user = {} if of_user is None else of_user
        self._holders = 0
        self._over = asyncio.Event()
        self.used_s = clock()
        self.ended = False
        self.at_end: list[Callable[[], object]] = []  # pages that are open

    @property
    def admin(self) -> Admin:
        """The client.  SessionEndedError when the session has ended and no action holds it."""
        if self.ended and not self._holders:
            raise SessionEndedError("the session has ended; log in again")
        return self._admin

    def use(self) -> None:
        """The user did something."""
        self.used_s = self._clock()

    def keep(self, name: str, make: Callable[[], T], key: str = "") -> T:
        """What pages of this session share, made at the first call; of those with a ``key``, the ``MAX_KEPT`` used last."""
        place = name, key
        found: T = self._kept.pop(place) if place in self._kept else make()
        self._kept[place] = found
        of_name = [each for each in self._kept if each[0] == name]
        for oldest in of_name[:-MAX_KEPT]:
            _close(self._kept.pop(oldest))
        return found

    def keep_for_user(self, name: str, make: Callable[[], T]) -> T:
        """What all sessions of this user share, also later ones: what goes on when a session ends."""
        if name not in self._of_user:
            self._of_user[name] = make()
        found: T = self._of_user[name]
        return found

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Keep the client open until the block ends, though the session may end before it.  SessionEndedError when it has ended."""
        _ = self.admin
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if self.ended and not self._holders:
                await self._admin.close()

    async def over(self) -> None:
        """Return when the session has ended."""
        await self._over.wait()

    async def end(self) -> None:
        """Forget the user: close pages and samplers, and connections that no action holds."""
        if self.ended:
            return
        self.ended = True
        self._over.set()
        for act in list(self.at_end):
            act()
        for kept in self._kept.values():
            _close(kept)
        self._kept.clear()
        if not self._holders:
            await self._admin.close()


class SessionTable:
    """Sessions by the secret of their cookie, of which only a hash is kept."""

    def __init__(self, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s = idle_s
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}
        self._of_user: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self, user: str, admin: Admin) -> str:
        """A new session; the secret for its cookie."""
        await self.expire()
        while len(own := [key for key, session in self._sessions.items() if session.user == user]) >= MAX_SESSIONS_OF_USER:
            await self._end_oldest(own)
        while len(self._sessions) >= MAX_SESSIONS:
            await self._end_oldest(self._sessions)
        secret = secrets.token_urlsafe(32)
        self._sessions[_key(secret)] = self.make(user, admin)
        return secret

    def make(self, user: str, admin: Admin) -> Session:
        """A session that is not in the table, with what all sessions of this user share."""
        return Session(user, admin, self._clock, self._of_user.setdefault(user, {}))

    async def _end_oldest(self, keys: Iterable[bytes]) -> None:
        await self._sessions.pop(min(keys, key=lambda key: self._sessions[key].used_s)).end()

    def find(self, secret: str) -> Session | None:
        """The session of a cookie; None when it has ended."""
        session = self._sessions.get(_key(secret))
        return None if session is None or self._clock() - session.used_s > self._idle_s else session

    async def close(self, secret: str) -> None:
        """Log out."""
        session = self._sessions.pop(_key(secret), None)
        if session is not None:
            await session.end()

    async def expire(self) -> None:
        """End sessions whose users are away."""
        now_s = self._clock()
        away = [key for key, session in self._sessions.items() if now_s - session.used_s > self._idle_s]
        for session in [self._sessions.pop(key) for key in away]:  # before the first is ended: others may come and go meanwhile
            await session.end()

    async def expire_regularly(self) -> None:
        """``expire`` as long as the process lives."""
        while True:
            await asyncio.sleep(min(60.0, max(1.0, self._idle_s / 4)))
            try:
                await self.expire()
            except Exception:
                _logger.exception("sessions of absent users could not be ended")

    async def end(self) -> None:
        """End all, and what goes on without a session."""
        for kept in [kept for of_user in self._of_user.values() for kept in of_user.values()]:
            _close(kept)
        while self._sessions:
            await self._sessions.popitem()[1].end()


def session_of(scope: Mapping[str, Any]) -> Session:
    """The session of a request that passed."""
    found: Session = scope[SESSION]
    return found


def _close(kept: object) -> None:
    if isinstance(kept, Closable):
        kept.close()


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
