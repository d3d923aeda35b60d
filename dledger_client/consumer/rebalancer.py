"""The inside of a push consumer: shares queues out with the other members, consumes its own, commits how far it is.

Owns the set of queues.  One task decides (``_rebalance``) whenever the members, the routes or a queue of ours changed; what is given up is
finished first - listeners done, position committed, lock released - and only then may another ``QueueConsumer`` of the same queue begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from dledger_client.admin.send_back import DEAD_LETTER, SentBack, send_back
from dledger_client.cluster.metadata import Router, TopicQueues
from dledger_client.cluster.retry import JitteredBackoff
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.executors import ListenerExecutor
from dledger_client.consumer.group_offsets import OffsetStore
from dledger_client.consumer.group_session import GroupSession, LockGrant, MemberInfo
from dledger_client.consumer.process_queue import ConsumerContext, Messages
from dledger_client.consumer.queue_consumer import QueueConsumer, message_kind
from dledger_client.consumer.settings import PushOptions
from dledger_client.fetch.fetcher import Replicas
from dledger_client.fetch.records import Chunk, ReceivedMessage
from dledger_client.fetch.subscription import Subscription
from dledger_client.runtime.user_callbacks import FAULTS
from dledger_wire._pb import broker_pb2, sessions_pb2
from dledger_wire.errors import DledgerError, OffsetsResetError, StaleLockError, TopicNotFoundError, UnreachableError
from dledger_wire.names import RETRY_PREFIX, retry_topic
from dledger_wire.tasks import BackgroundTasks

ROUTE_REFRESH_S = 2.0
ROUTE_TIMEOUT_MS = 2000
FETCH_TIMEOUT_MS = 2000
SEND_BACK_TIMEOUT_MS = 5000
DRAIN_S = 0.7  # how long a concurrent queue's listeners are waited for when somebody else gets it
RESET_PAUSE_S = 0.1
READABLE = 4  # permission bit

_logger = logging.getLogger(__name__)


class Rebalancer:
    """Implements ``membership.SessionListener`` and ``push_queue.QueueOwner``.  Everything on one loop."""

    def __init__(
        self,
        router: Router,
        replicas: Replicas,
        profile: MemberInfo,
        options: PushOptions,
        subscriptions: dict[str, Subscription],
        positions: OffsetStore,
        runner: ListenerExecutor,
    ) -> None:
        self.group = profile.group
        self.positions = positions
        self._tasks = BackgroundTasks(f"consumer group {self.group}")
        self.workshop = ConsumerContext(options, runner, self._send_back, self._tasks.spawn, self._may_start)
        self.queues: dict[MessageQueue, QueueConsumer] = {}
        self._router, self._replicas, self._profile, self._options = router, replicas, profile, options
        self._subscriptions = subscriptions
        self._allocate = options.strategy()
        self._locking = options.orderly and not options.broadcast
        self._sessions: dict[str, GroupSession] = {}
        self._routes: dict[str, list[TopicQueues]] = {}
        self._finishing: dict[MessageQueue, asyncio.Task[None]] = {}
        self._fetches: dict[asyncio.Future[list[Chunk]], str] = {}
        self._news = asyncio.Event()
        self._look_at_routes = asyncio.Event()
        self._admitted = asyncio.Event()  # a master has taken us in
        self._stopping = False
        self._is_behind = False  # positions could not be committed, which was told

    # Life

    def start(self) -> None:
        self._tasks.spawn(self._follow_routes(), "routes")
        self._tasks.spawn(self._rebalance(), "rebalance")
        self._tasks.spawn(self._commit_now_and_then(), "commit")

    async def admitted(self, limit_s: float) -> None:
        """Wait until a master has taken this member in, for ``limit_s`` at most.  BusyError when its client id is in use all that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._admitted.wait()
                return
        refused = [session.refusal for session in self._sessions.values() if session.refusal is not None]
        if refused:
            raise refused[0]

    async def stop(self) -> None:
        """Finish every queue, leave the group, end."""
        self._stopping = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.await_termination_ms / 1000
        for queue in list(self.queues):
            self._finish(queue, commit=True)
        if self._finishing:
            await asyncio.wait(list(self._finishing.values()), timeout=max(0.05, deadline - loop.time()) + 1.0)
        await self._commit(list(self.queues.values()))
        if not self._finishing:  # a listener still at work keeps its lock until the session ends by itself
            await asyncio.gather(*(session.leave(max(0.5, deadline - loop.time())) for session in self._sessions.values()))
        await self._tasks.stop()
        await self.workshop.runner.stop()

    # What sessions tell

    def master_changed(self, group: str) -> None:
        """Fetches that wait for the one before would wait for long if it only stands still."""
        for fetch in [fetch for fetch, of in self._fetches.items() if of == group]:
            fetch.cancel()

    def members_changed(self) -> None:
        self._tell_queues(lambda queue: queue.news.set())
        self._news.set()

    def locks_changed(self, group: str) -> None:
        self._admitted.set()
        self._tell_queues(lambda queue: queue.check_lock(), group)
        self.lease_renewed(group)

    def lease_renewed(self, group: str) -> None:
        if self._locking:
            self._tell_queues(lambda queue: queue.buffer.kick() if queue.buffer is not None else None, group)

    def positions_reset(self, group: str) -> None:
        self._tasks.spawn(self._follow_reset(group), "follow a reset")

    def _tell_queues(self, tell: Callable[[QueueConsumer], None], group: str | None = None) -> None:
        for queue in list(self.queues.values()):
            if group is None or queue.queue.replica_group == group:
                tell(queue)

    async def _follow_reset(self, group: str) -> None:
        """Begin anew in the queues whose position somebody reset."""
        while True:
            try:
                known = await self.positions.generations(group)
                break
            except DledgerError:
                await asyncio.sleep(RESET_PAUSE_S)
        for queue, generation in known.items():
            mine = self.queues.get(queue)
            if mine is not None and mine.buffer is not None and mine.generation != generation:
                mine.end(OffsetsResetError(f"{queue}: the position was reset"))

    # What queues ask

    async def fetch(self, request: broker_pb2.FetchRequest, group: str) -> list[tuple[list[ReceivedMessage], int, int]]:
        deadline_ms = self._router.clock.monotonic_ms() + FETCH_TIMEOUT_MS
        fetching = asyncio.ensure_future(self._replicas.read(group, request, deadline_ms))
        self._fetches[fetching] = group
        try:
            await asyncio.wait([fetching])
        finally:
            del self._fetches[fetching]
            fetching.cancel()
        if fetching.cancelled():
            raise UnreachableError(f"group {group} has another master now")
        chunks = fetching.result()
        subscription, kind = self._subscriptions[request.topic], message_kind(request.topic)
        return [
            (subscription.wanted(chunk.messages(kind)) if chunk.count else [], len(chunk.frames), chunk.next_offset) for chunk in chunks
        ]

    def grant_of(self, queue: MessageQueue) -> LockGrant | None:
        session = self._sessions.get(queue.replica_group)
        return session.grants.get((queue.topic, queue.queue_id)) if session is not None else None

    def wish(self, queue: MessageQueue) -> None:
        self._session(queue.replica_group).wish((queue.topic, queue.queue_id))

    def _may_start(self, queue: MessageQueue) -> bool:
        """Whether a listener may be called now.  Asked from any thread."""
        if not self._locking:
            return True
        session, mine, grant = self._sessions.get(queue.replica_group), self.queues.get(queue), self.grant_of(queue)
        return session is not None and mine is not None and grant is not None and session.has_lease and grant.epoch == mine.epoch

    def is_held_by_another(self, queue: MessageQueue) -> bool:
        members = self._session(queue.replica_group).members
        if members is None or self._options.broadcast:
            return False
        return any(
            (place.topic, place.queue_id) == (queue.topic, queue.queue_id)
            for member in members
            if member.client_id != self._profile.client_id and not member.broadcast
            for place in member.queues
        )

    def queue_changed(self) -> None:
        self._news.set()

    def pauses(self) -> JitteredBackoff:
        return JitteredBackoff(self._router.random)

    async def _send_back(self, queue: MessageQueue, messages: Messages, delay_level: int) -> bool:
        """Give messages back to the group; False when the brokers did not take all of them."""
        limit = self._options.max_reconsume_times
        try:
            results = await send_back(
                self._router,
                self.group,
                queue.topic,
                queue.queue_id,
                [message.queue_offset for message in messages],
                group_name=queue.replica_group,
                deadline_ms=self._router.clock.monotonic_ms() + SEND_BACK_TIMEOUT_MS,
                delay_level=DEAD_LETTER if limit == 0 else delay_level,
                max_reconsume_times=max(0, limit),
            )
        except DledgerError as error:
            _logger.warning("%s: %d messages could not be sent back: %s", queue, len(messages), error.message)
            return False
        if retry_topic(self.group) not in self._routes or not self._routes[retry_topic(self.group)]:
            self._look_at_routes.set()
        refused = [result for result in results if result.outcome is SentBack.REFUSED]
        for result in refused:
            _logger.warning("%s: message %d was not taken back: %s", queue, result.offset, result.error)
        return not refused

    # Who consumes what

    async def _follow_routes(self) -> None:
        while True:
            self._look_at_routes.clear()
            for topic in self._subscriptions:
                await self._look_up(topic)
            self._news.set()
            try:
                async with asyncio.timeout(ROUTE_REFRESH_S):
                    await self._look_at_routes.wait()
            except TimeoutError:
                continue

    async def _look_up(self, topic: str) -> None:
        try:
            routes = await self._router.topic(topic, self._router.clock.monotonic_ms() + ROUTE_TIMEOUT_MS, fresh=True)
        except TopicNotFoundError:
            if not topic.startswith(RETRY_PREFIX) and self._routes.get(topic, ()) != []:
                _logger.warning("consumer group %s: topic %s does not exist (yet)", self.group, topic)
            self.positions.is_absent(topic)
            routes = []
        except DledgerError as error:
            _logger.info("consumer group %s: routes of %s: %s", self.group, topic, error.message)
            return
        self._routes[topic] = [queues for queues in routes if queues.perm & READABLE]
        for queues in self._routes[topic]:
            self._session(queues.replica_group)

    def _session(self, group: str) -> GroupSession:
        session = self._sessions.get(group)
        if session is None:
            session = self._sessions[group] = GroupSession(self._router, group, self._profile, self)
            self._tasks.spawn(session.run(), f"session with {group}")
        return session

    async def _rebalance(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if not self._stopping:
                self._take_shares()
            self._report()

    def _take_shares(self) -> None:
        for topic, routes in self._routes.items():
            shares = self._shares(topic, routes)
            if shares is None:
                shares = {queue: topic_epoch for queue, topic_epoch in _all(routes).items() if queue in self.queues}
            for queue, mine in list(self.queues.items()):
                if queue.topic != topic:
                    continue
                if mine.over is not None:
                    self._finish(queue, commit=not isinstance(mine.over, OffsetsResetError | StaleLockError | TopicNotFoundError))
                elif shares.get(queue) != mine.topic_epoch:
                    self._finish(queue, commit=queue not in shares)
            for queue, topic_epoch in shares.items():
                if queue not in self.queues:
                    mine = QueueConsumer(queue, topic_epoch, self._subscriptions[topic], self, locked=self._locking)
                    self.queues[queue] = mine
                    mine.start()

    def _shares(self, topic: str, routes: list[TopicQueues]) -> dict[MessageQueue, str] | None:
        """The queues of a topic that are ours, with the topic epoch; None while nobody has told who the members are."""
        found = _all(routes)
        if self._options.broadcast or not found:
            return found
        members = self._members(sorted({queues.replica_group for queues in routes}))
        readers = [
            member.client_id
            for member in members or ()
            if not member.broadcast and any(subscription.topic == topic for subscription in member.subscriptions)
        ]
        if self._profile.client_id not in readers:
            return None
        try:
            mine = self._allocate(self._profile.client_id, list(found), readers)
            return {queue: found[queue] for queue in mine if queue in found}
        except FAULTS:  # it may be the application's own function
            _logger.exception("consumer group %s: the allocation strategy failed on %s", self.group, topic)
            return None

    def _members(self, groups: list[str]) -> list[sessions_pb2.GroupMember] | None:
        """The members as the first replica group's master tells them, whom all hear; as the next one's while that one is silent."""
        sessions = [self._session(group) for group in groups]
        told = [session for session in sessions if session.members is not None]
        return next((session.members for session in told if session.is_attending), told[0].members if told else None)

    def _report(self) -> None:
        """Tell the others what is consumed here."""
        for group, session in self._sessions.items():
            session.report(
                (queue.topic, queue.queue_id, mine.epoch)
                for queue, mine in self.queues.items()
                if queue.replica_group == group and mine.buffer is not None
            )

    def _finish(self, queue: MessageQueue, *, commit: bool) -> None:
        if queue not in self._finishing:
            task = self._tasks.spawn(self._finished(self.queues[queue], commit=commit), f"finish {queue.topic}/{queue.queue_id}")
            self._finishing[queue] = task

    async def _finished(self, mine: QueueConsumer, *, commit: bool) -> None:
        queue = mine.queue
        patience_s = self._options.await_termination_ms / 1000 if self._stopping else DRAIN_S
        try:
            await mine.stop(None if self._options.orderly else patience_s)
            if commit:
                await self._commit([mine])
            if self._locking:
                self._session(queue.replica_group).release((queue.topic, queue.queue_id))
        finally:  # whatever happened, it may begin anew
            self.queues.pop(queue, None)
            self._finishing.pop(queue, None)
            self._news.set()

    # How far we are

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._options.persist_offset_interval_ms / 1000)
            await self._commit([mine for mine in self.queues.values() if mine.over is None and mine.queue not in self._finishing])

    async def _commit(self, queues: list[QueueConsumer]) -> None:
        progress = {mine.queue: (mine, row) for mine in queues if (row := mine.progress()) is not None}
        if not progress:
            return
        try:
            refused = await self.positions.commit([row for _, row in progress.values()])
        except DledgerError as error:
            _logger.log(
                logging.DEBUG if self._is_behind else logging.WARNING,
                "consumer group %s: positions are not committed yet: %s",
                self.group,
                error.message,
            )
            self._is_behind = True
            return
        if self._is_behind:
            self._is_behind = False
            _logger.info("consumer group %s: positions are committed again", self.group)
        for queue, (mine, row) in progress.items():
            if queue in refused:
                mine.end(refused[queue])
            else:
                mine.committed = row.offset


def _all(routes: list[TopicQueues]) -> dict[MessageQueue, str]:
    """Every readable queue, with its topic epoch."""
    return {
        MessageQueue(queues.topic, queues.replica_group, number): queues.topic_epoch
        for queues in routes
        for number in range(queues.read_queues)
    }
