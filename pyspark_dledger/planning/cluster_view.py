"""A view of the cluster for planning: topics, queue bounds, and offsets for timestamps, with one request per replica
group for what it has of all topics.

Requests go to leaders, so that a plan includes everything committed before it.  While a group has no leader, the
committed state of its followers is used, unless ``linearizable`` requires the leader's read barrier.  A group without
any response is ``unreachable``; data that is known to be in other groups can be read without it.

A process keeps its inspector, so that routes and connections are reused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from google.protobuf.message import Message

from dledger_client.cluster.followers_first import CommittedState
from dledger_client.cluster.retry import is_retriable
from dledger_client.cluster.router import Router
from dledger_client.cluster.topic_lookup import may_not
from dledger_client.fetch.fetcher import Fetcher
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, NotReadyError, TopicNotFoundError, UnreachableError
from dledger_wire.names import check_topic
from dledger_wire.rpc import methods
from dledger_wire.status import Perm
from pyspark_dledger.options.access import AccessOptions
from pyspark_dledger.options.model import METADATA_TIMEOUT_MS, ReadOptions
from pyspark_dledger.per_process import PerProcess
from pyspark_dledger.planning.bounds_questions import NAMES_A_REQUEST, BoundsQuestions, ViewRequest
from pyspark_dledger.planning.partitions import unknown_queue
from pyspark_dledger.planning.queue_offsets import PartBounds, QueueId, TopicPart
from pyspark_dledger.planning.topic_epochs import joined

GROUP_TIMEOUT_MS = 5_000  # until a group counts as unreachable
UNREACHABLE_AGAIN_MS = 1_000  # the same for a group that was unreachable in the last view
PAUSE_S = 0.2
TRIES = 5  # attempts of a request whose topics are deleted concurrently

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ClusterView:
    """What the cluster holds.

    ``topic_epochs``: by topic, joined over its replica groups.  ``unreachable``: groups without a response, and why.
    ``leaderless``: groups whose followers responded; these may have restarted and know less than before.  ``asked``: how
    many groups may have the topics.  ``queues``: how many each part of a topic has.
    """

    bounds: dict[TopicPart, PartBounds] = field(default_factory=dict)
    topic_epochs: dict[str, str] = field(default_factory=dict)
    unreachable: dict[str, DledgerError] = field(default_factory=dict)
    leaderless: set[str] = field(default_factory=set)
    asked: int = 0
    queues: dict[TopicPart, int] = field(default_factory=dict)


class ClusterInspector:
    """Reads views of one cluster; bound to one event loop."""

    _kept: ClassVar[PerProcess[tuple[str, str, AccessOptions], ClusterInspector]] = PerProcess()

    def __init__(self, router: Router, replica: str = "") -> None:
        self._router = router
        self._state = CommittedState(router, replica or None)
        self._were_unreachable: set[str] = set()

    @classmethod
    def of_this_process(cls, options: ReadOptions) -> ClusterInspector:
        key = (options.bootstrap, options.replica, options.access)
        return cls._kept.get(key, lambda: LoopThread.shared().call(lambda: cls.of_cluster(options)))

    @classmethod
    def of_cluster(cls, options: ReadOptions) -> ClusterInspector:
        """Must be called on the event loop that will use it."""
        environment = environment_for(options.bootstrap, **options.access.client())
        return cls(environment.open_router(options.bootstrap), options.replica)

    async def read_view(self, wanted: ViewRequest) -> ClusterView:
        """Read a view.  Raises UnreachableError, TopicNotFoundError, TopicPermissionError; NotLeaderError if
        ``linearizable``, which leaves out no group that may have something of the topics.
        """
        for topic in wanted.options.topics:
            check_topic(topic)
        deadline_ms = self._now_ms() + min(METADATA_TIMEOUT_MS, wanted.options.read_timeout_ms)
        while True:
            view = await self._read_once(wanted, deadline_ms)
            problem = self._lacking(view, wanted)
            if problem is None:
                return view
            if not is_retriable(problem) or self._now_ms() + PAUSE_S * 1000 >= deadline_ms:
                raise problem
            await asyncio.sleep(PAUSE_S)

    def _now_ms(self) -> int:
        return self._router.clock.monotonic_ms()

    def _lacking(self, view: ClusterView, wanted: ViewRequest) -> DledgerError | None:
        """Why the view cannot be used, or None."""
        options = wanted.options
        absent = [topic for topic in options.topics if topic not in view.topic_epochs and topic not in wanted.may_lack]
        reason = "; ".join(f"{error.message}" for error in view.unreachable.values())
        reason = reason or f"no leader in {', '.join(sorted(view.leaderless))}"
        if view.unreachable and options.linearizable:
            return min(view.unreachable.items())[1]
        if absent and (view.unreachable or view.leaderless):
            return UnreachableError(f"topic {absent[0]} was not found in the replica groups that responded ({reason})")
        if absent:
            return TopicNotFoundError(
                f"topic {absent[0]} does not exist in cluster {self._router.cache.cluster or '?'} ({options.bootstrap})"
            )
        if view.unreachable and (len(view.unreachable) == view.asked or (wanted.whole and not options.topics)):
            return UnreachableError(f"no response from replica groups {', '.join(sorted(view.unreachable))} ({reason})")
        if view.unreachable and wanted.whole and options.fail_on_data_loss:
            # A topic may have queues in any group: rows would be missing silently.
            silent = ", ".join(sorted(view.unreachable))
            # A checkpoint with offsets of the group cannot be ended without it, whatever may be lost.
            limit = ", as an available-now query does when it is new" if wanted.from_leaders else ""
            return UnreachableError(
                f"replica group {silent} did not respond and may have queues of {', '.join(options.topics)} ({reason}); "
                f"set failOnDataLoss to false to read the other groups{limit}"
            )
        if wanted.from_leaders and view.leaderless:
            return NotReadyError(f"replica group {min(view.leaderless)} has no leader now, so where this query has to end is not known")
        if options.topic_pattern and not view.topic_epochs and not wanted.may_lack:
            return TopicNotFoundError(f"option topicPattern: no topic matches {options.topic_pattern!r}")
        # A running query has found its queues before; its topics may have been made again with fewer.
        known = wanted.whole and not wanted.may_lack and not view.unreachable and not view.leaderless
        return unknown_queue(options.filters, view.queues) if known else None

    async def _read_once(self, wanted: ViewRequest, deadline_ms: int) -> ClusterView:
        groups = await self._replica_groups(wanted, deadline_ms)
        found = await asyncio.gather(*(self._group(group, wanted, deadline_ms) for group in groups))
        view, made = ClusterView(asked=len(groups)), dict[str, dict[str, str]]()
        named_groups: dict[str, list[tuple[str, ...]]] = {}
        for group, part in zip(groups, found, strict=True):
            if isinstance(part, DledgerError):
                view.unreachable[group] = part
                continue
            topics, bounds = part
            view.bounds |= bounds
            if self._state.is_leaderless(group) and not wanted.options.linearizable:  # an earlier look found none
                view.leaderless.add(group)
            for topic in topics:
                view.queues[TopicPart(topic.name, group)] = int(topic.read_queues)
                made.setdefault(topic.name, {})[group] = topic.incarnation
                named_groups.setdefault(topic.name, []).append(tuple(topic.groups))
        _leave_out_strangers(view, wanted.options.topics, named_groups)
        view.topic_epochs = {topic: joined(made[topic]) for topic in sorted(made)}
        for group in sorted(view.unreachable.keys() - self._were_unreachable):
            _logger.warning("no response from replica group %s, its queues are not included: %s", group, view.unreachable[group].message)
        self._were_unreachable = set(view.unreachable)
        return view

    async def _replica_groups(self, wanted: ViewRequest, deadline_ms: int) -> list[str]:
        """The groups that may have the topics, with leaders as they are now: some may have been added since the last view."""
        found = await self._router.groups_of(wanted.options.topics) if wanted.options.topics else None
        self._router.check_seen(wanted.options.topics)
        names = found if found is not None else await self._router.survey(deadline_ms)
        return sorted(name for name in names if wanted.groups is None or name in wanted.groups)

    async def _group(
        self, group: str, wanted: ViewRequest, deadline_ms: int
    ) -> tuple[list[broker_pb2.TopicInfo], dict[TopicPart, PartBounds]] | DledgerError:
        """One group's topics and queue bounds, or the error if it is unreachable."""
        timeout_ms = UNREACHABLE_AGAIN_MS if group in self._were_unreachable else GROUP_TIMEOUT_MS
        deadline_ms = min(deadline_ms, self._now_ms() + timeout_ms)

        async def ask(request: broker_pb2.OffsetsRequest) -> broker_pb2.OffsetsResponse:
            return await self._ask(group, methods.QUEUE_OFFSETS, request, _applied_index, wanted, deadline_ms)

        questions = BoundsQuestions(group, wanted, ask)
        for last in [*[False] * (TRIES - 1), True]:
            try:
                topics = await self._topics(group, wanted, deadline_ms)
                counts = {TopicPart(topic.name, group): int(topic.read_queues) for topic in topics if topic.read_queues}
                bounds = await questions.bounds(counts)
                # Where an available-now query ends must not come from a leader that another one has replaced without its knowing.
                is_confirmed = wanted.options.linearizable or (wanted.from_leaders and not self._state.is_leaderless(group))
                if is_confirmed and bounds:
                    part, held = next(iter(bounds.items()))
                    number = held.numbers()[0]
                    await self._confirm_leader(QueueId(*part, number), int(held.max_offsets[number]), deadline_ms)
                    bounds = await questions.bounds(counts)
                return topics, bounds
            except TopicNotFoundError:
                if last:
                    raise  # deleted between the two requests, every time
            except DledgerError as error:
                if not is_retriable(error):
                    raise
                return error
        raise NotReadyError(f"replica group {group}: no request was sent")

    async def _topics(self, group: str, wanted: ViewRequest, deadline_ms: int) -> list[broker_pb2.TopicInfo]:
        """The requested topics that the group has.  PermissionDeniedError for one that this job may not see."""
        names = wanted.options.topics
        pages = [names[first : first + NAMES_A_REQUEST] for first in range(0, len(names), NAMES_A_REQUEST)]
        requests = [broker_pb2.MetadataRequest(topics=page) for page in pages] or [broker_pb2.MetadataRequest(all_topics=True)]
        found: list[broker_pb2.TopicInfo] = []
        for request in requests:
            answer = await self._ask(group, methods.METADATA, request, _version, wanted, deadline_ms)
            for topic in answer.topics:
                if topic.unseen_by:
                    raise may_not(topic.unseen_by, "read", topic.name)
            found += [topic for topic in answer.topics if topic.found and topic.group == group]
        return found if names else [topic for topic in found if topic.perm & Perm.READ and wanted.matches(topic.name)]

    async def _ask(
        self,
        group: str,
        method: methods.UnaryMethod[Request, Answer],
        request: Request,
        applied: Callable[[Answer], int],
        wanted: ViewRequest,
        deadline_ms: int,
    ) -> Answer:
        """The leader's response; without a leader and without ``linearizable``, that of the follower that has applied
        most.
        """
        if wanted.options.linearizable:
            return await self._router.call_leader(group, method, request, deadline_ms=deadline_ms)
        return await self._state.ask(group, method, request, applied, deadline_ms)

    async def _confirm_leader(self, queue: QueueId, offset: int, deadline_ms: int) -> None:
        """A read through the leader's read barrier: afterwards the leader knows everything that was acknowledged
        before.
        """
        request = broker_pb2.FetchRequest(
            topic=queue.topic, queue_id=queue.queue_id, offset=offset, max_messages=1, max_bytes=1, linearizable=True
        )
        replicas = Fetcher(self._router, "leader", None)
        try:
            await replicas.read(queue.group, request, deadline_ms)
        finally:
            await replicas.close()


def _leave_out_strangers(view: ClusterView, topics: Collection[str], named_groups: Mapping[str, list[tuple[str, ...]]]) -> None:
    """Forget unreachable groups that have nothing of the topics, by the groups that operators named for every part of each topic."""
    if topics and all(topic in named_groups and all(named_groups[topic]) for topic in topics):
        may_have = {group for topic in topics for groups in named_groups[topic] for group in groups}
        view.unreachable = {group: error for group, error in view.unreachable.items() if group in may_have}


def _version(response: broker_pb2.MetadataResponse) -> int:
    return int(response.version)


def _applied_index(response: broker_pb2.OffsetsResponse) -> int:
    return int(response.applied_index)
