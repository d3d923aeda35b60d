"""The search for a leader that reads wait for: one at a time for each replica group, however many queues have lost it.

Owns when a search is made, and how the reads go on after it: some in each turn of the event loop, so that sessions and other clients of the
process are served between them.
"""

from __future__ import annotations

import asyncio
from collections import deque

from dledger_client.cluster.retry import until
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import ReplicaGroup

SEARCH_MS = 500  # an election takes less
READS_A_TURN = 4  # each costs some millisecond with the connection that it opens, and all other tasks of the loop wait for a whole turn


class Turns:
    """Lets ``limit`` callers pass in each turn of the event loop, in the order in which they came."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_renewed = True  # no caller has passed in this turn

    async def passed(self) -> None:
        """Wait for a place."""
        loop = asyncio.get_running_loop()
        if self._is_renewed:
            self._is_renewed = False
            loop.call_soon(self._renew)
        if self._left:
            self._left -= 1
            return
        place = loop.create_future()
        self._waiting.append(place)
        await place

    def _renew(self) -> None:
        self._left = self._limit
        while self._left and self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # cancelled
                place.set_result(None)
                self._left -= 1
        if self._left < self._limit:
            asyncio.get_running_loop().call_soon(self._renew)
        else:
            self._is_renewed = True


class LeaderRefresh:
    """Of one client's reads.  ``patient``: only the leader is read, so a search goes on through an election."""

    def __init__(self, router: Router, *, patient: bool) -> None:
        self._router, self._is_patient = router, patient
        self._searches: dict[str, asyncio.Task[ReplicaGroup]] = {}  # by replica group
        self._turns = Turns(READS_A_TURN)

    async def find(self, replica_group: str) -> ReplicaGroup:
        """The replica group with its leader, by the search that is under way, or a new one.  Raises what ``Router.find_leader`` does."""
        try:
            return await asyncio.shield(self._search(replica_group))
        finally:
            await self._turns.passed()

    async def done(self, replica_group: str, limit_s: float) -> None:
        """Return when a search is over, whatever it found, or after ``limit_s``."""
        await asyncio.wait([self._search(replica_group)], timeout=max(0.0, limit_s))
        await self.in_turn()

    async def in_turn(self) -> None:
        """Wait before a read that many others may begin, too."""
        await self._turns.passed()

    async def close(self) -> None:
        searches = list(self._searches.values())
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)

    def _search(self, replica_group: str) -> asyncio.Task[ReplicaGroup]:
        search = self._searches.get(replica_group)
        if search is None:
            loop = asyncio.get_running_loop()
            search = self._searches[replica_group] = loop.create_task(self._found(replica_group), name=f"find leader of {replica_group}")
            search.add_done_callback(lambda done: self._over(replica_group, done))
        return search

    def _over(self, replica_group: str, done: asyncio.Task[ReplicaGroup]) -> None:
        del self._searches[replica_group]
        if not done.cancelled():
            done.exception()  # those that waited for it may have given up

    async def _found(self, replica_group: str) -> ReplicaGroup:
        router = self._router
        known = router.groups.get(replica_group)
        if not self._is_patient or known is None:
            return await router.leaders.find(replica_group)

        async def pause(seconds: float) -> None:
            await router.cache.pause(replica_group, known.term, seconds)

        async for attempt in until(router.clock.monotonic_ms() + SEARCH_MS, router.clock, router.random, sleep=pause):
            with attempt:  # followers name the leader that has failed for a while
                return await router.leaders.leader(replica_group, known.leader_address, known.term)
        raise AssertionError("unreachable: at least one attempt is made")
