"""The core of a consumer in a group: assigns queues among the group's members, and consumes its own.

Owns the set of queues.  One task (``_rebalance``) runs whenever the members or a queue changed, and after each look-up of the routes.  A
revoked queue is finished first: listeners done, offset committed, lock released.  Only then may another ``QueueConsumer`` of the same queue
start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dledger_client.admin.send_back import DEAD_LETTER, SentBack, ask_to_take_back
from dledger_client.cluster.retry import JitteredBackoff
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import TopicQueues
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.executors import ListenerExecutor
from dledger_client.consumer.group_offsets import OffsetStore
from dledger_client.consumer.group_session import GroupSession, LockGrant, MemberInfo
from dledger_client.consumer.offset_commits import OffsetCommits
from dledger_client.consumer.process_queue import (
    ConcurrentProcessQueue,
    Messages,
    OrderlyProcessQueue,
)
from dledger_client.consumer.queue_consumer import OpenQueue, QueueConsumer, message_kind
from dledger_client.consumer.settings import PushOptions
from dledger_client.consumer.topic_routes import TopicRoutes
from dledger_client.consumer.unlike_members import UnlikeMembers
from dledger_client.fetch.fetcher import Fetcher
from dledger_client.fetch.records import Chunk, ReceivedMessage
from dledger_client.fetch.subscription import Subscription
from dledger_client.metrics import catalog
from dledger_client.metrics.instruments import Instruments
from dledger_client.runtime.user_callbacks import faults
from dledger_wire._pb import broker_pb2, retry_pb2, sessions_pb2
from dledger_wire.errors import DledgerError, OffsetsResetError, StaleLockError, TopicNotFoundError, UnreachableError
from dledger_wire.names import retry_topic
from dledger_wire.tasks import BackgroundTasks

FETCH_TIMEOUT_MS = 2000
SEND_BACK_TIMEOUT_MS = 5000
DRAIN_S = 0.7  # how long running listeners of a concurrent queue may take when another member gets it
RESET_PAUSE_S = 0.1

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """Which queues of a replica group its leader says are consumed here, and by other members."""

    members: list[sessions_pb2.GroupMember]
    here: set[tuple[str, int]]
    elsewhere: set[tuple[str, int]]


class Rebalancer:
    """One push or polled consumer.  Implements ``SessionListener`` and ``QueueOwner``; runs on one event loop."""

    def __init__(
        self,
        router: Router,
        fetcher: Fetcher,
        member: MemberInfo,
        options: PushOptions,
        subscriptions: dict[str, Subscription],
        offset_store: OffsetStore,
        executor: ListenerExecutor,
    ) -> None:
        self.group = member.group
        self.offset_store = offset_store
        self._tasks = BackgroundTasks(f"consumer group {self.group}")
        self.options, self.executor = options, executor
        self.queues: dict[MessageQueue, QueueConsumer] = {}
        self._router, self._fetcher, self._member = router, fetcher, member
        self._subscriptions = subscriptions
        self._unlike = UnlikeMembers(member)
        self._allocate = options.strategy()
        self.open_queue: OpenQueue = OrderlyProcessQueue if options.orderly else ConcurrentProcessQueue
        self._locking = options.orderly and not options.broadcast
        self._sessions: dict[str, GroupSession] = {}
        self._routes = TopicRoutes(router, self.group, subscriptions.keys(), offset_store, self._session, self.queue_changed)
        self._commits = OffsetCommits(self.group, offset_store, self._tasks, broadcast=options.broadcast)
        self._finishing: dict[MessageQueue, asyncio.Task[None]] = {}
        self._known_held: dict[str, _Held] = {}  # of the last member list
        self._fetches: dict[asyncio.Task[list[Chunk]], str] = {}
        self._changed = asyncio.Event()
        self._joined = asyncio.Event()  # a leader has accepted the join
        self._stopping = self._is_paused = False
        self._not_allocated: dict[str, str] = {}  # by topic: what the strategy raised last, which was logged
        self._gauges: list[Callable[[], object]] = []

    # Life cycle

    def show_in(self, instruments: Instruments | None) -> None:
        """Show what waits for listeners, and how many queues are assigned.  Before the start."""
        if instruments is not None:
            for metric, read in ((catalog.WAITING, self._waiting_count), (catalog.ASSIGNED, self._assigned_count)):
                self._gauges.append(instruments.gauge(metric, self.group, read=read))

    def _waiting_count(self) -> float:
        return sum(each.process_queue.count for each in list(self.queues.values()) if each.process_queue is not None)

    def _assigned_count(self) -> float:
        return len(self.queues)

    def start(self) -> None:
        self._routes.watch()
        self._tasks.spawn(self._routes.run(), "routes")
        self._tasks.spawn(self._rebalance(), "rebalance")
        self._tasks.spawn(self._commits.run(self.options.persist_offset_interval_ms / 1000, self._running), "commit")

    def _running(self) -> list[QueueConsumer]:
        return [each for each in self.queues.values() if each.end_reason is None and each.queue not in self._finishing]

    def subscribe(self, subscriptions: Mapping[str, Subscription]) -> None:
        """Consume these topics from now on, and no others."""
        if subscriptions == self._subscriptions:
            return
        self._subscriptions.clear()
        self._subscriptions.update(subscriptions)
        expressions = {topic: subscription.text for topic, subscription in subscriptions.items()}
        self._member = replace(self._member, subscriptions=expressions)
        self._unlike = UnlikeMembers(self._member)
        for session in self._sessions.values():
            session.update(self._member)
        self._routes.topics_changed()
        self._changed.set()

    async def commit_now(self) -> None:
        """Commit what is consumed, also of queues that go, for a caller that waits for it; raises the first refusal."""
        await self._commits.commit_or_raise([each for each in self.queues.values() if each.end_reason is None])

    def fetch_from(self, queue: MessageQueue, offset: int) -> None:
        """Read on from there in a queue that is consumed here."""
        self.queues[queue].fetch_from(offset)

    async def wait_until_joined(self, limit_s: float) -> None:
        """Wait until a leader has accepted this member, for at most ``limit_s``.  BusyError when its client id is in use all that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._joined.wait()
                return
        refused = [session.refusal for session in self._sessions.values() if session.refusal is not None]
        if refused:
            raise refused[0]

    async def stop(self, waiting: Collection[asyncio.Task[Any]] = ()) -> None:
        """Finish every queue, leave the group, end.  Listeners that are ``waiting`` for this are not cancelled."""
        self._stopping = True
        self._joined.set()  # no caller waits for that any longer
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options.await_termination_ms / 1000
        for queue in list(self.queues):
            self._finish(queue, commit=True)
        if self._finishing:
            await asyncio.wait(list(self._finishing.values()), timeout=max(0.05, deadline - loop.time()) + 1.0)
        await self._commits.commit(list(self.queues.values()))
        if not self._finishing:  # a running listener keeps its lock until the session times out
            await asyncio.gather(*(session.leave(max(0.5, deadline - loop.time())) for session in self._sessions.values()))
        await self._tasks.stop()
        await self.executor.stop(waiting)
        for remove in self._gauges:
            remove()

    def pause(self, *, is_paused: bool) -> None:
        """Begin no listener call, or begin them again."""
        self._is_paused = is_paused
        if not is_paused:
            self._resume()

    def _resume(self, replica_group: str | None = None) -> None:
        self._for_each_queue(lambda queue: queue.process_queue.resume() if queue.process_queue is not None else None, replica_group)

    # SessionListener

    def leader_changed(self, replica_group: str) -> None:
        """Cancel fetches at the previous leader: if it is only paused, they would block for long."""
        known, asked = self._router.groups.get(replica_group), self._fetcher.asked
        others = (None, known.leader_address if known is not None else None)  # one that asks no node now waits for the leader
        for fetch in [fetch for fetch, of in self._fetches.items() if of == replica_group and asked.get(fetch) not in others]:
            fetch.cancel()

    def members_changed(self) -> None:
        self._for_each_queue(lambda queue: queue.changed.set())
        self._changed.set()

    def locks_changed(self, replica_group: str) -> None:
        self._joined.set()
        self._for_each_queue(lambda queue: queue.check_lock(), replica_group)
        self.lease_renewed(replica_group)

    def lease_renewed(self, replica_group: str) -> None:
        if self._locking:
            self._resume(replica_group)

    def offsets_reset(self, replica_group: str) -> None:
        self._tasks.spawn(self._restart_after_reset(replica_group), "restart after a reset")

    def oldest_call_ms(self) -> int:
        return self.executor.running.look(self._router.clock.monotonic_ms(), self.group)

    def _for_each_queue(self, call: Callable[[QueueConsumer], None], replica_group: str | None = None) -> None:
        for queue in list(self.queues.values()):
            if replica_group is None or queue.queue.replica_group == replica_group:
                call(queue)

    async def _restart_after_reset(self, replica_group: str) -> None:
        """Restart the queues whose offset was reset."""
        while True:
            try:
                known = await self.offset_store.generations(replica_group)
                break
            except DledgerError:
                await asyncio.sleep(RESET_PAUSE_S)
        for queue, generation in known.items():
            consumer = self.queues.get(queue)
            if consumer is not None and consumer.process_queue is not None and consumer.generation != generation:
                consumer.end(OffsetsResetError(f"{queue}: the offset was reset"))

    # QueueOwner

    async def in_turn(self) -> None:
        await self._fetcher.leaders.in_turn()

    async def fetch(
        self, request: broker_pb2.FetchRequest, replica_group: str, subscription: Subscription
    ) -> list[tuple[list[ReceivedMessage], int, int]]:
        try:
            chunks = await self._fetch(request, replica_group)
        except DledgerError:
            if self._fetcher.metrics is not None:
                self._fetcher.metrics.failed(request.topic)
            raise
        kind = message_kind(request.topic)
        return [(subscription.messages_of(chunk, kind), len(chunk.frames), chunk.next_offset) for chunk in chunks]

    async def _fetch(self, request: broker_pb2.FetchRequest, replica_group: str) -> list[Chunk]:
        deadline_ms = self._router.clock.monotonic_ms() + FETCH_TIMEOUT_MS
        reading = self._fetcher.read(replica_group, request, deadline_ms)
        fetching = asyncio.get_running_loop().create_task(reading, name=f"fetch {request.topic}/{request.queue_id}")
        self._fetches[fetching] = replica_group
        try:
            await asyncio.wait([fetching])
        finally:
            del self._fetches[fetching]
            fetching.cancel()
        if fetching.cancelled():
            raise UnreachableError(f"replica group {replica_group} has a new leader")
        return fetching.result()

    def grant_of(self, queue: MessageQueue) -> LockGrant | None:
        session = self._sessions.get(queue.replica_group)
        return session.grants.get((queue.topic, queue.queue_id)) if session is not None else None

    def request_lock(self, queue: MessageQueue) -> None:
        self._session(queue.replica_group).request_lock((queue.topic, queue.queue_id))

    def may_consume(self, queue: MessageQueue) -> bool:
        """Whether a listener may be called now.  Safe from any thread."""
        if self._is_paused:
            return False
        if not self._locking:
            return True
        session, consumer, grant = self._sessions.get(queue.replica_group), self.queues.get(queue), self.grant_of(queue)
        return session is not None and consumer is not None and grant is not None and session.has_lease and grant.epoch == consumer.epoch

    def is_held_by_another(self, queue: MessageQueue) -> bool:
        if self.options.broadcast:
            return False
        held = self._held(queue.replica_group)
        if held is None:
            return True  # unknown yet, while the leader of another replica group has sent the members that share the queues
        return (queue.topic, queue.queue_id) in held.elsewhere

    def is_held_here(self, queue: MessageQueue) -> bool:
        """Whether the leader has confirmed that this member holds the queue."""
        if self.options.broadcast:
            return True
        held = self._held(queue.replica_group)
        return held is not None and (queue.topic, queue.queue_id) in held.here

    def _held(self, replica_group: str) -> _Held | None:
        members = self._session(replica_group).members
        if members is None:
            return None
        known = self._known_held.get(replica_group)
        if known is None or known.members is not members:
            here: set[tuple[str, int]] = set()
            elsewhere: set[tuple[str, int]] = set()
            for member in members:
                if not member.broadcast:
                    held = here if member.client_id == self._member.client_id else elsewhere
                    held.update((place.topic, place.queue_id) for place in member.queues)
            known = self._known_held[replica_group] = _Held(members, here, elsewhere)
        return known

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._tasks.spawn(work, name)

    def queue_changed(self) -> None:
        self._changed.set()

    def backoff(self) -> JitteredBackoff:
        return JitteredBackoff(self._router.random)

    async def send_back(self, queue: MessageQueue, messages: Messages, delay_level: int) -> Messages:
        """Send messages back to the group; those that no broker took."""
        limit = self.options.max_reconsume_times
        request = retry_pb2.SendBackRequest(
            group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            offsets=[message.queue_offset for message in messages],
            delay_level=DEAD_LETTER if limit == 0 else delay_level,
            max_reconsume_times=max(0, limit),
            incarnation=self.queues[queue].topic_epoch if queue in self.queues else "",
        )
        try:
            deadline_ms = self._router.clock.monotonic_ms() + SEND_BACK_TIMEOUT_MS
            results = await ask_to_take_back(self._router, request, queue.replica_group, deadline_ms)
        except DledgerError as error:
            _logger.warning("%s: %d messages could not be sent back: %s", queue, len(messages), error.message)
            return messages
        if not self._routes.known.get(retry_topic(self.group)):
            self._routes.mark_stale()
        refused = {result.offset: result.error for result in results if result.outcome is SentBack.REFUSED}
        for offset, reason in refused.items():
            _logger.warning("%s: message %d was not accepted back: %s", queue, offset, reason)
        return [message for message in messages if message.queue_offset in refused]

    # Assignment

    def _session(self, replica_group: str) -> GroupSession:
        session = self._sessions.get(replica_group)
        if session is None:
            session = self._sessions[replica_group] = GroupSession(self._router, replica_group, self._member, self)
            self._tasks.spawn(session.run(), f"session with {replica_group}")
        return session

    async def _rebalance(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._stopping:
                self._apply_assignment()
                self._unlike.compare(self._members(list(self._sessions)) or ())
            self._report()

    def _apply_assignment(self) -> None:
        consumed: dict[str, list[tuple[MessageQueue, QueueConsumer]]] = {}
        for queue, consumer in self.queues.items():
            consumed.setdefault(queue.topic, []).append((queue, consumer))
        readers: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for topic, routes in self._routes.known.items():
            assigned = self._assignment(topic, routes, readers)
            if assigned is None:
                assigned = {queue: topic_epoch for queue, topic_epoch in _all(routes).items() if queue in self.queues}
            for queue, consumer in consumed.get(topic, ()):
                reason = consumer.end_reason
                if reason is not None:
                    self._finish(queue, commit=not isinstance(reason, OffsetsResetError | StaleLockError | TopicNotFoundError))
                    if isinstance(reason, TopicNotFoundError):
                        self._routes.mark_stale()
                elif not consumer.is_of(assigned.get(queue)) or consumer.subscription != self._subscriptions[topic]:
                    self._finish(queue, commit=queue not in assigned)
            for queue, topic_epoch in assigned.items():
                if queue not in self.queues:
                    consumer = QueueConsumer(queue, topic_epoch, self._subscriptions[topic], self, locked=self._locking)
                    self.queues[queue] = consumer
                    consumer.start()

    def _assignment(
        self, topic: str, routes: list[TopicQueues], known_readers: dict[tuple[str, ...], dict[str, list[str]]]
    ) -> dict[MessageQueue, str] | None:
        """The queues of a topic assigned to this member, with the topic's epoch; None while the members are not known.

        ``known_readers``: the readers of each topic, by replica groups; what is looked up is added.
        """
        found = _all(routes)
        if self.options.broadcast or not found:
            return found
        groups = sorted({queues.replica_group for queues in routes})
        if self._session(groups[0]).is_replaced:
            return {}  # the queues are those of a consumer that was started in place of this one
        if tuple(groups) not in known_readers:
            known_readers[tuple(groups)] = _readers(self._members(groups) or ())
        readers = known_readers[tuple(groups)].get(topic, [])
        if self._member.client_id not in readers:
            return None
        try:
            assigned = self._allocate(self._member.client_id, list(found), readers)
            mine = {queue: found[queue] for queue in assigned if queue in found}
        except faults() as error:  # a strategy may be the application's own function
            if self._not_allocated.get(topic) != repr(error):
                self._not_allocated[topic] = repr(error)
                _logger.exception("consumer group %s: the allocation strategy failed on %s", self.group, topic)
            return None
        self._not_allocated.pop(topic, None)
        return mine

    def _members(self, groups: list[str]) -> list[sessions_pb2.GroupMember] | None:
        """The members, from the leader of the first replica group that has a session, so that all members use the same list."""
        sessions = [self._session(group) for group in groups]
        known = [session for session in sessions if session.members is not None]
        return next((session.members for session in known if session.is_joined), known[0].members if known else None)

    def _report(self) -> None:
        """Publish to the other members what is consumed here."""
        for group, session in self._sessions.items():
            session.report(
                (queue.topic, queue.queue_id, consumer.epoch)
                for queue, consumer in self.queues.items()
                if queue.replica_group == group and (consumer.is_claimed or consumer.process_queue is not None)
            )

    def _finish(self, queue: MessageQueue, *, commit: bool) -> None:
        if queue not in self._finishing:
            task = self._tasks.spawn(self._finished(self.queues[queue], commit=commit), f"finish {queue.topic}/{queue.queue_id}")
            self._finishing[queue] = task

    async def _finished(self, consumer: QueueConsumer, *, commit: bool) -> None:
        queue = consumer.queue
        timeout_s = self.options.await_termination_ms / 1000 if self._stopping else DRAIN_S
        try:
            await consumer.stop(None if self.options.orderly else timeout_s)
            if commit:
                await self._commits.commit([consumer])
            if self._locking:
                self._session(queue.replica_group).release((queue.topic, queue.queue_id))
        finally:  # the queue may be consumed again, whatever happened
            self.queues.pop(queue, None)
            self._finishing.pop(queue, None)
            self._changed.set()


def _readers(members: Iterable[sessions_pb2.GroupMember]) -> dict[str, list[str]]:
    """The readers of each topic, in the order of the members."""
    found: dict[str, list[str]] = {}
    for member in members:
        for topic in () if member.broadcast else dict.fromkeys(each.topic for each in member.subscriptions):
            found.setdefault(topic, []).append(member.client_id)
    return found


def _all(routes: list[TopicQueues]) -> dict[MessageQueue, str]:
    """Every readable queue, with the epoch of its topic."""
    return {
        MessageQueue(queues.topic, queues.replica_group, number): queues.topic_epoch
        for queues in routes
        for number in range(queues.read_queues)
    }
