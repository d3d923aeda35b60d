"""One name server as a node sees it: registers what is new, repeats it, and remembers what it has.

Owns the retries.  A name server that does not answer delays no other: each has a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.routes.own_registration import OwnRegistration
from dledger_wire._pb import routes_pb2
from dledger_wire.clock import Random
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import Channel

CALL_TIMEOUT_S = 3.0
RETRY_S = 1.0  # of a name server that did not answer, however rarely registrations are repeated
MAX_ROUNDS = 4  # a table of topics may be asked for, and may have changed meanwhile


class NameServerLink:
    """``answered`` is called with the link after each registration that the name server took or refused."""

    def __init__(
        self,
        address: str,
        channel: Channel,
        own: OwnRegistration,
        random: Random,
        interval_ms: int,
        answered: Callable[[NameServerLink], None],
        checked: Callable[[routes_pb2.Registration, routes_pb2.RegisterReply], object],
    ) -> None:
        self.address = address
        self.channel = channel
        self.is_alive = True  # the last call was answered, or there was none yet
        self.directory_version = 0
        self.acknowledged = -1  # version of the table of topics that it has
        self.registered_sequence = -1  # of the newest registration that it took
        self._own = own
        self._random = random
        self._interval_ms = interval_ms
        self._answered = answered
        self._checked = checked
        self._known_topics: int | None = None  # what it needs to be sent; None: nothing that we know of
        self._changed = asyncio.Event()
        self._waiting: dict[asyncio.Future[None], int] = {}  # -> the version waited for

    def changed(self) -> None:
        """There is something new to register."""
        self._changed.set()

    async def run(self) -> None:
        """Register now, at every change, and again and again; until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self._register()
                self.is_alive = True
                pause_s = self._interval_ms * (900 + self._random.randrange(0, 200)) / 1_000_000
            except DledgerError:
                self.give_up()
                pause_s = min(RETRY_S, self._interval_ms / 1000)
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _register(self) -> None:
        for _round in range(MAX_ROUNDS):
            registration = self._own.message(self._needed())
            reply = await methods.REGISTER.call(self.channel, registration, timeout_s=CALL_TIMEOUT_S)
            self._take(registration, reply)
            if not reply.wants_topics:
                return

    def _needed(self) -> int | None:
        """Since which version of the table of topics it is to be sent."""
        if self._known_topics is not None:
            return self._known_topics
        return self.acknowledged if 0 < self.acknowledged < self._own.topics_version and self._own.is_master else None

    def _take(self, registration: routes_pb2.Registration, reply: routes_pb2.RegisterReply) -> None:
        self.directory_version = reply.directory_version
        if reply.accepted:
            self.registered_sequence = registration.sequence
        self.acknowledged = reply.topics_version if reply.topics_version or not reply.wants_topics else -1
        self._known_topics = None
        if reply.wants_topics:  # the whole table if it has none, or if a part of it was not what it needs
            self._known_topics = -1 if registration.has_topics or not reply.topics_version else reply.topics_version
        for waiting, version in list(self._waiting.items()):
            if self.acknowledged >= version or not reply.accepted:
                _resolve(waiting)
        self._checked(registration, reply)
        self._answered(self)

    def give_up(self) -> None:
        """It does not answer: no caller waits for it until it does."""
        self.is_alive = False
        for waiting in self._waiting:
            _resolve(waiting)

    async def has_topics(self, version: int) -> None:
        """Return when it has that version of the table, or does not answer."""
        if not self.is_alive or self.acknowledged >= version:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = version
        try:
            await waiting
        finally:
            del self._waiting[waiting]


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
