"""The routes of the topics that a push consumer reads: looked up regularly, and at once when a name server sends a change.

Owns which topics there are, their readable queues by replica group, and what is logged of a look-up that fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set

from dledger_client.cluster.retry import is_retriable
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import TopicQueues
from dledger_client.consumer.group_offsets import OffsetStore
from dledger_wire.errors import DledgerError, TopicNotFoundError
from dledger_wire.names import RETRY_PREFIX, group_of_topic
from dledger_wire.status import Perm
from dledger_wire.tasks import wait_up_to

REFRESH_S = 2.0  # between two look-ups, unless a name server sends changes
WATCHED_REFRESH_MS = 60_000  # while it does
TIMEOUT_MS = 2000

_logger = logging.getLogger(__name__)


class TopicRoutes:
    """Of one push consumer.  ``read_from`` gets every replica group that has queues; ``looked_up`` is called after each round."""

    def __init__(
        self,
        router: Router,
        group: str,
        topics: Set[str],
        offset_store: OffsetStore,
        read_from: Callable[[str], object],
        looked_up: Callable[[], object],
    ) -> None:
        self.known: dict[str, list[TopicQueues]] = {}
        self._router, self._group, self._topics, self._offset_store = router, group, topics, offset_store
        self._read_from, self._looked_up = read_from, looked_up
        self._stale = False
        self._changed: dict[str, None] = {}  # topics that a name server sent
        self._wake = asyncio.Event()
        self._closed: set[str] = set()  # topics that are not readable, which was logged
        self._refused: dict[str, str] = {}  # by topic: why its look-up is refused, which was logged

    def mark_stale(self) -> None:
        """Look all topics up soon."""
        self._stale = True
        self._wake.set()

    def watch(self) -> None:
        """Get changes from name servers."""
        self._router.on_topic_change(self._on_change)
        self.topics_changed()

    def topics_changed(self) -> None:
        """Other topics are wanted: those that are not any more have no queues from now on."""
        for topic in self._topics:
            self._router.route_watch.topic(topic)
        for topic in self.known.keys() - self._topics:
            self.known[topic] = []
        self.mark_stale()

    def _on_change(self, topic: str) -> None:
        if topic in self._topics:
            self._changed[topic] = None
            self._wake.set()

    async def run(self) -> None:
        clock, looked_up_ms = self._router.clock, 0
        while True:
            is_stale, changed = self._stale, list(self._changed)
            self._stale = False
            self._changed.clear()
            if is_stale or not self._router.route_watch.is_current or clock.monotonic_ms() - looked_up_ms >= WATCHED_REFRESH_MS:
                looked_up_ms = clock.monotonic_ms()
                for topic in list(self._topics):
                    await self._look_up(topic, fresh=True)
            else:
                for topic in changed:
                    await self._look_up(topic, fresh=False)
            self._looked_up()
            await wait_up_to(REFRESH_S, self._wake.wait())
            self._wake.clear()

    async def _look_up(self, topic: str, *, fresh: bool) -> None:
        try:
            routes = await self._router.topic(topic, self._router.clock.monotonic_ms() + TIMEOUT_MS, fresh=fresh)
        except TopicNotFoundError:
            if topic not in self._topics:
                return
            if not topic.startswith(RETRY_PREFIX) and self.known.get(topic, ()) != []:
                _logger.warning("consumer group %s: topic %s does not exist (yet)", self._group, topic)
            self._offset_store.topic_missing(topic)
            routes = []
        except DledgerError as error:
            if not self._log_refusal(topic, error):
                _logger.info("consumer group %s: routes of %s: %s", self._group, topic, error.message)
            return
        self._refused.pop(topic, None)
        if topic not in self._topics:  # any more
            return
        self.known[topic] = [queues for queues in routes if queues.perm & Perm.READ]
        self._tell_closed(topic, is_closed=len(self.known[topic]) < len(routes))
        for queues in self.known[topic]:
            self._read_from(queues.replica_group)

    def _tell_closed(self, topic: str, *, is_closed: bool) -> None:
        """Warn once of a topic that has queues that no user may read, until it has none; dead letters are so at first."""
        if is_closed and topic not in self._closed:
            group = group_of_topic(topic)
            remedy = f"dledger dlq open {group}, or Admin.open_dead_letters" if group else f"dledger topic update {topic} --perm 6"
            _logger.warning("consumer group %s: topic %s is not readable; open it: %s", self._group, topic, remedy)
        (self._closed.add if is_closed else self._closed.discard)(topic)

    def _log_refusal(self, topic: str, error: DledgerError) -> bool:
        """Warn of an error that does not pass by itself, once until another one comes; whether it is one.  Of a right on the group, which
        the retry topic needs, its session reports."""
        if topic.startswith(RETRY_PREFIX) or is_retriable(error) or error.outcome_unknown:
            return False
        if self._refused.get(topic) != error.message:
            self._refused[topic] = error.message
            _logger.warning("consumer group %s: topic %s is not consumed: %s", self._group, topic, error.message)
        return True
