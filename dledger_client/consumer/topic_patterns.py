"""Topics by a pattern: which of the cluster's topics a consumer in a group wants, looked up from time to time.

Owns the patterns and what they matched last.  A topic that was deleted is given up only when every replica group was heard: those that do
not answer may have it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TypeAlias

from dledger_client.admin.calls import answers_of
from dledger_client.cluster.router import Router
from dledger_client.fetch.subscription import Subscription
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.tasks import wait_up_to

LOOK_S = 5.0
TIMEOUT_MS = 5_000

Pattern: TypeAlias = re.Pattern[str]

_logger = logging.getLogger(__name__)


class TopicPatterns:
    """Of one consumer, on its event loop."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._wanted: dict[Pattern, Subscription] = {}
        self._names: set[str] = set()
        self._changed = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def add(self, pattern: Pattern, subscription: Subscription) -> None:
        self._wanted[pattern] = subscription
        self._changed.set()

    def remove(self, pattern: Pattern) -> Subscription | None:
        """What was wanted of its topics; None when it was not there."""
        return self._wanted.pop(pattern, None)

    def matches(self) -> dict[str, Subscription]:
        """The topics whose whole name matches, each by the first pattern.  Retry topics and dead letters have to be named."""
        found: dict[str, Subscription] = {}
        for name in sorted(self._names):
            subscription = next((each for pattern, each in self._wanted.items() if pattern.fullmatch(name)), None)
            if subscription is not None and not name.startswith("%"):
                found[name] = subscription
        return found

    async def look(self) -> None:
        """Ask for the names of all topics that this user may see."""
        request, deadline_ms = broker_pb2.MetadataRequest(all_topics=True), self._router.clock.monotonic_ms() + TIMEOUT_MS

        async def ask(group: str) -> broker_pb2.MetadataResponse:
            return await self._router.call_leader(group, methods.METADATA, request, deadline_ms=deadline_ms)

        try:
            answers = await answers_of(ask, await self._router.all_groups(deadline_ms))
        except DledgerError as error:
            _logger.info("topics by a pattern are looked up later: %s", error.message)
            return
        names = {topic.name for answer in answers.of_group.values() for topic in answer.topics}
        self._names = names | self._names if answers.unanswered else names

    async def wait(self) -> None:
        """Until it is time for another look."""
        await wait_up_to(LOOK_S, self._changed.wait())
        self._changed.clear()
