"""Figures of a node that take more than a look: lags of consumer groups, messages that wait, the age of the oldest one.

Owns how often they are found out: at most every ``EVERY_MS``, in a task of the node, however often they are asked for and however long the
disk takes.  What could not be found out is left out, so that no figure says less than there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from broker.api.log_segments import FoundDamage
from broker.context import ServiceContext
from broker.delivery.verified_reads import read_with_repair
from broker.delivery.waiting_messages import WaitingMessages
from broker.groups.group_offsets import BLOCKS_AT_ONCE
from broker.metrics.catalog import OTHERS
from broker.metrics.top import Pair, top_pairs
from broker.support.limits import in_slices
from dledger.log.log import Log
from dledger_wire.errors import DledgerError
from dledger_wire.names import HALF_TOPIC
from dledger_wire.tasks import BackgroundTasks
from store.durability.segment_ages import SegmentAges
from store.state.pop import Delivered

EVERY_MS = 5_000
WAIT_S = 1.0  # for new figures; then the last ones are reported
STALE_MS = 60_000  # figures this old, because a look hangs, are reported no more
READS = 250  # whose oldest message is looked up in one round: of the pairs with the most messages to go, and again of all others

Place = tuple[str, int, int]  # topic, queue, offset

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SlowFigures:
    """Of one moment.  Lags and what waits are reported by the master, of ``term``; None and what is missing: it could not be found out.

    ``oldest_ms`` None: also when the log holds no message.
    """

    term: int = 0
    lag_messages: dict[Pair, int] = field(default_factory=dict)
    lag_seconds: dict[Pair, float] = field(default_factory=dict)
    leased: dict[Pair, Delivered] = field(default_factory=dict)
    delayed: int | None = None
    delay_lag_s: float | None = None
    half_messages: int | None = None
    oldest_ms: int | None = None


class SlowLook:
    """Finds them out, in one of ``tasks``; ``limit`` is how many pairs of topic and group are reported each for itself."""

    def __init__(self, context: ServiceContext, limit: int, tasks: BackgroundTasks, damage: FoundDamage) -> None:
        self._context, self._limit, self._tasks, self._damage = context, limit, tasks, damage
        self._waiting = WaitingMessages(context)
        self._ages: tuple[Log, SegmentAges] | None = None
        self._known = SlowFigures()
        self._known_ms = 0
        self._failed = False
        self._at_ms: int | None = None
        self._looking: asyncio.Task[None] | None = None
        self._stored_ms: dict[Place, int] = {}  # when the first message to go was stored
        self._read_last: dict[bool, Place] = {}  # of the pairs with the most messages to go, and of the others

    async def figures(self) -> SlowFigures:
        """As they were found out last; again when that is too long ago and it takes no longer than ``WAIT_S``."""
        now_ms = self._context.env.clock.monotonic_ms()
        ended = self._looking is None or self._looking.done()
        if ended and (self._at_ms is None or now_ms - self._at_ms >= EVERY_MS):
            self._at_ms, self._looking = now_ms, self._tasks.spawn(self._look(), "slow_figures")
        if self._looking is not None and not self._looking.done():
            await asyncio.wait((self._looking,), timeout=WAIT_S)
        return self._known if now_ms - self._known_ms <= STALE_MS else SlowFigures()

    async def _look(self) -> None:
        try:
            self._known = await self._found()
            self._failed = False
        except Exception:
            self._known = SlowFigures()
            if not self._failed:
                _logger.exception("lags and waiting messages cannot be found out for the metrics", extra={"event": "figures_failed"})
            self._failed = True
        self._known_ms = self._context.env.clock.monotonic_ms()

    async def _found(self) -> SlowFigures:
        found = SlowFigures(self._context.roles.master_term)
        log = self._context.raft.log
        if self._ages is None or self._ages[0] is not log:
            self._ages = log, SegmentAges(log)
        # Each for itself: the role or the log changes meanwhile, or damage is being repaired.
        with contextlib.suppress(DledgerError):
            found.oldest_ms = await self._ages[1].oldest_ms()
        with contextlib.suppress(DledgerError):
            await self._damage.still_damaged(log)  # so that the alarm ends with the damage
        if found.term:
            with contextlib.suppress(DledgerError):
                await self._look_at_groups(found)
            await self._look_at_leases(found)
            with contextlib.suppress(DledgerError):
                await self._look_at_waiting(found)
        return found

    # Consumer groups

    async def _look_at_groups(self, found: SlowFigures) -> None:
        store = self._context.store
        lags: dict[Pair, int] = {}
        places: dict[Pair, list[Place]] = {}
        pairs = [(topic, group) for group, topics in store.consumer_offsets.of_groups(None).items() for topic in topics]
        async for topic, group in in_slices(pairs):
            lagging = self._lagging(group, topic)
            lags[topic, group] = sum(count for _, _, count in lagging)
            places[topic, group] = [(topic, queue_id, offset) for queue_id, offset, _ in lagging]
        await self._find_times(places, top_pairs(lags, {}, self._limit))
        ages = await self._known_ages(places)
        reported = top_pairs(lags, ages, self._limit)
        others = lags.keys() - reported
        found.lag_messages = {pair: lags[pair] for pair in reported}
        found.lag_seconds = {pair: ages[pair] for pair in reported if pair in ages}
        if others:
            found.lag_messages[OTHERS, OTHERS] = sum(lags[pair] for pair in others)
            if known := others & ages.keys():
                found.lag_seconds[OTHERS, OTHERS] = max(ages[pair] for pair in known)

    def _lagging(self, group: str, topic: str) -> list[tuple[int, int, int]]:
        """(queue, next offset, messages to go) of the queues in which a group has some to go."""
        store = self._context.store
        known = store.topics.get(topic)
        found = []
        for queue_id in range(known.queues if known is not None else 0):
            queue = store.queues.get((topic, queue_id))
            if queue is not None:
                offset = max(store.consumer_offsets.position(group, topic, queue_id), queue.min_offset)
                if queue.max_offset > offset:
                    found.append((queue_id, offset, queue.max_offset - offset))
        return found

    async def _find_times(self, places: Mapping[Pair, Sequence[Place]], most: Iterable[Pair]) -> None:
        """Look up when the first messages to go were stored, so many of them; in the next round others, as far as they stay."""
        first = {place for pair in most for place in places[pair]}
        known: dict[Place, int] = {}
        unread: dict[bool, list[Place]] = {True: [], False: []}
        async for of_pair in in_slices(places.values()):
            for place in of_pair:
                if place in self._stored_ms:
                    known[place] = self._stored_ms[place]
                else:
                    unread[place in first].append(place)
        self._stored_ms = known
        for is_first, wanted in unread.items():
            for place in _next(wanted, self._read_last.get(is_first, ("", 0, 0))):
                at_ms = await self._time_of(*place)
                self._read_last[is_first] = place
                if at_ms:
                    self._stored_ms[place] = at_ms

    async def _known_ages(self, places: Mapping[Pair, Sequence[Place]]) -> dict[Pair, float]:
        """Seconds for which the oldest message to go of each pair has been in the log, as far as its queues are known: at least so many."""
        now_ms = self._context.store.time.now_ms()
        ages: dict[Pair, float] = {}
        async for pair, of_pair in in_slices(places.items()):
            stored_ms = [self._stored_ms[place] for place in of_pair if place in self._stored_ms]
            if stored_ms or not of_pair:
                ages[pair] = max(0, now_ms - min(stored_ms, default=now_ms)) / 1000
        return ages

    async def _time_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        try:
            return await read_with_repair(self._context.raft, lambda: self._context.store.reader.time_of(topic, queue_id, offset))
        except DledgerError:
            return None

    async def _look_at_leases(self, found: SlowFigures) -> None:
        store, leased = self._context.store, defaultdict[Pair, Delivered](Delivered)
        now_ms = store.time.now_ms()

        def parts() -> Iterator[tuple[Pair, Delivered]]:
            for group, topic, queue_id in list(store.pop):
                yield (topic, group), Delivered()
                for each in store.pop.delivered((group, topic, queue_id), now_ms):
                    yield (topic, group), each

        async for pair, each in in_slices(parts(), BLOCKS_AT_ONCE):
            leased[pair].add(each)
        ages = {pair: (now_ms - each.first_ms) / 1000 for pair, each in leased.items() if each.first_ms}
        reported = top_pairs({pair: each.in_flight + each.again for pair, each in leased.items()}, ages, self._limit)
        found.leased = {pair: leased[pair] for pair in reported}
        for pair in leased.keys() - reported:
            found.leased.setdefault((OTHERS, OTHERS), Delivered()).add(leased[pair])

    # What waits

    async def _look_at_waiting(self, found: SlowFigures) -> None:
        context, store = self._context, self._context.store
        delayed, due_ms = 0, []
        for level in await self._waiting.levels():
            delayed += level.waiting
            if level.next_due_ms:
                due_ms.append(store.time.now_ms() - level.next_due_ms)
        timers = await self._waiting.timers(1)
        if timers.exact:
            found.delayed = delayed + timers.waiting
            due_ms += [context.env.clock.wall_ms() - int(first) for first in timers.due]
            found.delay_lag_s = max(0, *due_ms, 0) / 1000
        known = store.topics.get(HALF_TOPIC) is not None
        found.half_messages = store.transactions.open_count(store.queues.max_offset((HALF_TOPIC, 0))) if known else 0


def _next(places: list[Place], last: Place) -> list[Place]:
    """``READS`` of the places, from the one after ``last`` on, and round to the first: in order, sorting no more than these."""
    after = heapq.nsmallest(READS, (place for place in places if place > last))
    return after + heapq.nsmallest(READS - len(after), (place for place in places if place <= last))
