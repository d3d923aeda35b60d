"""Queues that topics get while a pull consumer reads them: more queues in their replica groups, or queues in other ones.

Owns when a topic is looked up: as soon as a name server sends a change, and from time to time.  A replica group that does not answer
blocks nothing: it is asked again some seconds later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from dledger_client.cluster.retry import is_retriable
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import TopicQueues
from dledger_client.fetch.records import QueueOffsets
from dledger_wire.errors import DledgerError
from dledger_wire.status import Perm
from dledger_wire.tasks import wait_up_to

LOOK_EVERY_MS = 2_000  # unless a name server sends changes
WATCHED_LOOK_EVERY_MS = 60_000  # while it does
LOOK_TIMEOUT_MS = 2_000
GROUP_TIMEOUT_MS = 500
SILENT_MS = 5_000  # until a replica group that did not answer is asked again

Offsets = dict[tuple[str, int], QueueOffsets]  # by (replica group, queue id)
AskGroup = Callable[[TopicQueues, int], Awaitable[Offsets]]  # (part of the topic, deadline in ms)


class AddedQueues:
    """Of one client, used on one event loop.  ``ask``: reads the offsets of a topic's queues in one replica group."""

    def __init__(self, router: Router, ask: AskGroup) -> None:
        self._router, self._clock, self._ask = router, router.clock, ask
        self._looked_up_ms: dict[str, int] = {}
        self._silent_until_ms: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        router.on_topic_change(self._topic_changed)

    def _topic_changed(self, topic: str) -> None:
        if topic in self._waiting:
            self._waiting[topic].set()

    async def find(self, topic: str, known: Collection[tuple[str, int]], wait_ms: int) -> Offsets:
        """The readable queues of a topic that are not among ``known``; while there are none, waits up to ``wait_ms`` for one.

        TopicNotFoundError when the topic does not exist.
        """
        end_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            changed = self._waiting.setdefault(topic, asyncio.Event())
            changed.clear()
            answers = await asyncio.gather(*(self._offsets(part) for part in await self._parts(topic, known)))
            new = {queue: held for answer in answers for queue, held in answer.items() if queue not in known}
            left_ms = end_ms - self._clock.monotonic_ms()
            if new or left_ms <= 0:
                return new
            await wait_up_to(min(left_ms, LOOK_EVERY_MS) / 1000, changed.wait())

    async def _parts(self, topic: str, known: Collection[tuple[str, int]]) -> Sequence[TopicQueues]:
        """The readable parts of a topic that have queues besides ``known``.  None while the routes are not to be had."""
        now_ms = self._clock.monotonic_ms()
        every_ms = WATCHED_LOOK_EVERY_MS if self._router.route_watch.is_current else LOOK_EVERY_MS
        fresh = now_ms - self._looked_up_ms.get(topic, -every_ms) >= every_ms
        if fresh:
            self._looked_up_ms[topic] = now_ms
        try:
            parts = await self._router.topic(topic, now_ms + LOOK_TIMEOUT_MS, fresh=fresh)
        except DledgerError as error:
            if is_retriable(error):
                return ()
            raise
        return [part for part in parts if part.perm & Perm.READ and self._is_wanted(part, known)]

    def _is_wanted(self, part: TopicQueues, known: Collection[tuple[str, int]]) -> bool:
        if self._silent_until_ms.get(part.replica_group, 0) > self._clock.monotonic_ms():
            return False
        return any((part.replica_group, number) not in known for number in range(part.read_queues))

    async def _offsets(self, part: TopicQueues) -> Offsets:
        """What a part's queues hold; nothing while its replica group does not answer."""
        try:
            return await self._ask(part, self._clock.monotonic_ms() + GROUP_TIMEOUT_MS)
        except DledgerError as error:
            if not is_retriable(error):
                raise
            self._silent_until_ms[part.replica_group] = self._clock.monotonic_ms() + SILENT_MS
            return {}
