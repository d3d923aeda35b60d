"""Users and rules outside of the first replica group: each process watches a replica of that group, and masters keep a copy in their log.

Owns the newest users and rules that this process knows.  A revocation counts here as soon as one replica of the first group that has
a leader reports it; the copy in the log is what a node begins with after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from broker.context import ServiceContext
from broker.security.user_messages import command_of
from dledger_wire._pb import security_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import Network, connect_to
from dledger_wire.security.principal import Principal
from dledger_wire.tasks import BackgroundTasks
from store.state.security import SecurityState

WAIT_MS = 1_000
ANSWER_S = 1.5
PAUSE_S = 0.2  # between replicas that do not answer
CURRENT_S = 3.0  # an answer that nothing has changed comes every second
COPY_TIMEOUT_S = 5.0
COPY_PAUSE_S = 1.0

Replica: TypeAlias = tuple[Principal, str]

_logger = logging.getLogger(__name__)


def home_of(groups: Iterable[str], otherwise: str) -> str:
    """The replica group where users and rules are changed: the first one that is not removed; ``groups`` are those in order."""
    return next(iter(groups), otherwise)


class SecurityWatch:
    """``own`` is the state in the own log, if there is one; ``replicas`` are those of the first group now, with their addresses: only an
    authenticated one is believed."""

    def __init__(self, network: Network, replicas: Callable[[], Sequence[Replica]], own: SecurityState | None = None) -> None:
        self._network = network
        self._replicas = replicas
        self._own = own
        self._received = SecurityState()
        self._answered_s: float | None = None  # when a replica of the first group answered last
        self._news = asyncio.Event()
        self._listeners: list[Callable[[], object]] = []
        self._asked: set[Replica] = set()

    @property
    def is_known(self) -> bool:
        """Whether a replica of the first group has ever answered."""
        return self._answered_s is not None

    @property
    def is_current(self) -> bool:
        """Whether one has answered lately."""
        return self._answered_s is not None and asyncio.get_running_loop().time() - self._answered_s < CURRENT_S

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` whenever something newer arrived."""
        self._listeners.append(listener)

    def newest(self) -> SecurityState:
        """What counts now."""
        own = self._own
        return own if own is not None and own.version >= self._received.version else self._received

    async def run(self) -> None:
        """Watch two replicas until cancelled: one that hangs delays nothing."""
        async with asyncio.TaskGroup() as group:
            for turn in range(2):
                group.create_task(self._keep_watching(turn), name="watch users")

    async def _keep_watching(self, turn: int) -> None:
        while True:
            free = [replica for replica in self._replicas() if replica not in self._asked]
            if free:
                replica = free[turn % len(free)]
                self._asked.add(replica)
                try:
                    while await self._watch(replica):
                        pass
                finally:
                    self._asked.discard(replica)
                turn += 1
            await asyncio.sleep(PAUSE_S)

    async def _watch(self, replica: Replica) -> bool:
        """Ask one replica until it does not answer any more, or is not to be asked; False when there is nothing to ask it again."""
        principal, address = replica
        channel, answered = connect_to(self._network, address, principal), False
        try:
            while replica in self._replicas():
                request = security_pb2.WatchSecurityRequest(known_version=self.newest().version, wait_ms=WAIT_MS)
                self._take(await methods.WATCH_SECURITY.call(channel, request, timeout_s=WAIT_MS / 1000 + ANSWER_S))
                answered = True
        except DledgerError:
            return answered
        finally:
            await channel.close()
        return False

    def _take(self, copy: security_pb2.SecurityCopy) -> None:
        self._answered_s = asyncio.get_running_loop().time()
        if copy.unchanged or copy.version <= self._received.version:
            return
        received = SecurityState()
        received.take(command_of(copy))
        self._received = received
        self._news.set()
        for listener in self._listeners:
            listener()

    async def wait_for_news(self) -> None:
        """Return when something newer than the own log's state may have arrived."""
        await self._news.wait()
        self._news.clear()


class SecurityCopies:
    """Writes what was heard into the own log.  Implements ``broker.context.MasterService``."""

    name = "security copies"

    def __init__(self, context: ServiceContext, watch: SecurityWatch) -> None:
        self._context, self._watch = context, watch

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        tasks.spawn(self._copy(), "copy")

    async def stop(self) -> None:
        """Nothing to do: everything is a task."""

    async def _copy(self) -> None:
        while True:
            newest = self._watch.newest()
            if newest.version <= self._context.store.security.version:
                await self._watch.wait_for_news()
                continue
            try:
                await self._context.command(newest.as_copy(), COPY_TIMEOUT_S)
            except DledgerError as error:
                _logger.warning(
                    "users and rules of version %d were not copied: %s", newest.version, error.message, extra={"event": "users_not_copied"}
                )
                await asyncio.sleep(COPY_PAUSE_S)
