"""Log ins: asks the cluster whether it has a user with this password, and whether it has users at all.

The console has no users and no rights of its own.  In a cluster without users there is one session for all visitors.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from dledger_client.aio import Admin
from dledger_console.settings import ConsoleSettings
from dledger_console.web.sessions import TIMEOUT_MS, Session, SessionTable
from dledger_wire.errors import AuthenticationFailedError, BusyError, DledgerError, PermissionDeniedError, UnreachableError
from dledger_wire.security.attempts import Attempts

ASK_TIMEOUT_MS = 3_000
ASK_AGAIN_S = 2.0  # after no node has answered
LOOK_AGAIN_S = 30.0  # after one has said that there are no users: they may be introduced while the console runs
MAX_AT_ONCE = 8  # checks of passwords, each of which costs a node some milliseconds
ATTEMPTS_OF_SOURCE = 50  # wrong passwords within a minute
WAIT_S = 1.0  # for one of them to end
LOG_IN_S = 5.0


class Gate:
    """Sessions of users, and the shared session where the cluster has no users."""

    def __init__(self, settings: ConsoleSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self.sessions = SessionTable(settings.idle_s, clock)
        self._everybody: Session | None = None
        self._users = False if settings.as_started else settings.users
        self._is_known = self._users is not None  # and need not ask
        self._asking: asyncio.Task[None] | None = None
        self._ask_again_s = float("-inf")
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)
        self._attempts = Attempts(clock, of_source=ATTEMPTS_OF_SOURCE)

    async def session(self, secret: str) -> Session | None:
        """The session of a request with this cookie; None when a log in is needed."""
        if await self.wants_users():
            return self.sessions.find(secret) if secret else None
        if self._everybody is None:
            self._everybody = self.sessions.make("", Admin(self._settings.bootstrap, read_from="follower", timeout_ms=TIMEOUT_MS))
        return self._everybody

    async def wants_users(self) -> bool:
        """Whether a log in is needed; yes, while no node has answered.  All requests wait for one question, and none soon after it; nor
        while the cluster had no users when it was asked last."""
        if not (self._is_known or self._users) and self._asking is None and self._clock() >= self._ask_again_s:
            self._asking = asyncio.create_task(self._ask(), name="has the cluster users")
        if self._asking is not None and self._users is None:
            await asyncio.shield(self._asking)
        return self._users is not False

    @property
    def is_unanswered(self) -> bool:
        """Whether no node has said yet if the cluster has users."""
        return self._users is None

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_MS / 1000), Admin(self._settings.bootstrap, timeout_ms=ASK_TIMEOUT_MS) as admin:
                await admin.describe_cluster()
            self._users = False
        except (AuthenticationFailedError, PermissionDeniedError):
            self._users = True
            await self._end_everybody()
        except (DledgerError, TimeoutError):
            pass  # as it was
        finally:
            self._ask_again_s = self._clock() + (ASK_AGAIN_S if self._users is None else LOOK_AGAIN_S)
            self._asking = None

    async def log_in(self, user: str, password: str, source: str) -> str:
        """The secret of a new session.  AuthenticationFailedError for a wrong name or password, UnreachableError when no node answers in
        time, BusyError when too many are checked already, TooManyAttemptsError when ``source`` was wrong too often."""
        give_back = self._attempts.reserve(source, user)
        admin = Admin(self._settings.bootstrap, read_from="follower", timeout_ms=TIMEOUT_MS, user=user, password=password)
        try:
            await self._checked(admin)
        except BaseException as error:
            if not isinstance(error, AuthenticationFailedError | asyncio.CancelledError):
                give_back()  # no caller has learned whether it was right
            await admin.close()
            raise
        give_back()
        return await self.sessions.open(user, admin)

    async def _checked(self, admin: Admin) -> None:
        try:
            await asyncio.wait_for(self._at_once.acquire(), WAIT_S)
        except TimeoutError:
            raise BusyError("too many logins are being checked; try again in a few seconds") from None
        try:
            async with asyncio.timeout(LOG_IN_S):
                with contextlib.suppress(PermissionDeniedError):  # known, and may do little
                    await admin.describe_cluster()
        except TimeoutError:
            raise UnreachableError(f"no node answered within {LOG_IN_S:g} s") from None
        finally:
            self._at_once.release()

    async def close(self) -> None:
        """End all sessions."""
        await self.sessions.end()
        await self._end_everybody()

    async def _end_everybody(self) -> None:
        everybody, self._everybody = self._everybody, None
        if everybody is not None:
            await everybody.end()
