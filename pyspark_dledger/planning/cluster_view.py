"""Looks at the cluster: which topics there are, what their queues hold, where asked-for times fall; one question to each replica group.

Owns the questions and whose word counts.  Leaders', so that a plan never misses what was committed before it; while a group has no leader,
what its followers have committed, unless ``linearizable`` wants the leader to prove that it is one.  A group of which nobody answers is
``silent``: what is known to lie elsewhere can be read without it.

A lookout is kept by its process: routes and connections serve the next look.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from dledger_client.cluster.follower_reads import CommittedState
from dledger_client.cluster.metadata import Router
from dledger_client.cluster.responses import parse
from dledger_client.cluster.retry import is_retriable
from dledger_client.fetch.fetcher import Replicas
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotReadyError, TopicNotFoundError, UnreachableError
from dledger_wire.names import DLQ_PREFIX, RETRY_PREFIX, check_topic, is_system_topic
from dledger_wire.rpc import methods
from dledger_wire.status import Perm
from pyspark_dledger.options.model import STAGING_TOPIC, ReadOptions
from pyspark_dledger.planning.partitions import QueueBounds, QueueId
from pyspark_dledger.planning.topic_epochs import joined

LOOK_TIMEOUT_MS = 15_000
GROUP_TIMEOUT_MS = 5_000  # until a group counts as silent
STILL_SILENT_MS = 1_000  # the same of one that was silent at the last look
NAMES_A_REQUEST, QUEUES_A_REQUEST, SEARCHES_A_REQUEST = 5_000, 10_000, 1_000  # brokers take 10 000 of each
PAUSE_S = 0.2
TRIES = 5  # of a question about topics some of which are deleted meanwhile
NO_TIME = -1

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class View:
    """``incarnations`` by topic (of all its groups, joined); ``silent``: groups that gave no answer, and why; ``leaderless``: groups whose
    followers answered, which may have started again and know less than they did."""

    bounds: dict[QueueId, QueueBounds] = field(default_factory=dict)
    incarnations: dict[str, str] = field(default_factory=dict)
    silent: dict[str, DledgerError] = field(default_factory=dict)
    leaderless: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a look is for.  ``may_lack``: topics that need not exist.  ``start_times``: also where the times of a start fall.  ``whole``: a
    batch or the begin of a stream, which must see all that a pattern means and all queues of a topic, so that no group may be silent
    (of named topics one may, when what is missing need not fail)."""

    options: ReadOptions
    may_lack: Collection[str] = ()
    start_times: bool = True
    whole: bool = True

    def moments(self, queue: QueueId) -> list[int]:
        """The times to look for in a queue."""
        options, place = self.options, (queue.topic, queue.group, queue.queue_id)
        asked = [options.end.time_of(*place)]
        if self.start_times:
            asked += [options.start.time_of(*place), options.filters.since_ms, options.filters.until_ms]
        return list(dict.fromkeys(moment for moment in asked if moment is not None))

    def matches(self, name: str) -> bool:
        """Whether the pattern, if there is one, means a topic: none of the system's own."""
        own = is_system_topic(name) or name.startswith((RETRY_PREFIX, DLQ_PREFIX)) or name == STAGING_TOPIC
        return not own and re.fullmatch(self.options.topic_pattern, name) is not None


class Lookout:
    """Asks one cluster; on one event loop."""

    _kept: dict[tuple[str, str], Lookout] = {}  # noqa: RUF012 - the process's own
    _kept_by = 0

    def __init__(self, router: Router, replica: str = "") -> None:
        self._router = router
        self._state = CommittedState(router, replica or None)
        self._were_silent: set[str] = set()

    @classmethod
    def of_this_process(cls, options: ReadOptions) -> Lookout:
        if cls._kept_by != os.getpid():
            cls._kept, cls._kept_by = {}, os.getpid()
        key = (options.bootstrap, options.replica)
        if key not in cls._kept:
            cls._kept[key] = LoopThread.shared().call(lambda: cls.of_cluster(options.bootstrap, options.replica))
        return cls._kept[key]

    @classmethod
    def of_cluster(cls, bootstrap: str, replica: str) -> Lookout:
        """Made on the loop that is to use it."""
        environment = environment_for(bootstrap)
        return cls(environment.open_router(bootstrap), replica)

    async def look(self, wanted: Wanted) -> View:
        """UnreachableError, TopicNotFoundError, TopicPermissionError; NotLeaderError where the leader's word is wanted."""
        for topic in wanted.options.topics:
            check_topic(topic)
        deadline_ms = self._now_ms() + min(LOOK_TIMEOUT_MS, wanted.options.read_timeout_ms)
        await self._router.ensure_groups(deadline_ms)
        while True:
            view = await self._look_once(wanted, deadline_ms)
            problem = self._lacking(view, wanted)
            if problem is None:
                return view
            if not is_retriable(problem) or self._now_ms() + PAUSE_S * 1000 >= deadline_ms:
                raise problem
            await asyncio.sleep(PAUSE_S)

    def _now_ms(self) -> int:
        return self._router.clock.monotonic_ms()

    def _lacking(self, view: View, wanted: Wanted) -> DledgerError | None:
        """What a look lacks to be one."""
        options = wanted.options
        absent = [topic for topic in options.topics if topic not in view.incarnations and topic not in wanted.may_lack]
        reason = "; ".join(f"{error.message}" for error in view.silent.values())
        reason = reason or f"no leader in {', '.join(sorted(view.leaderless))}"
        if absent and (view.silent or view.leaderless):
            return UnreachableError(f"topic {absent[0]} is in no replica group that answers ({reason})")
        if absent:
            return TopicNotFoundError(f"topic {absent[0]} does not exist in cluster {self._router.cluster or '?'} ({options.bootstrap})")
        if view.silent and (len(view.silent) == len(self._router.groups) or (wanted.whole and not options.topics)):
            return UnreachableError(f"topics are not known of {', '.join(sorted(view.silent))} ({reason})")
        if view.silent and wanted.whole and options.fail_on_data_loss:
            # A topic may have queues in any group: rows would be missing without a word.
            return UnreachableError(
                f"{', '.join(sorted(view.silent))} may have queues of {', '.join(options.topics)} and does not answer ({reason}); "
                "set failOnDataLoss to false to read what the other groups have"
            )
        if options.topic_pattern and not view.incarnations and not wanted.may_lack:
            return TopicNotFoundError(f"option topicPattern: no topic matches {options.topic_pattern!r}")
        known = wanted.options.filters.queue_ids is None and not view.silent and not view.leaderless
        if options.filters.queues and view.incarnations and not view.bounds and known:
            return InvalidArgumentError("options queues, assign: none of the queues is one of the topics")
        return None

    async def _look_once(self, wanted: Wanted, deadline_ms: int) -> View:
        # Who leads may have changed since the last look, and groups may have come.
        await self._router.survey([], self._leaders_told())
        groups = sorted(self._router.groups)
        found = await asyncio.gather(*(self._group(group, wanted, deadline_ms) for group in groups))
        view, made = View(), dict[str, dict[str, str]]()
        for group, part in zip(groups, found, strict=True):
            if isinstance(part, DledgerError):
                view.silent[group] = part
                continue
            incarnations, bounds = part
            view.bounds |= bounds
            if self._state.is_leaderless(group):
                view.leaderless.add(group)
            for topic, incarnation in incarnations.items():
                made.setdefault(topic, {})[group] = incarnation
        view.incarnations = {topic: joined(made[topic]) for topic in sorted(made)}
        for group in sorted(view.silent.keys() - self._were_silent):
            _logger.warning("group %s does not answer, queues it may have are not seen: %s", group, view.silent[group].message)
        self._were_silent = set(view.silent)
        return view

    def _leaders_told(self) -> Callable[[str, broker_pb2.MetadataResponse], bool]:
        """For a survey: enough when each group's leader has spoken."""
        told: set[str] = set()

        def enough(address: str, response: broker_pb2.MetadataResponse) -> bool:
            told.update(info.name for info in response.groups if info.leader_address == address)
            return told >= self._router.groups.keys()

        return enough

    async def _group(
        self, group: str, wanted: Wanted, deadline_ms: int
    ) -> tuple[dict[str, str], dict[QueueId, QueueBounds]] | DledgerError:
        """One group's topics and queues; the error of one that is silent."""
        patience_ms = STILL_SILENT_MS if group in self._were_silent else GROUP_TIMEOUT_MS
        deadline_ms = min(deadline_ms, self._now_ms() + patience_ms)
        for last in [*[False] * (TRIES - 1), True]:
            try:
                topics = await self._topics(group, wanted, deadline_ms)
                queues = [
                    QueueId(topic.name, group, number)
                    for topic in topics
                    for number in range(topic.read_queues)
                    if wanted.options.filters.has_queue(topic.name, group, number)
                ]
                bounds = await self._bounds(group, queues, wanted, deadline_ms)
                if wanted.options.linearizable and queues:
                    await self._confirm_leader(queues[0], bounds[queues[0]].max_offset, deadline_ms)
                    bounds = await self._bounds(group, queues, wanted, deadline_ms)
                return {topic.name: topic.incarnation for topic in topics}, bounds
            except TopicNotFoundError:
                if last:
                    raise  # deleted between the two questions, again and again
            except DledgerError as error:
                if not is_retriable(error) or wanted.options.linearizable:
                    raise
                return error
        raise NotReadyError(f"group {group}: not asked")

    async def _topics(self, group: str, wanted: Wanted, deadline_ms: int) -> list[broker_pb2.TopicInfo]:
        """The wanted topics that the group has."""
        names = wanted.options.topics
        pages = [names[first : first + NAMES_A_REQUEST] for first in range(0, len(names), NAMES_A_REQUEST)]
        requests = [broker_pb2.MetadataRequest(topics=page) for page in pages] or [broker_pb2.MetadataRequest(all_topics=True)]
        found: list[broker_pb2.TopicInfo] = []
        for request in requests:
            kind = broker_pb2.MetadataResponse
            answer = await self._ask(group, methods.METADATA.path, request, kind, lambda told: int(told.version), wanted, deadline_ms)
            found += [topic for topic in answer.topics if topic.found and topic.group == group]
        return found if names else [topic for topic in found if topic.perm & Perm.READ and wanted.matches(topic.name)]

    async def _bounds(self, group: str, queues: Iterable[QueueId], wanted: Wanted, deadline_ms: int) -> dict[QueueId, QueueBounds]:
        asked = [(queue, moment) for queue in queues for moment in wanted.moments(queue) or [NO_TIME]]
        most = QUEUES_A_REQUEST if all(moment == NO_TIME for _, moment in asked) else SEARCHES_A_REQUEST
        found: dict[QueueId, QueueBounds] = {}
        for first in range(0, len(asked), most):
            page = asked[first : first + most]
            refs = [broker_pb2.QueueRef(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=moment) for queue, moment in page]
            request, kind = broker_pb2.OffsetsRequest(queues=refs), broker_pb2.OffsetsResponse
            answer = await self._ask(
                group, methods.QUEUE_OFFSETS.path, request, kind, lambda told: int(told.applied_index), wanted, deadline_ms
            )
            for (queue, moment), told in zip(page, answer.queues, strict=True):
                known = found.get(queue)
                times = {**(known.by_time if known is not None else {}), **({moment: told.offset_for_time} if moment != NO_TIME else {})}
                found[queue] = QueueBounds(told.min_offset, told.max_offset, times)
        return found

    async def _ask(
        self, group: str, method: str, request: Any, kind: type[Any], applied: Callable[[Any], int], wanted: Wanted, deadline_ms: int
    ) -> Any:
        """The leader's answer; where it need not prove that it leads, while there is none that of the follower that has applied most."""
        wish = request.SerializeToString()
        if wanted.options.linearizable:
            return parse(kind, await self._router.call_leader(group, method, wish, deadline_ms=deadline_ms), group)
        return await self._state.ask(group, method, wish, kind, applied, deadline_ms)

    async def _confirm_leader(self, queue: QueueId, offset: int, deadline_ms: int) -> None:
        """A read that goes through the leader's read barrier: what was acknowledged in its group before, the leader knows now."""
        request = broker_pb2.FetchRequest(
            topic=queue.topic, queue_id=queue.queue_id, offset=offset, max_messages=1, max_bytes=1, linearizable=True
        )
        replicas = Replicas(self._router, "leader", None)
        try:
            await replicas.read(queue.group, request, deadline_ms)
        finally:
            await replicas.close()
