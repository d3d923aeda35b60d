"""Offsets of RocketMQ's consumer groups, and those of queues: read at the leader, committed through its log.

Owns what is committed and not in the log yet.  Consumers send an offset with each pull and every few seconds; what comes within
``GATHER_S`` goes into the log as one command for a group.  A commit names the generation of the position that the consumer began with: one
from before a reset counts for nothing, and the consumers are asked to begin again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from broker.node import BrokerNode
from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.leader import CALLER, Leader
from broker.remoting.resets import Resets
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, NotLeaderError, OffsetsResetError
from dledger_wire.names import group_of_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.rpc.local import LocalCaller
from dledger_wire.security.principal import Principal

GATHER_S = 0.1
MAX_PENDING = 10_000  # queues of a group, as many as one commit takes, and groups: what is beyond comes again with the next pull
MAX_GENERATIONS = 200_000

_logger = logging.getLogger(__name__)

Queue = tuple[str, int]


class Offsets:
    """Serves them for one node; ``run`` it until it is cancelled."""

    def __init__(self, node: BrokerNode, leader: Leader, clients: Clients, resets: Resets, memory_bytes: int) -> None:
        self._node, self._leader, self._clients, self._resets = node, leader, clients, resets
        self._memory_bytes = memory_bytes * node.settings.cluster.broker.accessMessageInMemoryMaxRatio / 100
        self._pending: dict[tuple[Principal, str], dict[Queue, int]] = {}  # by who noted it, and group
        self._generations: dict[tuple[str, str, int], int] = {}  # of positions that consumers began with, by group, topic and queue
        self._term = leader.term  # in which they did
        self._changed = asyncio.Event()

    def handlers(self) -> Handlers:
        return {
            Request.QUERY_CONSUMER_OFFSET: self.query,
            Request.UPDATE_CONSUMER_OFFSET: self.update,
            Request.GET_MAX_OFFSET: self.highest,
            Request.GET_MIN_OFFSET: self.lowest,
            Request.SEARCH_OFFSET_BY_TIMESTAMP: self.at_time,
            Request.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    # Of groups

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset soon; one behind what is noted already counts for nothing."""
        place = CALLER.get().principal, group
        if place not in self._pending and len(self._pending) >= MAX_PENDING:
            return
        queues = self._pending.setdefault(place, {})
        if len(queues) < MAX_PENDING or (topic, queue_id) in queues:
            queues[topic, queue_id] = max(offset, queues.get((topic, queue_id), 0))
            self._changed.set()

    async def update(self, request: Command, _client: RemotingConnection) -> Command:
        self.note(request.text("consumerGroup"), request.text("topic"), request.number("queueId"), request.number("commitOffset"))
        return Command(Answer.SUCCESS)

    async def query(self, request: Command, _client: RemotingConnection) -> Command:
        group, topic, queue_id = request.text("consumerGroup"), request.text("topic"), request.number("queueId")
        await self._commit(group)
        reply = await self._leader.call(methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest(groups=[group]))
        rows = (row for each in reply.groups for row in each.offsets)
        row = next((row for row in rows if (row.topic, row.queue_id) == (topic, queue_id)), None)
        if row is not None:
            generation, found = row.generation, row.offset
        else:
            queue = await self._queue(topic, queue_id)
            generation, found = int(queue.incarnation, 16), self._beginning(queue)
        self._begins((group, topic, queue_id), generation)
        if found is None:
            return Command(Answer.QUERY_NOT_FOUND, remark=f"group {group} has no offset in queue {queue_id} of topic {topic}")
        return Command(Answer.SUCCESS, {"offset": str(found)})

    def _begins(self, place: tuple[str, str, int], generation: int) -> None:
        known = self._known_generations()
        known.pop(place, None)
        if len(known) >= MAX_GENERATIONS:
            del known[next(iter(known))]
        known[place] = generation

    def _known_generations(self) -> dict[tuple[str, str, int], int]:
        """Not those of another term: another leader may have answered since."""
        if self._term != self._leader.term:
            self._term = self._leader.term
            self._generations.clear()
        return self._generations

    def _beginning(self, queue: broker_pb2.QueueOffsets) -> int | None:
        """Where a group begins in a queue that has all its messages, as long as they fit into memory: with the first, as RocketMQ does.

        None: the consumer decides.
        """
        log = self._node.raft.log
        is_small = log.end_pos - log.first_pos < self._memory_bytes
        return 0 if queue.min_offset == 0 and (is_small or not queue.max_offset or group_of_topic(queue.topic)) else None

    async def run(self) -> None:
        """Commit what is noted, until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(GATHER_S)
            self._changed.clear()
            for group in {group for _, group in self._pending}:
                await self._commit(group)

    async def _commit(self, group: str) -> None:
        """Commit what is noted of a group, as those who noted it."""
        for principal in [principal for principal, of in self._pending if of == group]:
            token = CALLER.set(LocalCaller(principal=principal))
            try:
                await self._commit_noted(group, self._pending.pop((principal, group), {}))
            finally:
                CALLER.reset(token)

    async def _commit_noted(self, group: str, queues: dict[Queue, int]) -> None:
        """What fails for now is noted again; where users are served, consumers send it to the next leader."""
        if not queues:
            return
        try:
            generations = await self._generations_of(group, list(queues))
            request = broker_pb2.CommitOffsetsRequest(group=group)
            for (topic, queue_id), offset in queues.items():
                epoch, generation = self._clients.lock_epoch(group, topic, queue_id), generations.get((topic, queue_id))
                request.offsets.add(topic=topic, queue_id=queue_id, offset=offset, lock_epoch=epoch, generation=generation)
            reply = await self._leader.call(methods.COMMIT_OFFSETS, request)
        except DledgerError as error:
            if not error.retriable or (self._leader.for_users and isinstance(error, NotLeaderError)):
                _logger.info("offsets of group %s were not committed: %s", group, error.message)
                return
            for (topic, queue_id), offset in queues.items():
                self.note(group, topic, queue_id, offset)
            return
        for topic in {row.topic for row in reply.refused if isinstance(from_detail(row.error), OffsetsResetError)}:
            with contextlib.suppress(DledgerError):  # the next commit is refused, too
                await self._resets.announce(group, topic)

    async def _generations_of(self, group: str, queues: Sequence[Queue]) -> dict[Queue, int]:
        """Those that a commit in these queues names.

        A consumer that began in an earlier term does not ask again: its position is taken to be of the generation of its first commit in
        this one.  Only the leader has all questions for positions; elsewhere a commit names none.
        """
        if self._leader.term[0] != self._node.settings.node.id:
            return {}
        if any((group, *queue) not in self._known_generations() for queue in queues):
            reply = await self._leader.call(methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest(groups=[group]))
            for row in (row for each in reply.groups for row in each.offsets):
                if (group, row.topic, row.queue_id) not in self._known_generations():
                    self._begins((group, row.topic, row.queue_id), row.generation)
        known = self._known_generations()
        return {queue: known[group, *queue] for queue in queues if (group, *queue) in known}

    # Of queues

    async def highest(self, request: Command, _client: RemotingConnection) -> Command:
        queue = await self._queue(request.text("topic"), request.number("queueId"))
        return Command(Answer.SUCCESS, {"offset": str(queue.max_offset)})

    async def lowest(self, request: Command, _client: RemotingConnection) -> Command:
        queue = await self._queue(request.text("topic"), request.number("queueId"))
        return Command(Answer.SUCCESS, {"offset": str(queue.min_offset)})

    async def at_time(self, request: Command, _client: RemotingConnection) -> Command:
        queue = await self._queue(request.text("topic"), request.number("queueId"), timestamp_ms=max(0, request.number("timestamp")))
        return Command(Answer.SUCCESS, {"offset": str(queue.offset_for_time)})

    async def earliest(self, request: Command, _client: RemotingConnection) -> Command:
        queue = await self._queue(request.text("topic"), request.number("queueId"), at_offset=0)
        return Command(Answer.SUCCESS, {"timestamp": str(queue.stored_ms or -1)})

    async def _queue(self, topic: str, queue_id: int, *, timestamp_ms: int = -1, at_offset: int | None = None) -> broker_pb2.QueueOffsets:
        wanted = broker_pb2.OffsetsRequest()
        wanted.queues.add(topic=topic, queue_id=queue_id, timestamp_ms=timestamp_ms, at_offset=at_offset)
        reply = await self._leader.call(methods.QUEUE_OFFSETS, wanted)
        queue: broker_pb2.QueueOffsets = reply.queues[0]
        return queue
