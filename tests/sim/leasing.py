"""Messages leased and acknowledged one by one, by many consumers of a queue, while masters die, are cut off and stand still.

Owns the consumers and what is known of each message.  Consumers acknowledge, forget, give back, keep longer and bury what
they got, and repeat calls whose answers were lost.  The rules, for each group:

    a message whose acknowledgement was answered is not delivered with a later lease, and no two leases of it count
    a lease begins after the one before has ended, unless that was changed; each delivery counts one attempt more
    what was sent is delivered until it is acknowledged, and then the group's positions are the ends of the queues
    in order, a message is delivered when those of its message group before it were acknowledged
    every replica has the same leases
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from dledger_client.aio import Message
from dledger_client.cluster.router import Router
from dledger_wire._pb import pop_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.frames.frame import Frame, decode_frame
from dledger_wire.names import dlq_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import UnaryMethod
from tests.sim.struck import StruckWorld
from tests.unit.client.sim_rig import Rig, run_world

QUEUES = 2
MESSAGES = 60
CONSUMERS = 3  # of each group
FAULTS = 5
LIMIT_S = 400.0
KEYS = "abcd"

Place = tuple[int, int]  # queue, offset
AnswerT = TypeVar("AnswerT", pop_pb2.ReceiveResponse, pop_pb2.ReceiptsResponse)


@dataclass(slots=True)
class Delivery:
    """A message as a consumer got it."""

    lease: pop_pb2.Lease
    frame: Frame
    begun_ms: int
    until_ms: int
    changed: bool = False  # its consumer asked for another end

    @property
    def place(self) -> Place:
        return self.lease.queue_id, self.lease.offset

    @property
    def receipt(self) -> pop_pb2.Receipt:
        return pop_pb2.Receipt(queue_id=self.lease.queue_id, offset=self.lease.offset, lease=self.lease.lease)


@dataclass(slots=True)
class PopGroup:
    """``done``: the lease whose acknowledgement, or burial, was answered; ``tried``: messages of which one was asked for."""

    name: str
    fifo: bool
    given: dict[Place, dict[int, Delivery]] = field(default_factory=lambda: defaultdict(dict))
    bodies: set[bytes] = field(default_factory=set)
    done: dict[Place, int] = field(default_factory=dict)
    tried: set[Place] = field(default_factory=set)
    buried: set[bytes] = field(default_factory=set)
    to_bury: set[bytes] = field(default_factory=set)

    def deliver(self, got: Delivery) -> None:
        """Check a delivery against all that were before."""
        place, lease = got.place, got.lease.lease
        assert lease <= self.done.get(place, lease), f"{self.name}: {place} came again after it was acknowledged"
        if self.fifo:
            self._check_order(got)
        self.given[place][lease] = got
        self.bodies.add(got.frame.body)

    def _check_order(self, got: Delivery) -> None:
        key, (queue_id, offset) = got.frame.properties["__SHARDINGKEY"], got.place
        first = not self.given[got.place]
        for other, leases in self.given.items():
            if other[0] == queue_id and leases and next(iter(leases.values())).frame.properties["__SHARDINGKEY"] == key:
                assert other[1] >= offset or other in self.tried, f"{self.name}: {got.place} overtook {other} of message group {key}"
                assert not first or other[1] <= offset, f"{self.name}: {got.place} came after {other} of message group {key}"

    def settled(self, got: Delivery) -> None:
        """An acknowledgement or burial was answered."""
        known = self.done.setdefault(got.place, got.lease.lease)
        assert known == got.lease.lease, f"{self.name}: two leases of {got.place} counted"
        assert max(self.given[got.place]) == known, f"{self.name}: {got.place} was delivered again before it was acknowledged"

    def check(self) -> None:
        for place, leases in self.given.items():
            ordered = [leases[lease] for lease in sorted(leases)]
            for before, after in pairwise(ordered):
                assert after.lease.attempt > before.lease.attempt, f"{self.name}: attempts of {place}"
                if not before.changed:
                    assert after.begun_ms >= before.until_ms, f"{self.name}: two leases of {place} at a time"


class World(StruckWorld):
    """One run: one topic, a group of each kind."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.pops = [PopGroup("any", fifo=False), PopGroup("ordered", fifo=True)]
        self.sent: set[bytes] = set()
        self.tried: set[bytes] = set()
        self._router: Router = rig.router()
        self._healed = False

    async def run(self) -> None:
        await self.rig.topic("t", queues=QUEUES)
        consuming = asyncio.gather(*(self._consume(group) for group in self.pops for _ in range(CONSUMERS)))
        await asyncio.gather(self._produce(), self._strike_nodes())
        self._healed = True
        await consuming
        await self._account()
        await self._router.close()

    async def _strike_nodes(self) -> None:
        for _ in range(FAULTS):
            await asyncio.sleep(0.2 + self.draw.random())
            await self.draw.choice((self._kill_node, self._isolate_node, self._pause_node))()
        self.heal()

    async def _produce(self) -> None:
        async with self.rig.producer(send_timeout_ms=20_000) as producer:
            for number in range(MESSAGES):
                body = b"%d" % number
                self.tried.add(body)
                with contextlib.suppress(DledgerError):
                    await producer.send(Message("t", body, properties={"__SHARDINGKEY": self.draw.choice(KEYS)}), queue_id=number % QUEUES)
                    self.sent.add(body)
                await asyncio.sleep(self.draw.random() * 0.1)

    # Consumers

    async def _consume(self, group: PopGroup) -> None:
        while not (self._healed and self._has_all(group)):
            for got in await self._receive(group):
                await self._use(group, got)

    def _has_all(self, group: PopGroup) -> bool:
        done = {next(iter(group.given[place].values())).frame.body for place in group.done}
        maybe = {next(iter(group.given[place].values())).frame.body for place in group.tried}
        return self.sent <= group.bodies <= done | maybe and self._is_at_end(group)

    def _is_at_end(self, group: PopGroup) -> bool:
        master = self.rig.cluster.master()
        node = self.rig.cluster.hosts[master].node if master is not None else None
        if node is None:
            return False
        ends = [node.store.reader.bounds("t", queue_id)[1] for queue_id in range(QUEUES)]
        return [node.store.consumer_offsets.position(group.name, "t", queue_id) for queue_id in range(QUEUES)] == ends

    async def _receive(self, group: PopGroup) -> list[Delivery]:
        invisible_ms = self.draw.choice((1_000, 1_500, 3_000))
        request = pop_pb2.ReceiveRequest(
            group=group.name,
            topic="t",
            queue_ids=[self.draw.randrange(QUEUES)],
            max_messages=self.draw.choice((1, 4, 16)),
            invisible_ms=invisible_ms,
            wait_ms=self.draw.choice((0, 300)),
            fifo=group.fifo,
            max_attempts=10_000,
        )
        answer = await self._call(methods.RECEIVE, request)
        if answer is None:
            return []
        found: list[Delivery] = []
        at = 0
        for lease in answer.leases:
            frame = decode_frame(answer.payload, at)
            found.append(Delivery(lease, frame, answer.invisible_until_ms - invisible_ms, answer.invisible_until_ms))
            at += lease.size
        for got in found:
            group.deliver(got)
        if not found:
            await asyncio.sleep(0.05)
        return found

    async def _use(self, group: PopGroup, got: Delivery) -> None:
        what = "acknowledge" if self._healed else self.draw.choice(("acknowledge",) * 4 + ("forget", "back", "keep", "bury"))
        await asyncio.sleep(self.draw.random() * self.draw.choice((0.02, 0.02, 1.5)))
        given: dict[str, Any] = {"group": group.name, "topic": "t", "receipts": [got.receipt]}
        if what in ("back", "keep"):
            got.changed = True
            later_ms = 0 if what == "back" else self.draw.choice((500, 4_000))
            await self._settle(methods.CHANGE_INVISIBLE, pop_pb2.ChangeInvisibleRequest(**given, invisible_ms=later_ms))
        if what == "bury":
            group.tried.add(got.place)
            group.to_bury.add(got.frame.body)
            if await self._settle(methods.MOVE_TO_DEAD_LETTERS, pop_pb2.ReceiptsRequest(**given)):
                group.settled(got)
                group.buried.add(got.frame.body)
        elif what in ("acknowledge", "keep"):
            group.tried.add(got.place)
            if await self._settle(methods.ACKNOWLEDGE, pop_pb2.ReceiptsRequest(**given)):
                group.settled(got)

    async def _settle(self, method: UnaryMethod[Any, pop_pb2.ReceiptsResponse], request: Any) -> bool:
        """Whether the receipt counted, as far as that was answered."""
        answer = await self._call(method, request)
        return answer is not None and not answer.results[0].HasField("error")

    async def _call(self, method: UnaryMethod[Any, AnswerT], request: Any) -> AnswerT | None:
        with contextlib.suppress(DledgerError):
            deadline_ms = self._router.clock.monotonic_ms() + 2_000
            await self._router.ensure_group("g0", deadline_ms)
            return await self._router.call_leader("g0", method, request, deadline_ms=deadline_ms)
        return None

    # The end

    async def _account(self) -> None:
        for group in self.pops:
            group.check()
            assert group.bodies <= self.tried
            assert self.sent <= group.bodies, f"{group.name}: never delivered: {self.sent - group.bodies}"
            await self._account_dead_letters(group)
        nodes = [host.node for host in self.rig.cluster.hosts.values() if host.node is not None]
        await self.until(lambda: len({node.store.applied_index for node in nodes}) == 1, "replicas do not agree")
        assert len({str(node.store.pop.dump()) for node in nodes}) == 1, "replicas differ in what is leased"

    async def _account_dead_letters(self, group: PopGroup) -> None:
        found: Sequence[bytes] = []
        async with self.rig.admin() as admin, self.rig.consumer() as reader:
            if group.buried:
                await admin.update_topic(dlq_topic(group.name), perm=6)
                found = [message.body for message in await reader.fetch(dlq_topic(group.name), 0, 0, 10_000)]
        assert len(set(found)) == len(found), f"{group.name}: buried twice"
        assert not group.buried or group.buried <= set(found) <= group.to_bury, f"{group.name}: other dead letters than were buried"


def run(seed: int, *, readable: bool = False, sink: Callable[[str], None] | None = None) -> World:
    """One run; any violation raises, with the faults that were carried out."""
    rig = Rig(seed, readable=readable)
    world = World(rig)
    run_world(rig, "leasing", world, LIMIT_S, sink)
    return world
