"""Commits of the offsets of a consumer in a group: regularly, and of queues that it gives up.

Owns that each replica group is asked by itself, so that one which does not answer holds up no other, and what is logged of one that fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from dledger_client.consumer.group_offsets import OffsetStore
from dledger_client.consumer.queue_consumer import QueueConsumer
from dledger_wire.errors import DledgerError
from dledger_wire.tasks import BackgroundTasks

_logger = logging.getLogger(__name__)


class OffsetCommits:
    """Of one consumer.  ``broadcast``: one file has all offsets, else the replica group of each queue."""

    def __init__(self, group: str, store: OffsetStore, tasks: BackgroundTasks, *, broadcast: bool) -> None:
        self._group, self._store, self._tasks, self._broadcast = group, store, tasks, broadcast
        self._failed: set[str] = set()  # replica groups whose last commit failed, which was logged

    async def run(self, interval_s: float, running: Callable[[], Iterable[QueueConsumer]]) -> None:
        """Commit what is ``running`` every ``interval_s``."""
        committing: dict[str, asyncio.Task[None]] = {}
        while True:
            await asyncio.sleep(interval_s)
            for place, queues in self._by_place(running()).items():
                if place not in committing or committing[place].done():
                    committing[place] = self._tasks.spawn(self._commit_to(place, queues), f"commit to {place or 'the offset file'}")

    async def commit(self, queues: Iterable[QueueConsumer]) -> None:
        """Commit now."""
        await asyncio.gather(*(self._commit_to(place, consumers) for place, consumers in self._by_place(queues).items()))

    def _by_place(self, queues: Iterable[QueueConsumer]) -> dict[str, list[QueueConsumer]]:
        """The queues by the replica group that keeps their offsets; "": the file of a broadcast."""
        found: dict[str, list[QueueConsumer]] = {}
        for consumer in queues:
            found.setdefault("" if self._broadcast else consumer.queue.replica_group, []).append(consumer)
        return found

    async def _commit_to(self, place: str, queues: Iterable[QueueConsumer]) -> None:
        queues = list(queues)
        if all(consumer.uncommitted() is None for consumer in queues):
            return
        where = f"{self._group} in {place}" if place else self._group
        try:
            await self._store_offsets(queues)
        except DledgerError as error:
            level = logging.DEBUG if place in self._failed else logging.WARNING
            _logger.log(level, "consumer group %s: cannot commit offsets yet: %s", where, error.message)
            self._failed.add(place)
            return
        if place in self._failed:
            self._failed.discard(place)
            _logger.info("consumer group %s: offsets are committed again", where)

    async def commit_or_raise(self, queues: Iterable[QueueConsumer]) -> None:
        """Commit for a caller, and raise what fails; of several failures the first."""
        found = await asyncio.gather(*map(self._store_offsets, self._by_place(queues).values()), return_exceptions=True)
        refusals = [error for each in found for error in (each if isinstance(each, list) else [each])]
        if refusals:
            raise refusals[0]

    async def _store_offsets(self, queues: Iterable[QueueConsumer]) -> list[DledgerError]:
        """Commit to one place, and end what is refused.  Raises when the place could not be reached."""
        commits = {consumer.queue: (consumer, row) for consumer in queues if (row := consumer.uncommitted()) is not None}
        refused = await self._store.commit([row for _, row in commits.values()]) if commits else {}
        for queue, (consumer, row) in commits.items():
            if queue in refused:
                consumer.end(refused[queue])
            else:
                consumer.committed = row.offset
        return list(refused.values())
