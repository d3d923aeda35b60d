"""Everything a broker offers at once, in virtual time: producers and groups of every kind, while nodes and consumers die or stand still.

The twin of ``tests/cluster/world.py``.  Owns the actors; ``struck.py`` has what strikes them, ``messaging_account.py`` the rules.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from tempfile import TemporaryDirectory

import numpy as np

from dledger_client.aio import Action, Message, TransactionProducer, TransactionState
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire.errors import DledgerError
from dledger_wire.frames.frame import decode_frame
from dledger_wire.frames.frames import frame_positions
from dledger_wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC
from tests.sim import messaging_account as account
from tests.sim.struck import StruckWorld
from tests.unit.client.push_rig import Group
from tests.unit.client.sim_rig import Rig, run_world, until

MESSAGES = 30
FAULTS = 7
LIMIT_S = 600.0
DELAY_MS = 1000  # of level 1
QUEUES = {"plain": 3, "ordered": 3, "delayed": 2, "paid": 2}
SETTINGS = "broker: {transactionTimeOut: 1s, transactionCheckInterval: 500ms, transactionCheckMax: 1000, messageDelayLevel: 1s 2s 1s 2s}\n"


class World(StruckWorld):
    """One run.  ``sent``: topic -> bodies; ``acknowledged``: those that a producer was told are stored."""

    def __init__(self, rig: Rig, folder: str) -> None:
        super().__init__(rig)
        self.sent: dict[str, set[bytes]] = {topic: set() for topic in QUEUES}
        self.acknowledged: dict[str, set[bytes]] = {topic: set() for topic in QUEUES}
        self.workers = Group(rig, "plain", "workers", "10.0.3")
        self.orderlies = Group(rig, "ordered", "orderlies", "10.0.4", orderly=True, suspend_current_queue_time_ms=50)
        self.watchers = Group(rig, "plain", "watchers", "10.0.6", broadcast=True, offset_folder=folder)
        self.groups = [self.workers, self.orderlies, self.watchers]
        self._healed = asyncio.Event()

    async def run(self) -> None:
        for topic, queues in QUEUES.items():
            await self.rig.topic(topic, queues=queues)
        for group in self.groups:
            group.pause_s = 0.002
            await self.join(group)
            await self.join(group)
        for group in (self.workers, self.orderlies):
            group.answers = [self.draw.choice([Action.COMMIT, Action.COMMIT, Action.RECONSUME_LATER, None]) for _ in range(40)]
        await asyncio.gather(self._produce("plain"), self._produce("ordered"), self._produce("delayed"), self._pay(), self._strike())
        await self._settle()
        await self._account()

    # Producers

    async def _produce(self, topic: str) -> None:
        async with self.rig.producer(send_timeout_ms=60_000) as producer:
            sends = []
            for number in range(MESSAGES):
                message, key = self._message(topic, number)
                sends.append(asyncio.ensure_future(self._send(producer.send(message, queue_key=key), topic, message.body)))
                await asyncio.sleep(self.draw.random() * 0.15)
            await asyncio.gather(*sends)

    def _message(self, topic: str, number: int) -> tuple[Message, str | None]:
        key = f"k{number % 4}"
        if topic == "ordered":
            return Message(topic, b"%s:%d" % (key.encode(), number)), key
        if topic == "plain":
            return Message(topic, b"%d" % number), None
        if number % 3 == 0:
            return Message(topic, b"%d" % number, delay_level=1), None
        now_ms = self.rig.cluster.hosts["n0"].clock.wall_ms()
        return Message(topic, b"%d" % number, deliver_at_ms=now_ms + self.draw.randrange(4000)), None

    async def _send(self, sending: object, topic: str, body: bytes) -> None:
        self.sent[topic].add(body)
        try:
            await sending
        except DledgerError as error:
            if not error.outcome_unknown:
                raise
        else:
            self.acknowledged[topic].add(body)

    # Transactions: every third is committed, rolled back, or left to the check, which commits it

    async def _pay(self) -> None:
        async with self.rig.transactions(self._check, send_timeout_ms=60_000) as producer:
            sends = []
            for number in range(MESSAGES):
                sends.append(asyncio.ensure_future(self._send_in_transaction(producer, b"%d" % number)))
                await asyncio.sleep(self.draw.random() * 0.15)
            await asyncio.gather(*sends)
            await self._healed.wait()
            await until(lambda: not self._open_transactions())

    def _check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK if int(message.body) % 3 == 1 else TransactionState.COMMIT

    async def _send_in_transaction(self, producer: TransactionProducer, body: bytes) -> None:
        states = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)
        await self._send(producer.send_in_transaction(Message("paid", body), lambda *_: states[int(body) % 3]), "paid", body)

    def _open_transactions(self) -> list[int]:
        """Of the newest state: a master that was cut off does not know of it."""
        nodes = [host.node for host in self.rig.cluster.running() if host.node is not None and self.rig.cluster.is_up(host)]
        if len(nodes) < len(self.rig.cluster.hosts) or len({node.store.applied_index for node in nodes}) > 1:
            return [-1]
        high = nodes[0].store.queues.max_offset((HALF_TOPIC, 0))
        return list(nodes[0].store.transactions.open_from(0, high))

    # The end

    async def _strike(self) -> None:
        await self.strike(FAULTS)
        self._healed.set()

    async def _settle(self) -> None:
        """Wait until everybody was given everything, and what was refused came again."""
        master = self.rig.cluster.master
        await self.until(lambda: master() is not None, "no master")
        for group in (self.workers, self.orderlies):
            await self.until(lambda group=group: self.acknowledged[group.topic] <= set(group.bodies()), f"{group.name} miss messages")
            await self.until(lambda group=group: not account.refused_for_good(group.seen), f"refused by {group.name}, never again")
        for name in list(self.watchers.members):
            await self.until(lambda name=name: self.acknowledged["plain"] <= self._watched_by(name), f"{name} missed a broadcast")
        for group in self.groups:
            await group.stop()
        await asyncio.sleep(5)  # the last delayed ones were due within 4 s

    def _watched_by(self, name: str) -> set[bytes]:
        """What this member of the broadcast group was given, in all its lives."""
        return {seen.body for seen in self.watchers.seen if seen.member == name}

    async def _account(self) -> None:
        stored = {topic: await self._stored(topic) for topic in QUEUES}
        for topic, found in stored.items():
            account.check_once(topic, found, self.sent[topic])
            if topic != "paid":
                account.check_none_lost(topic, found, self.acknowledged[topic])
        account.check_paid([message.body for message in stored["paid"]], self.acknowledged["paid"])
        account.check_none_early(stored["delayed"], await self._waiting_since(), DELAY_MS)
        account.check_order(self.orderlies.seen)
        async with self.rig.consumer() as consumer:
            assert await consumer.fetch(CHECK_MAX_TIME_TOPIC, 0, 0, 10) == [], "a transaction was parked, though its producer answers"
        gc.collect()  # errors of tasks that nobody looked at are told when those are freed

    async def _stored(self, topic: str) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        async with self.rig.consumer() as consumer:
            for queue_id in range(QUEUES[topic]):
                found += await consumer.fetch(topic, queue_id, 0, 10_000)
        return found

    async def _waiting_since(self) -> dict[bytes, int]:
        """When each message of delay level 1 was stored to wait, by the clock of the master that stored it."""
        node = self.rig.cluster.hosts[self.rig.master].node
        assert node is not None
        chunk = await node.store.read(SCHEDULE_TOPIC, 0, 0, max_bytes=1 << 20, for_service=True)
        data, places = b"".join(chunk.frames), frame_positions(np.frombuffer(chunk.sizes, ">u4"))
        waiting = [decode_frame(data, place) for place in places.tolist()]
        return {frame.body: frame.store_timestamp for frame in waiting}


def run(seed: int, *, readable: bool = False, sink: Callable[[str], None] | None = None) -> World:
    """One run; any violation raises, with the faults that were carried out."""
    rig = Rig(seed, settings=SETTINGS, readable=readable)
    with TemporaryDirectory() as folder:
        world = World(rig, folder)
        run_world(rig, "messaging", world, LIMIT_S, sink)
    return world
