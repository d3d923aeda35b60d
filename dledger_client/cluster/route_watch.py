"""The watch of routes: one long poll at one name server, which answers when something that the client uses has changed.

Owns the poll and its life.  A short-lived client never has one: it begins some seconds after a client's first stream.  A name server that
is lost or silent is replaced by another one; without any the watch tries again from time to time, and the client goes on with what it
knows and what nodes register.

Owns also what an answer changes, and the versions that the next question gives, so that only what changed is sent again.  A name server can
add queues and change them by a newer table of topics.  Queues that it lacks are kept until the leader of their replica group confirms that
they are gone: it knows everything that was acknowledged, a name server may be behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from dledger_client.cluster.channels import drop
from dledger_client.cluster.name_servers import NameServers
from dledger_client.cluster.retry import JitteredBackoff
from dledger_client.cluster.routes import RouteCache, queues_in
from dledger_wire._pb import routes_pb2
from dledger_wire.clock import Clock, Random
from dledger_wire.errors import DledgerError
from dledger_wire.status import REMOVED
from dledger_wire.tasks import BackgroundTasks


@dataclass(slots=True)
class Merged:
    """What an answer left open: ``lacking`` has, for each topic, the replica groups that only the client knows it in."""

    lacking: dict[str, list[str]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)  # topics that do not exist, as far as the name server knows


class RouteAnswers:
    """Of one client."""

    def __init__(self, cache: RouteCache) -> None:
        self._cache = cache
        self._topics: dict[str, int] = {}
        self._groups: dict[str, int] = {}

    def request(self, topics: Iterable[str], groups: Iterable[str] = (), wait_ms: int = 0) -> routes_pb2.RoutesRequest:
        """A question for what changed of these topics, of the replica groups that they are in, and of ``groups``."""
        request = routes_pb2.RoutesRequest(wait_ms=wait_ms)
        wanted = dict.fromkeys(groups)
        for name in topics:
            request.topics.add(name=name, version=self._topics.get(name, 0))
            wanted |= dict.fromkeys(queues.replica_group for queues in self._cache.topics.get(name, ()))
        for name in wanted:
            request.groups.add(name=name, version=self._groups.get(name, 0))
        return request

    def forget(self, topic: str = "", *, groups: Iterable[str] = ()) -> None:
        """Ask for the whole route of the topic, and of the replica groups, the next time."""
        self._topics.pop(topic, None)
        for group in groups:
            self._groups.pop(group, None)

    def merge(self, address: str, reply: routes_pb2.RoutesReply) -> Merged:
        """Take over what the name server at ``address`` says."""
        for group in reply.groups:
            self._merge_group(address, group, complete=reply.complete)
        merged = Merged()
        for topic in reply.topics:
            self._merge_topic(topic, reply, merged)
        return merged

    def _merge_group(self, address: str, route: routes_pb2.GroupRoute, *, complete: bool) -> None:
        self._groups[route.name] = route.version
        if route.found:
            self._cache.learn_group(self._cache.group_of(route, address))
        elif complete or route.state == REMOVED:
            self._cache.forget_group(route.name)

    def _merge_topic(self, route: routes_pb2.TopicRoute, reply: routes_pb2.RoutesReply, merged: Merged) -> None:
        self._topics[route.name] = route.version
        self._cache.set_unseen(route.name, route.unseen_by)
        known = self._cache.topics.get(route.name, [])
        received = [
            queues_in(route.name, queues, queues.topic_epoch, queues.topics_version, reply.max_message_bytes) for queues in route.queues
        ]
        here = {queues.replica_group for queues in received}
        kept = [queues for queues in known if queues.replica_group not in here]
        self._cache.set_topic(route.name, [*self._cache.newest(route.name, received), *kept])
        if reply.complete and not route.found and not known:
            merged.absent.append(route.name)
        if reply.complete and kept:
            merged.lacking[route.name] = [queues.replica_group for queues in kept]


BEGIN_AFTER_S = 3.0  # after the first stream: a client that is closed before needs no watch
MAX_TOPICS = 4_000  # those used last are watched, the others are looked up from time to time
WAIT_MS, WAIT_SPREAD_MS = 20_000, 10_000  # of one poll; drawn, so that the polls of many clients do not end together
SETTLE_S = 0.1  # before a poll is replaced by one for more topics, of which several are looked up one after the other
PAUSE_S = 0.005  # after an answer: what changes in quick succession is sent together
LONGEST_PAUSE_S = 2.0  # between attempts while no name server answers
SILENT_S = 1.0  # a poll without an answer for that long is replaced when a leader was lost meanwhile


class RouteWatch:
    """Of one client.  ``confirm`` settles what a name server lacks; it is set before the watch begins."""

    confirm: Callable[[dict[str, list[str]]], Awaitable[None]]

    def __init__(
        self,
        names: NameServers,
        answers: RouteAnswers,
        cache: RouteCache,
        clock: Clock,
        random: Random,
    ) -> None:
        self._names, self._answers, self._cache = names, answers, cache
        self._clock, self._random = clock, random
        self._topics: dict[str, None] = {}  # the one used last at the end
        self._groups: dict[str, None] = {}
        self._more = asyncio.Event()  # topics or groups that the poll under way is not about
        self._doubted = asyncio.Event()  # the name server may be gone
        self._begin: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process_id = 0
        self._tasks = BackgroundTasks("routes", self._crashed)
        self._polled_ms = 0
        self._is_watched = False

    # What is watched

    @property
    def is_current(self) -> bool:
        """Whether a name server sends changes now, as far as is known."""
        return self._is_watched

    def topic(self, name: str) -> None:
        """Watch a topic."""
        is_new = self._topics.pop(name, self) is self
        self._topics[name] = None
        if is_new:
            self._more.set()

    def forget_topic(self, name: str) -> None:
        """Watch a topic no more."""
        self._topics.pop(name, None)

    def group(self, name: str) -> None:
        """Watch a replica group, beside those that the topics are in."""
        if name not in self._groups:
            self._groups[name] = None
            self._more.set()

    # Life

    def begin(self) -> None:
        """The client uses a stream: watch, unless it is closed soon.  Idempotent."""
        if self._begin is None:
            self._loop, self._process_id = asyncio.get_running_loop(), os.getpid()
            self._begin = self._loop.call_later(BEGIN_AFTER_S, self._start)

    def _start(self) -> None:
        self._doubted.set()  # the first answer is one that does not wait
        self._tasks.spawn(self._run(), "watch")

    async def close(self) -> None:
        """End the poll, for good.  Idempotent."""
        self._loop = None
        self.cancel()
        await self._tasks.stop()

    def cancel(self) -> None:
        """End the poll, without waiting for its end."""
        if self._begin is not None:
            self._begin.cancel()
        self._tasks.cancel()

    def abandon(self) -> None:
        """The client is gone without being closed: end the poll, from any thread.  Not in a forked child: its loop is not there."""
        loop = self._loop
        if loop is not None and self._process_id == os.getpid() and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                if asyncio._get_running_loop() is loop:
                    loop.call_soon(self.cancel)
                else:
                    loop.call_soon_threadsafe(self.cancel)

    def doubt(self) -> None:
        """A leader was lost: if the name server has been silent for a while, it may be gone, too, and another one is asked."""
        if self._is_watched and self._clock.monotonic_ms() - self._polled_ms > SILENT_S * 1000:
            self._doubted.set()

    async def _run(self) -> None:
        backoff, failures = JitteredBackoff(self._random), 0
        while True:
            try:
                await self._poll()
                failures = 0
                await asyncio.sleep(PAUSE_S)
            except DledgerError:
                self._is_watched, failures = False, failures + 1
                pause_s = backoff.pause_ms(failures, busy=True) / 1000 * (1 << min(4, max(0, failures - 4)))
                await asyncio.sleep(min(LONGEST_PAUSE_S, pause_s))

    def _crashed(self, _error: BaseException) -> None:
        self._is_watched = False

    async def _take(self, address: str, reply: routes_pb2.RoutesReply) -> None:
        self._is_watched = True
        await self.confirm(self._answers.merge(address, reply).lacking)

    def _request(self, wait_ms: int = 0) -> routes_pb2.RoutesRequest:
        topics = list(self._topics)[-MAX_TOPICS:]
        return self._answers.request(topics, self._groups, wait_ms)

    async def _poll(self) -> None:
        """Ask once; returns when an answer is merged, or when the question is not the right one any more."""
        self._more.clear()
        if self._doubted.is_set() or not self._names.current:
            is_first = not self._is_watched
            self._doubted.clear()
            address, reply = await self._names.routes(self._request())
            await self._take(address, reply)
            if is_first:
                self._names.spread()
        wait_ms = WAIT_MS + self._random.randrange(0, WAIT_SPREAD_MS)
        self._polled_ms = self._clock.monotonic_ms()
        address = self._names.current
        asked = asyncio.ensure_future(self._names.poll(self._request(wait_ms)))
        signals = [asyncio.ensure_future(self._more.wait()), asyncio.ensure_future(self._doubted.wait())]
        try:
            await asyncio.wait([asked, *signals], return_when=asyncio.FIRST_COMPLETED)
            if not asked.done() and not self._doubted.is_set():
                await asyncio.wait([asked], timeout=SETTLE_S)
            if asked.done():
                await self._take(address, asked.result())
        finally:
            drop(asked, *signals)
