"""Polls for messages that a consumer leases: one at a time of each replica group of each topic, and what came and was not handed out.

Owns that nothing that came is lost: a poll belongs to the consumer, not to the call that began it, and its messages wait here for the next
call.  Before they are handed out after a while their invisible time begins again; those that were received again meanwhile are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from dledger_client.cluster.retry import is_retriable
from dledger_client.cluster.router import Router
from dledger_client.consumer.leased_messages import LeasedMessage, leased_messages
from dledger_client.consumer.receipts import How, Receipts, What
from dledger_client.fetch.subscription import Subscription
from dledger_wire._pb import pop_pb2
from dledger_wire.errors import ClientClosedError, DledgerError, TopicNotFoundError, TopicPermissionError
from dledger_wire.rpc import methods
from dledger_wire.status import Perm
from dledger_wire.tasks import BackgroundTasks

WAIT_MS = 5_000  # of one poll: a leader that is cut off is given up after it
LATE_S = 1.0  # how long a call waits for those that answer later than others, once its time is over
LOOK_UP_MS = 30_000  # between two look-ups of a topic, unless a name server sends changes

_logger = logging.getLogger(__name__)


class Source(NamedTuple):
    """The queues of a topic in one replica group."""

    topic: str
    replica_group: str


@dataclass(frozen=True, slots=True)
class PollOptions:
    """What all polls of a consumer ask for."""

    group: str
    fifo: bool
    max_attempts: int
    from_end: bool
    timeout_ms: int


@dataclass(slots=True)
class _Held:
    """Messages that came; ``old_ms``: when half of their invisible time has passed."""

    messages: deque[LeasedMessage]
    invisible_ms: int
    old_ms: int


class _Poll:
    """One call; ``error``: why it failed."""

    task: asyncio.Task[None]
    error: DledgerError | None = None

    @property
    def is_done(self) -> bool:
        return self.task.done()


class LeasePolls:
    """Of one consumer, on its event loop."""

    def __init__(self, router: Router, options: PollOptions, subscriptions: Mapping[str, Subscription], receipts: Receipts) -> None:
        self._router, self._options, self._subscriptions, self._receipts = router, options, subscriptions, receipts
        self._held: dict[Source, _Held] = {}
        self._polls: dict[Source, _Poll] = {}  # on their way
        self._looked_up: dict[str, int] = {}
        self._turn = 0
        self._is_closed = False
        self._tasks = BackgroundTasks(f"polls of group {options.group}")

    async def take(self, max_messages: int, poll_messages: int, invisible_ms: int, wait_ms: int) -> list[LeasedMessage]:
        """Up to ``max_messages``, as soon as there are any; none when there were none for ``wait_ms``.

        Polls ask for ``poll_messages``.  Raises why the caller may not have any, and why no replica group answered."""
        deadline_ms = self._router.clock.monotonic_ms() + wait_ms
        polls: dict[Source, _Poll] = {}
        while True:
            sources = await self._sources()
            self._require_open()
            self._renew(invisible_ms)
            if messages := self._hand_out(max_messages):
                return messages
            left_ms = deadline_ms - self._router.clock.monotonic_ms()
            for source in sources:
                if source not in self._polls and (left_ms > 0 or source not in polls):
                    self._begin(source, poll_messages, invisible_ms, max(0, min(left_ms, WAIT_MS)))
                if source in self._polls:
                    polls[source] = self._polls[source]
            if not await _next_end(polls, left_ms):
                self._require_open()
                return self._hand_out(max_messages)

    def held(self) -> list[LeasedMessage]:
        """What came and was not handed out; it is no longer held then."""
        found = [message for held in self._held.values() for message in held.messages]
        self._held.clear()
        return found

    async def close(self) -> None:
        """End polls.  Calls of ``take`` raise ClientClosedError."""
        self._is_closed = True
        await self._tasks.stop()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the consumer is closed")

    # Where messages are

    async def _sources(self) -> list[Source]:
        """The readable parts of all topics."""
        self._require_open()
        found: list[Source] = []
        for topic in list(self._subscriptions):
            now_ms = self._router.clock.monotonic_ms()
            is_old = not self._router.route_watch.is_current and now_ms - self._looked_up.get(topic, now_ms) >= LOOK_UP_MS
            routes = await self._router.topic(topic, now_ms + self._options.timeout_ms, fresh=is_old)
            if is_old or topic not in self._looked_up:
                self._looked_up[topic] = now_ms
            readable = [Source(topic, queues.replica_group) for queues in routes if queues.perm & Perm.READ]
            if not readable:
                self._router.forget_topic(topic)
                raise TopicPermissionError(f"topic {topic}: reading is not permitted", topic=topic)
            found += readable
        return found

    # Messages that are here

    def _hand_out(self, max_messages: int) -> list[LeasedMessage]:
        """Those of the sources in turn, but for what is renewed now."""
        found: list[LeasedMessage] = []
        sources = [source for source in self._held if source not in self._polls]
        self._turn += 1
        first = self._turn % len(sources) if sources else 0
        for source in (*sources[first:], *sources[:first]):
            messages = self._held[source].messages
            while messages and len(found) < max_messages:
                found.append(messages.popleft())
            if not messages:
                del self._held[source]
        return found

    def _renew(self, invisible_ms: int) -> None:
        """Begin the invisible time again of messages that are held for long, or were asked for with another one."""
        now_ms = self._router.clock.monotonic_ms()
        for source, held in list(self._held.items()):
            if (now_ms >= held.old_ms or held.invisible_ms != invisible_ms) and source not in self._polls:
                self._spawn(source, partial(self._renewal, source, list(held.messages), invisible_ms))

    async def _renewal(self, source: Source, messages: list[LeasedMessage], invisible_ms: int) -> None:
        errors = await self._receipts.settle(messages, How(What.CHANGED, invisible_ms))
        del self._held[source]
        self._hold(source, [message for message, error in zip(messages, errors, strict=True) if error is None], invisible_ms)

    def _hold(self, source: Source, messages: list[LeasedMessage], invisible_ms: int) -> None:
        if messages:
            old_ms = self._router.clock.monotonic_ms() + invisible_ms // 2
            self._held[source] = _Held(deque(messages), invisible_ms, old_ms)

    # Messages that come

    def _begin(self, source: Source, max_messages: int, invisible_ms: int, wait_ms: int) -> None:
        subscription, options = self._subscriptions[source.topic], self._options
        request = pop_pb2.ReceiveRequest(
            group=options.group,
            topic=source.topic,
            max_messages=max_messages,
            invisible_ms=invisible_ms,
            wait_ms=wait_ms,
            tag_hashes=subscription.tag_hashes,
            sql=subscription.sql,
            fifo=options.fifo,
            max_attempts=options.max_attempts,
            from_end=options.from_end,
        )
        self._spawn(source, partial(self._poll, source, request, subscription))

    async def _poll(self, source: Source, request: pop_pb2.ReceiveRequest, wanted: Subscription) -> None:
        router = self._router
        deadline_ms = router.clock.monotonic_ms() + request.wait_ms + self._options.timeout_ms
        response = await router.call_leader(source.replica_group, methods.RECEIVE, request, deadline_ms=deadline_ms)
        known = router.groups.get(source.replica_group)
        found, others = leased_messages(*source, known.leader_id if known is not None else "", response, wanted)
        self._hold(source, found, request.invisible_ms)
        self._receipts.settle_later(others, How(What.ACKNOWLEDGED))

    def _spawn(self, source: Source, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``work`` as what is on its way from a source."""
        poll = self._polls[source] = _Poll()

        async def run() -> None:
            try:
                await work()
            except DledgerError as error:
                _logger.info("consumer group %s: topic %s: %s", self._options.group, source.topic, error.message)
                if isinstance(error, TopicNotFoundError):
                    self._router.forget_topic(source.topic)
                poll.error = error
            finally:
                del self._polls[source]

        poll.task = self._tasks.spawn(run(), f"{source.topic} in {source.replica_group}")


async def _next_end(polls: Mapping[Source, _Poll], left_ms: int) -> bool:
    """Wait until a poll ends; False when there is nothing left to wait for.  Raises what does not pass by itself at once, and why none
    was answered at the end."""
    ended = [poll for poll in polls.values() if poll.is_done and not poll.task.cancelled()]
    for poll in ended:
        poll.task.result()  # raises what is a fault of this client
    failed = [poll.error for poll in ended if poll.error is not None]
    for error in failed:
        if not is_retriable(error):
            raise error
    running = [poll.task for poll in polls.values() if not poll.is_done]
    if running:
        is_answered = len(ended) > len(failed)
        limit_s = max(0, left_ms) / 1000 + LATE_S if is_answered else None
        if (await asyncio.wait(running, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED))[0]:
            return True
    elif left_ms > 0:
        return True
    if failed and len(failed) == len(polls):
        raise failed[0]
    return False
