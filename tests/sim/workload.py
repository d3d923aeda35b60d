"""What clients do in the simulator, and what they saw: producers of numbered messages, and the final reading of every replica.

Owns the histories, one a queue, in the terms of ``tests/checkers/append_log``.  The clients are the product's own, on an injected network.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from dledger.node import RaftNode
from dledger_client.aio import Admin, Message, Producer, PullConsumer
from dledger_client.runtime.environment import ClientEnvironment, use_environment
from dledger_wire.errors import DledgerError, OffsetOutOfRangeError
from tests.checkers.append_log import Append, AppendId, LogHistory, Outcome, Poll
from tests.checkers.queues import OffsetCall
from tests.sim.clock import SimClock
from tests.sim.cluster import SimCluster
from tests.sim.lineages import Worth
from tests.sim.loop import Process
from tests.sim.result import LivenessError
from tests.sim.security import ADMINISTRATOR

CLIENT_IP = "10.0.1."
COMMITTER_IP = "10.0.2."
SEND_TIMEOUT_MS = 20_000
GROUP = "g"


class Workload:
    """Producers of one topic, in one replica group, on one client machine; ``histories`` by queue."""

    def __init__(
        self,
        cluster: SimCluster,
        number: int = 0,
        *,
        queues: int,
        messages: int,
        reads: bool,
        committers: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.histories = [LogHistory() for _ in range(queues)]
        self.acknowledged = 0
        self.read = 0
        self._reading = reads
        self._over = False
        self.cluster, self.group = cluster, list(cluster.groups)[number]
        self.topic = "t" if not number else f"t-{self.group}"
        self._consumers = GROUP if not number else f"{GROUP}-{self.group}"
        self._messages = messages
        self._options = dict(options or {})
        self._random = random.Random(cluster.random.getrandbits(64))
        self._clock = SimClock(cluster.loop)
        self.process: Process
        self.process, self._network = cluster.new_client(f"{CLIENT_IP}{number + 1}")
        self.committers = [cluster.new_client(f"{COMMITTER_IP}{10 * number + each}") for each in range(committers)]
        self.offset_calls: list[OffsetCall] = []
        self._worth = Worth(cluster.groups[self.group], self.topic)
        self._committed = 0

    def _environment(self) -> AbstractContextManager[ClientEnvironment]:
        return use_environment(self._network, self._clock, self._random)

    async def create_topic(self) -> None:
        with self._environment():
            admin = Admin(self.cluster.bootstrap, timeout_ms=20_000)
        async with admin:
            only: dict[str, Any] = {"replica_group": self.group} if len(self.cluster.groups) > 1 else {}
            await admin.create_topic(self.topic, queues=len(self.histories), if_not_exists=True, **only)

    def admin(self) -> Admin:
        """Of the administrator."""
        network = self.cluster.net.of(self.process, self.cluster.security.of_user(ADMINISTRATOR))
        with use_environment(network, self._clock, self._random):
            return Admin(self.cluster.bootstrap, timeout_ms=20_000)

    async def produce(self) -> None:
        """Send to every queue at once, and wait until the fate of each message is known."""
        with self._environment():
            producer = Producer(self.cluster.bootstrap, "sim", send_timeout_ms=SEND_TIMEOUT_MS, **self._options)
        async with producer:
            await asyncio.gather(*(self._produce(producer, queue_id) for queue_id in range(len(self.histories))))

    async def _produce(self, producer: Producer, queue_id: int) -> None:
        waiting = []
        for number in range(self._messages):
            waiting.append(asyncio.ensure_future(self._send(producer, queue_id, AppendId(f"p{queue_id}", number))))
            if self._random.random() < 0.7:
                await asyncio.sleep(self._random.random() * 0.02)
        await asyncio.gather(*waiting)

    async def _send(self, producer: Producer, queue_id: int, identity: AppendId) -> None:
        loop = self.cluster.loop
        invoked, outcome, offset = loop.now_s, Outcome.ACKED, -1
        try:
            result = await producer.send(Message(self.topic, encode_id(identity)), queue_id=queue_id)
            offset = result.queue_offset
            self.acknowledged += 1
            self._worth.acknowledged(queue_id, offset, encode_id(identity))
        except DledgerError as error:
            outcome = Outcome.UNKNOWN if error.outcome_unknown else Outcome.FAILED
        self.histories[queue_id].appends.append(Append(identity, invoked, loop.now_s, outcome, offset))

    # Reading while faults strike

    def stop_reading(self) -> None:
        self._reading, self._over = False, True

    async def read_along(self) -> None:
        """Follow every queue from its start on whichever replica answers: what was read once must stay, without gaps and repeats."""
        if not self._reading:
            return
        with self._environment():
            consumer = PullConsumer(self.cluster.bootstrap, read_from="any")
        async with consumer:
            await asyncio.gather(*(self._follow(consumer, queue_id) for queue_id in range(len(self.histories))))

    async def _follow(self, consumer: PullConsumer, queue_id: int) -> None:
        offset, polls = 0, self.histories[queue_id].polls
        while self._reading:
            try:
                messages = await consumer.fetch(self.topic, queue_id, offset, 100)
            except DledgerError as error:
                self.cluster.trace.note("read", f"queue {queue_id}", error.code)
                messages = []
            if messages:
                seen = tuple((message.queue_offset, decode_id(message.body)) for message in messages)
                polls.append(Poll(f"c{queue_id}", "any", self.cluster.loop.now_s, seen))
                offset = messages[-1].queue_offset + 1
                self.read += len(messages)
            await asyncio.sleep(0.02 + self._random.random() * 0.1)

    async def ask_read_indexes(self) -> None:
        """Ask nodes for linearizable read indexes: none may be older than what was committed anywhere before it was asked."""
        cluster = self.cluster
        while self._reading:
            await asyncio.sleep(0.02 + self._random.random() * 0.1)
            host = self._random.choice(cluster.hosts_of(self.group))
            if host.process is not None and host.node is not None and cluster.is_up(host):
                cluster.loop.spawn(host.process, self._ask_read_index(host.node_id, host.node.raft), "read index")

    async def _ask_read_index(self, node_id: str, raft: RaftNode) -> None:
        invariants = self.cluster.invariants_of(node_id)
        committed = len(invariants.committed) - 1
        try:
            index = await raft.read_barrier(1.0)
        except DledgerError:
            return
        invariants.check_read_index(node_id, index, committed)

    # Offsets of a consumer group

    async def commit_along(self, number: int) -> None:
        """One of several clients that commit rising offsets of one group and read them back."""
        draw = random.Random(self.cluster.random.getrandbits(64))
        with use_environment(self.committers[number][1], self._clock, draw):
            consumer = PullConsumer(self.cluster.bootstrap, group=self._consumers, timeout_ms=3000)
        async with consumer:
            while not self._over:
                await self._call_for_offsets(consumer, is_commit=draw.random() < 0.4)
                await asyncio.sleep(draw.random() * 0.1)

    async def _call_for_offsets(self, consumer: PullConsumer, *, is_commit: bool) -> None:
        loop, outcome, offset = self.cluster.loop, Outcome.ACKED, 0
        if is_commit:
            self._committed += 1
            offset = self._committed
        invoked = loop.now_s
        try:
            if is_commit:
                await consumer.commit({(self.topic, 0): offset})
            else:
                offset = next(iter((await consumer.committed(self.topic)).values()), 0)
        except DledgerError as error:
            outcome = Outcome.UNKNOWN if error.outcome_unknown else Outcome.FAILED
            self.cluster.trace.note("offsets", self._consumers, error.code)
        self.offset_calls.append(OffsetCall(is_commit, offset, invoked, loop.now_s, outcome))

    # The end

    def judge(self) -> None:
        """Leave the acknowledgements that bind the newest lineage, and that no loss of power may have taken (``ASYNC_FLUSH``)."""
        for queue_id, history in enumerate(self.histories):
            self._worth.judge(queue_id, history, [encode_id(append.id) for append in history.appends])
            if (loss := self.cluster.groups[self.group].async_loss) is not None:
                loss.forgive(history)

    async def drain(self, replicas: Sequence[str]) -> None:
        """Read every queue whole from every replica; all is well again, so nothing may stand in the way."""
        try:
            await self._drain(replicas)
        except DledgerError as error:
            raise LivenessError(f"not everything can be read, long after everything was healed: {error!r}") from error

    async def _drain(self, replicas: Sequence[str]) -> None:
        for node_id in replicas:
            with self._environment():
                consumer = PullConsumer(self.cluster.bootstrap, replica=node_id)
            async with consumer:
                for queue_id, history in enumerate(self.histories):
                    history.drained[node_id] = await self._read_queue(consumer, queue_id)

    async def _read_queue(self, consumer: PullConsumer, queue_id: int) -> list[tuple[int, AppendId]]:
        """Everything of a queue; what is deleted at its head, also while it is read, as the archive has it."""
        first = 0
        while True:
            try:
                kept = await self._read_from(consumer, queue_id, first)
                break
            except OffsetOutOfRangeError as error:
                if self.cluster.groups[self.group].invariants.archive is None or error.min_offset <= first:
                    raise
                first = error.min_offset
        archive = self.cluster.groups[self.group].invariants.archive
        deleted = archive.before(self.topic, queue_id, first) if archive is not None and first else []
        return [(offset, decode_id(body)) for offset, body in deleted] + kept

    async def _read_from(self, consumer: PullConsumer, queue_id: int, start: int) -> list[tuple[int, AppendId]]:
        found: list[tuple[int, AppendId]] = []
        while True:
            offset = found[-1][0] + 1 if found else start
            messages = await consumer.fetch(self.topic, queue_id, offset, 1000)
            if not messages:
                return found
            found += [(message.queue_offset, decode_id(message.body)) for message in messages]


def encode_id(identity: AppendId) -> bytes:
    return f"{identity.producer}/{identity.sequence}".encode()


def decode_id(body: bytes) -> AppendId:
    producer, _, sequence = body.decode().partition("/")
    return AppendId(producer, int(sequence))
