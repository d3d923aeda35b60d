"""The routes of the topics that a producer sends to: looked up at first use, followed by the watch of routes, looked up again now and then.

Owns which topics are known, creation of topics where the cluster allows it, and the refresh when a queue was refused.  The accumulator
gets the queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from dledger_client.cluster.missing_parts import find_parts
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import queues_for_writes
from dledger_client.cluster.topic_creation import create_topic
from dledger_client.cluster.topic_lookup import may_not
from dledger_client.producer.accumulator import RecordAccumulator
from dledger_client.producer.partitioner import QueueNumber
from dledger_client.producer.settings import ProducerOptions
from dledger_wire.errors import (
    DledgerError,
    InvalidArgumentError,
    NotSentError,
    PermissionDeniedError,
    TopicNotFoundError,
    TopicPermissionError,
)
from dledger_wire.names import is_system_topic

REFRESH_S, WATCHED_REFRESH_S = 30.0, 120.0  # the latter while a name server sends changes
REFRESH_PAUSE_S = 0.5
REFRESH_TIMEOUT_MS = 5000
MISSING_MS = 1000  # so often a topic is looked up of which a replica group did not answer

_logger = logging.getLogger(__name__)


class TopicRoutes:
    """One producer's.  Used on the event loop only."""

    def __init__(
        self, router: Router, options: ProducerOptions, accumulator: RecordAccumulator, ensure_senders: Callable[[Iterable[str]], None]
    ) -> None:
        self._router, self._options, self._accumulator, self._ensure_senders = router, options, accumulator, ensure_senders
        self._wake = asyncio.Event()
        self._stale = False
        self._changed: dict[str, None] = {}
        router.on_topic_change(self._on_topic_change)
        self._missing: dict[str, tuple[int, str]] = {}  # by topic: when it was looked up, and the replica groups without an answer

    def mark_stale(self) -> None:
        """A queue was refused: look all topics up again soon."""
        self._stale = True
        self._wake.set()

    def _on_topic_change(self, topic: str) -> None:
        if self._accumulator.knows(topic):
            self._changed[topic] = None
            self._wake.set()

    async def resolve(self, topic: str, deadline_ms: int, queue_id: QueueNumber | None = None, *, by_key: bool = False) -> None:
        """Look a topic up, again when ``queue_id`` is not known: the queue may be new.  ``by_key``: all its queues must be known.

        TopicNotFoundError, TopicPermissionError, what else refuses the caller, or NotSentError, also when the cluster does not respond:
        whatever is to be sent has not left the process.
        """
        if self._accumulator.knows(topic, queue_id, by_key=by_key):
            return
        if is_system_topic(topic):
            raise InvalidArgumentError(f"topic {topic} belongs to the system; expected one of your own", topic=topic)
        looked_ms, missing = self._missing.get(topic, (0, ""))
        if not missing or self._router.clock.monotonic_ms() - looked_ms >= MISSING_MS:
            try:
                await self._look_up_or_create(topic, deadline_ms)
            except DledgerError as error:
                if not error.outcome_unknown:
                    raise
                raise NotSentError(f"topic {topic} could not be looked up in time: {error.message}; nothing was stored") from error
            _, missing = self._missing.get(topic, (0, ""))
        if by_key and missing:
            text = f"topic {topic}: {missing} did not answer, so the queues of its keys are not known; nothing was stored"
            raise NotSentError(text)

    async def _look_up_or_create(self, topic: str, deadline_ms: int) -> None:
        try:
            await self._look_up(topic, deadline_ms)
        except PermissionDeniedError as error:  # it may not even know of the topic
            raise may_not(f"user {error.details.get('user', '')}", "write", topic) from None
        except TopicNotFoundError as missing:
            key, queues = self._options.create_topic_key, self._options.default_topic_queues
            if not key or not await create_topic(self._router, topic, key, queues, deadline_ms):
                raise missing
            await self._look_up(topic, deadline_ms)

    async def _look_up(self, topic: str, deadline_ms: int, *, fresh: bool = True) -> None:
        parts = await find_parts(self._router, topic, deadline_ms, fresh=fresh)
        found, missing = parts.queues, parts.missing
        self._changed.pop(topic, None)
        queues = queues_for_writes(found)
        if missing and self._accumulator.knows(topic, by_key=True):  # what is known of those that are away still holds
            queues += [each for each in self._accumulator.queues(topic) if each[0] in missing]
            missing = []
        if not queues and missing:
            text = f"topic {topic}: {', '.join(missing)} did not answer, and no queue elsewhere takes messages; nothing was stored"
            raise NotSentError(text)
        if not queues:
            raise TopicPermissionError(f"topic {topic}: writing is not permitted (perm {found[0].perm})", topic=topic, perm=found[0].perm)
        self._missing[topic] = self._router.clock.monotonic_ms(), ", ".join(missing)
        self._ensure_senders(dict.fromkeys(replica_group for replica_group, _ in queues))
        first, priorities = self._router.random.randrange(0, len(queues)), any(each.priorities for each in found)
        self._accumulator.set_queues(topic, sorted(queues), first, is_whole=not missing, priorities=priorities)

    async def refresh(self) -> None:
        """Wait until routes changed, or are stale or old, then take over what arrived, or look all topics up again."""
        is_old = False
        try:
            async with asyncio.timeout(WATCHED_REFRESH_S if self._router.route_watch.is_current else REFRESH_S):
                await self._wake.wait()
        except TimeoutError:
            is_old = True
        all_again = is_old or self._stale
        topics = self._accumulator.topics() if all_again else list(self._changed)  # none when a look-up has taken the change over
        self._wake.clear()
        self._stale = False
        self._changed.clear()
        for topic in topics:
            try:
                await self._look_up(topic, self._router.clock.monotonic_ms() + REFRESH_TIMEOUT_MS, fresh=all_again)
            except (TopicNotFoundError, TopicPermissionError):
                self._accumulator.remove_topic(topic)
            except DledgerError as error:
                _logger.info("topic %s: %s", topic, error.message)
