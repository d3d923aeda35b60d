"""A long-lived stream to the leader of one replica group: opening, health and reopening with backoff.

Owns which node is tried next, when a leader counts as silent, how long to wait before another attempt, and the log
lines of an outage.  A leader that failed is not
tried again unless it claims to lead itself, or leads in a newer term.  A paused or partitioned leader keeps its connections open, so
silence alone proves nothing.  After ``SilencePolicy.ask_ms`` the other nodes are asked again and again for a leader in a newer term, and
when they, or the watch of routes, name one, the stream fails; a leader that responds is never left for that.  After ``limit_ms`` all
nodes are asked, and the stream fails as well when no node knows a leader and the policy does not tolerate that.

One user at a time: ``locate``, ``open``, then ``read`` and ``write`` until one of them raises, then ``close`` and ``back_off``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from dledger_client.cluster.retry import JitteredBackoff, is_retriable
from dledger_client.cluster.router import Router
from dledger_wire.clock import Clock
from dledger_wire.errors import (
    AuthenticationFailedError,
    BusyError,
    DledgerError,
    NotLeaderError,
    PermissionDeniedError,
    UnreachableError,
)
from dledger_wire.rpc.methods import StreamMethod
from dledger_wire.rpc.transport import ByteStream, RecallingStream
from dledger_wire.tasks import let_go

LONG_MS = 5_000
QUIET_MS = 60_000  # between two outages that are logged: a cluster may come and go

_logger = logging.getLogger(__name__)


class OutageNotes:
    """Of one replica group.  ``client``: its name, for people."""

    def __init__(self, client: str, replica_group: str, clock: Clock) -> None:
        self._client, self._replica_group, self._clock = client, replica_group, clock
        self._since_ms: int | None = None
        self._is_logged = False
        self._quiet_until_ms = 0

    def failed(self, error: DledgerError) -> None:
        """An attempt failed.  What needs a change by an operator is logged where it comes up."""
        if not is_retriable(error) or isinstance(error, AuthenticationFailedError | BusyError):
            return
        now_ms = self._clock.monotonic_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        if not self._is_logged and now_ms - self._since_ms >= LONG_MS and now_ms >= self._quiet_until_ms:
            self._is_logged, self._quiet_until_ms = True, now_ms + QUIET_MS
            text = "%s: replica group %s cannot be reached since %.0f s, trying again and again: %s"
            _logger.warning(text, self._client, self._replica_group, self._seconds(now_ms), error.message)

    def reached(self) -> None:
        """The leader does its work."""
        if self._is_logged:
            text = "%s: replica group %s is reached again after %.0f s"
            _logger.warning(text, self._client, self._replica_group, self._seconds(self._clock.monotonic_ms()))
        self._since_ms, self._is_logged = None, False

    def _seconds(self, now_ms: int) -> float:
        return (now_ms - (self._since_ms or now_ms)) / 1000


CLOSE_TIMEOUT_S = 1.0
REFUSED_PAUSE_S = 1.0  # a client that is refused, or lacks a right, does not ask every moment for it

AnyStream: TypeAlias = StreamMethod[Any, Any]


@dataclass(frozen=True, slots=True)
class SilencePolicy:
    """``limit_ms``: without a message for this long, all nodes are asked for the leader, again after ``recheck_ms``.

    ``ask_ms``: without a message for this long, the other nodes are asked for a newer leader, all the time.
    ``moved_ms``: without a message for this long, the stream fails when another leader in a newer term is known already.
    ``needs_leader``: the stream fails when no node knows a leader.
    """

    limit_ms: int
    ask_ms: int
    moved_ms: int
    recheck_ms: int = 0
    needs_leader: bool = False


LOOK_MS = 25  # how often is looked, while the leader is silent, whether another one is known

PRODUCE_SILENCE = SilencePolicy(1000, 150, 100, 1000, needs_leader=True)  # produce requests without a response
SESSION_SILENCE = SilencePolicy(800, 400, 400)  # heartbeats of a consumer without an acknowledgement
CHECK_SILENCE = SilencePolicy(2500, 1200, 1200)  # transaction checks: the leader sends heartbeats itself, one a second


class LeaderStream:
    """One client's stream for ``method`` at the leader of ``replica_group``.

    ``metadata``: what the stream sends along.

    ``client``: the name with which the log says that the leader cannot be reached for long; empty: no log, since callers get errors.
    """

    def __init__(
        self,
        router: Router,
        replica_group: str,
        method: AnyStream,
        silence: SilencePolicy,
        client: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.replica_group = replica_group
        self.address = ""  # of the leader that was located last
        self.last_seen_ms = 0
        self.is_confirmed = False  # whether the leader has done its work since it was located
        self._router, self._method, self._silence = router, method, silence
        self._metadata = metadata
        self._failed_address, self._term = "", 0  # not tried again; the term of the leader located last
        self._backoff, self._attempt = JitteredBackoff(router.random), 0
        self._backoff_term = 0
        self._stream: ByteStream | None = None
        self._next_check_ms = 0
        self._notes = OutageNotes(client, replica_group, router.clock) if client else None

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    async def locate(self) -> str:
        """The leader's address.  NotLeaderError when no node is known to lead."""
        self.is_confirmed = False
        self._router.route_watch.group(self.replica_group)
        view = await self._router.leaders.leader(self.replica_group, self._failed_address, self._term)
        self.address = self._failed_address = view.leader_address
        self._term = view.term
        return self.address

    def open(self) -> ByteStream:
        """Open the stream at the leader located last."""
        stream = self._stream = self._method.open(self._router.channel(self.address), metadata=self._metadata)
        self._router.watch()
        self._next_check_ms = 0
        self.touch()
        return stream

    def touch(self) -> None:
        """The leader responded, or was asked something now: silence counts from here."""
        self.last_seen_ms = self._router.clock.monotonic_ms()

    def confirm(self) -> None:
        """The leader does its work: the backoff starts over, and the same node may be tried again if it fails later."""
        self.is_confirmed, self._attempt = True, 0
        self._failed_address = ""
        if self._notes is not None:
            self._notes.reached()

    def suspect(self) -> None:
        """The leader failed, even if it worked before: not tried again unless it still claims to lead."""
        self._failed_address = self.address

    async def back_off(self, error: DledgerError) -> None:
        """Wait before the next attempt, for less when a new leader is known before."""
        if self._notes is not None:
            self._notes.failed(error)
        if self._term > self._backoff_term:  # a new leader, which may need a moment before it serves: begin with short pauses again
            self._backoff_term, self._attempt = self._term, 0
        self._attempt += 1
        pause_s = self._backoff.pause_ms(self._attempt, busy=isinstance(error, BusyError) or "alarm" in error.details) / 1000
        if isinstance(error, AuthenticationFailedError | PermissionDeniedError):
            pause_s += REFUSED_PAUSE_S
        await self._router.cache.pause(self.replica_group, self._term, pause_s)

    async def close(self) -> None:
        """Close the stream, without waiting long for the other side.  Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(TimeoutError, DledgerError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await stream.close()

    # Messages

    async def write(self, message: bytes) -> None:
        await self._opened().write(message)

    def recall(self) -> bool:
        """See ``RecallingStream``."""
        return isinstance(self._stream, RecallingStream) and self._stream.recall()

    async def read(self) -> bytes:
        """The next message.  UnreachableError when the stream has ended."""
        message = await self._opened().read()
        if message is None:
            raise self._ended_by_leader()
        return message

    async def receive_all(self, handle: Callable[[bytes], object]) -> None:
        """Give each message to ``handle`` as soon as it is there.  Returns never; raises what ``read`` does, and what ``handle`` raises."""

        def take(message: bytes) -> bool:
            handle(message)
            return True

        await self._opened().receive(take)
        raise self._ended_by_leader()

    def _ended_by_leader(self) -> UnreachableError:
        return UnreachableError(f"{self.address}: the stream ended", address=self.address)

    async def read_heartbeat(self) -> bytes:
        """The next message of a leader that sends heartbeats.  UnreachableError when it is silent for the policy's limit."""
        limit_ms = self._router.clock.monotonic_ms() + self._silence.limit_ms

        async def look(now_ms: int) -> None:
            if now_ms >= limit_ms:
                text = f"no heartbeat from {self.address} for {self._silence.limit_ms / 1000:g} s"
                raise UnreachableError(text, address=self.address)

        return await self._read_looking(look)

    async def read_until(self, deadline_ms: int) -> bytes:
        """The next message, while the same node leads.  UnreachableError at the deadline, or when another node leads."""
        confirm_ms = self._router.clock.monotonic_ms() + self._silence.limit_ms

        async def look(now_ms: int) -> None:
            nonlocal confirm_ms
            if now_ms >= confirm_ms:
                await self._confirm_leader()
                confirm_ms = now_ms + self._silence.limit_ms
            if now_ms >= deadline_ms:
                raise UnreachableError(f"no response from {self.address} in time", address=self.address)

        return await self._read_looking(look)

    async def _read_looking(self, look: Callable[[int], Awaitable[None]]) -> bytes:
        """The next message.  While none comes, ``look(now_ms)`` and the search for a newer leader may end the wait with an error."""
        clock = self._router.clock
        begun_ms, pause_ms = clock.monotonic_ms(), self._silence.moved_ms
        reading = asyncio.ensure_future(self.read())
        try:
            while not (await asyncio.wait([reading], timeout=pause_ms / 1000))[0]:
                self._check_moved(begun_ms)
                await look(clock.monotonic_ms())
                pause_ms = LOOK_MS
            return reading.result()
        finally:
            await let_go(reading)

    async def check_leader(self) -> None:
        """When the leader is silent, ask for the leader.  UnreachableError when it is another node."""
        now_ms = self._router.clock.monotonic_ms()
        if now_ms - self.last_seen_ms >= self._silence.moved_ms:
            self._check_moved(self.last_seen_ms)
        if now_ms - self.last_seen_ms < self._silence.limit_ms or now_ms < self._next_check_ms:
            return
        self._next_check_ms = now_ms + self._silence.recheck_ms
        await self._confirm_leader()

    def _check_moved(self, silent_since_ms: int) -> None:
        """UnreachableError when another node is known to lead in a newer term; when the silence is long, the others are asked."""
        later = self._router.cache.newer_leader(self.replica_group, self._term)
        if later is not None and later.leader_address != self.address:
            raise UnreachableError(f"no response from {self.address}; {later.leader_address} is the new leader", address=self.address)
        if self._router.clock.monotonic_ms() - silent_since_ms >= self._silence.ask_ms:
            self._router.silent.ask_others(self.replica_group, self.address)

    async def _confirm_leader(self) -> None:
        try:
            await self._router.leaders.confirm(self.replica_group, self.address)
        except NotLeaderError:
            if self._silence.needs_leader:
                raise

    def _opened(self) -> ByteStream:
        if self._stream is None:
            raise UnreachableError(f"{self.address}: the stream is closed", address=self.address)
        return self._stream
