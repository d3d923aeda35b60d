"""Topics deleted and made anew, again and again, under everybody who works with them, while nodes and consumers die or stand still.

Owns the topics' lives and what is known of each message.  A life ends when somebody begins to delete the topic; the next one begins
there, so that what was sent while a deletion was on its way may be in either.  The rules:

    what belongs to an earlier life, whether stored, waiting for its time or in an open transaction, is not in the topic made anew
    what was acknowledged within the last life is in it once, and every group was given it
    no message is in a topic twice, and every replica says the same of everything that is kept under a topic's name
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from dledger_client.aio import Action, Admin, Message, Producer, PullConsumer, TransactionOutcome, TransactionProducer, TransactionState
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire.errors import DledgerError, TopicExistsError, TopicNotFoundError
from store.store import MessageStore
from tests.sim import messaging_account as account
from tests.sim.struck import StruckWorld
from tests.unit.client.push_rig import Group, Seen
from tests.unit.client.sim_rig import Rig, run_world

LIVES = 3  # of each topic
QUEUES = 2
FAULTS = 5
LIMIT_S = 600.0
LATEST_MS = 3000  # of a delivery time
SETTINGS = "broker: {transactionTimeOut: 1s, transactionCheckInterval: 500ms, transactionCheckMax: 1000, messageDelayLevel: 1s 2s 1s 2s}\n"


@dataclass(slots=True)
class LivingTopic:
    """``belongs``: body -> the life in which it was taken for certain; ``kept``: those that must be found while that life lasts."""

    name: str
    life: int = 0
    stands: bool = True  # made, and nobody has begun to delete it
    sent: set[bytes] = field(default_factory=set)
    belongs: dict[bytes, int] = field(default_factory=dict)
    kept: set[bytes] = field(default_factory=set)

    @property
    def moment(self) -> tuple[int, bool]:
        """Equal before and after something that happened within one life."""
        return self.life, self.stands

    def taken(self, body: bytes, since: tuple[int, bool], *, keep: bool = True) -> None:
        """A message that was sent at ``since`` is stored, in whatever form."""
        if since == (self.life, True) == self.moment:
            self.belongs[body] = self.life
            if keep:
                self.kept.add(body)

    @property
    def owed(self) -> set[bytes]:
        """What must be found in the life there is now."""
        return {body for body in self.kept if self.belongs[body] == self.life}

    def check(self, found: Sequence[bytes], life: int) -> None:
        """Nothing is there that was not sent, nothing of an earlier life, and nothing twice."""
        counts = Counter(found)
        assert set(counts) <= self.sent, f"{self.name}: nobody sent {set(counts) - self.sent}"
        old = {body for body in counts if self.belongs.get(body, life) < life}
        assert not old, f"{self.name}: of an earlier life: {sorted(old)}"
        twice = [body for body, count in counts.items() if count > 1]
        assert not twice, f"{self.name}: stored twice: {twice}"


class World(StruckWorld):
    """One run: two topics, each with producers of every kind; groups that read them."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.topics = {name: LivingTopic(name) for name in ("one", "two")}
        self.sharers = Group(rig, "one", "sharers", "10.0.3", read_from="any")
        self.orderlies = Group(rig, "two", "orderlies", "10.0.4", orderly=True, suspend_current_queue_time_ms=50)
        self.latecomers = Group(rig, "two", "latecomers", "10.0.6", consume_from_where="last")
        self.groups = [self.sharers, self.orderlies]
        self.looks = 0  # at whole topics, meanwhile
        self.pulled: set[bytes] = set()  # of the first topic, by a group without push consumers
        self._numbers = 0
        self._remade = asyncio.Event()
        self._healed = asyncio.Event()

    async def run(self) -> None:
        for name in self.topics:
            await self.rig.topic(name, queues=QUEUES)
        for group in self.groups:
            await self.join(group)
            await self.join(group)
            group.answers = [self.draw.choice([Action.COMMIT, Action.COMMIT, Action.RECONSUME_LATER]) for _ in range(60)]
        await self.join(self.latecomers)
        await self.until(lambda: len(self.latecomers.share(next(iter(self.latecomers.members)))) == QUEUES, "latecomers have not begun")
        remaking = asyncio.gather(*map(self._remake, self.topics.values()))
        work = [self._produce, self._delay, self._transact, self._look]
        working = asyncio.gather(*(each(topic) for each in work for topic in self.topics.values()))
        pulling = asyncio.create_task(self._pull(self.topics["one"]), name="pull")
        await asyncio.gather(remaking, self.strike(FAULTS))
        self._healed.set()
        await asyncio.sleep(2)  # the last life gets some, too
        self._remade.set()
        await working
        await self._settle()
        pulling.cancel()
        await asyncio.wait([pulling])
        await self._account()

    # Topics

    async def _remake(self, topic: LivingTopic) -> None:
        async with self.rig.admin() as admin:
            for _ in range(LIVES - 1):
                await asyncio.sleep(0.5 + self.draw.random() * 2)
                topic.life, topic.stands = topic.life + 1, False
                await self._until_done(lambda: admin.delete_topic(topic.name), TopicNotFoundError)
                await asyncio.sleep(self.draw.choice([0.0, 0.0, self.draw.random()]))
                await self._until_done(lambda: self._create(admin, topic.name), TopicExistsError)
                topic.stands = True
                self.faults.append(f"{topic.name} made anew")

    async def _create(self, admin: Admin, name: str) -> None:
        await admin.create_topic(name, queues=QUEUES)

    async def _until_done(self, change: Callable[[], Awaitable[None]], done: type[DledgerError]) -> None:
        while True:
            try:
                return await change()
            except done:
                return
            except DledgerError:
                await asyncio.sleep(0.1)

    # Producers: each message has a body of its own

    def _body(self, topic: LivingTopic, kind: str) -> bytes:
        self._numbers += 1
        body = f"{topic.name}/{kind}/{self._numbers}".encode()
        topic.sent.add(body)
        return body

    async def _while_remade(self, send: Callable[[], Awaitable[None]], pause_s: float) -> None:
        """Send one after the other without waiting for answers, then wait for all of those."""
        sends = []
        while not self._remade.is_set():
            sends.append(asyncio.ensure_future(send()))
            await asyncio.sleep(self.draw.random() * pause_s)
        await asyncio.gather(*sends)

    async def _produce(self, topic: LivingTopic) -> None:
        async with self.rig.producer(send_timeout_ms=20_000) as producer:
            await self._while_remade(lambda: self._send(producer, topic, Message(topic.name, self._body(topic, "plain"))), 0.3)

    async def _delay(self, topic: LivingTopic) -> None:
        def message() -> Message:
            if self.draw.random() < 0.5:
                return Message(topic.name, self._body(topic, "level"), delay_level=self.draw.randint(1, 4))
            now_ms = self.rig.cluster.hosts["n0"].clock.wall_ms()
            return Message(topic.name, self._body(topic, "timed"), deliver_at_ms=now_ms + self.draw.randrange(LATEST_MS))

        async with self.rig.producer(send_timeout_ms=20_000) as producer:
            await self._while_remade(lambda: self._send(producer, topic, message()), 0.5)

    async def _send(self, producer: Producer, topic: LivingTopic, message: Message) -> None:
        since = topic.moment
        with contextlib.suppress(DledgerError):
            await producer.send(message)
            topic.taken(message.body, since)

    async def _transact(self, topic: LivingTopic) -> None:
        async with self.rig.transactions(lambda _message: TransactionState.COMMIT, send_timeout_ms=20_000) as producer:
            await self._while_remade(lambda: self._send_in_transaction(producer, topic), 0.6)
            await self._healed.wait()
            await asyncio.sleep(3)  # whoever is asked answers

    async def _send_in_transaction(self, producer: TransactionProducer, topic: LivingTopic) -> None:
        body, since = self._body(topic, "paid"), topic.moment

        async def local(_message: Message, _argument: object) -> TransactionState:
            topic.taken(body, since, keep=False)
            await asyncio.sleep(self.draw.random())
            return TransactionState.COMMIT

        with contextlib.suppress(DledgerError):
            result = await producer.send_in_transaction(Message(topic.name, body), local)
            if result.outcome is TransactionOutcome.COMMITTED:
                topic.taken(body, since)

    # A group of a pull consumer

    async def _pull(self, topic: LivingTopic) -> None:
        async with self.rig.consumer("pullers", read_from="any") as consumer:
            while True:
                with contextlib.suppress(DledgerError):
                    held, committed = await consumer.offsets(topic.name), await consumer.committed(topic.name)
                    await self._read_on(consumer, topic, {place: committed.get(place, held[place].min_offset) for place in held})
                await asyncio.sleep(0.1)

    async def _read_on(self, consumer: PullConsumer, topic: LivingTopic, positions: dict[tuple[str, int], int]) -> None:
        while True:
            await asyncio.sleep(5 * self.draw.random())  # else it is always there when a topic made anew is still short
            for (group, queue_id), offset in positions.items():
                messages = await consumer.fetch(topic.name, queue_id, offset, 5, replica_group=group, wait_ms=50)
                if messages:
                    self.pulled.update(message.body for message in messages)
                    positions[group, queue_id] = messages[-1].queue_offset + 1
                    await consumer.commit({(topic.name, queue_id): positions[group, queue_id]}, replica_group=group)

    # Looks at whole topics

    async def _look(self, topic: LivingTopic) -> None:
        async with self.rig.consumer(read_ahead=False) as consumer:
            while not self._remade.is_set():
                await asyncio.sleep(self.draw.random())
                since = topic.moment
                with contextlib.suppress(DledgerError):
                    found = await self._stored(consumer, topic)
                    if since == (topic.life, True) == topic.moment:
                        topic.check([message.body for message in found], topic.life)
                        self.looks += 1

    async def _stored(self, consumer: PullConsumer, topic: LivingTopic) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for queue_id in range(QUEUES):
            found += await consumer.fetch(topic.name, queue_id, 0, 10_000, linearizable=True)
        return found

    # The end

    async def _settle(self) -> None:
        await self.until(lambda: self.rig.cluster.master() is not None, "no master")
        await asyncio.sleep(LATEST_MS / 1000 + 2)  # what waits is due
        for group in (*self.groups, self.latecomers):
            topic = self.topics[group.topic]
            await self.until(lambda group=group, topic=topic: topic.owed <= set(group.bodies()), f"{group.name} miss messages")
        owed = self.topics["one"].owed
        await self.until(lambda: owed <= self.pulled, "pullers miss messages")
        await self.until(lambda: not account.refused_for_good(_of(self.sharers.seen, owed)), "refused, and never again")
        for group in (*self.groups, self.latecomers):
            await group.stop()

    def _stores(self) -> list[MessageStore]:
        return [host.node.store for host in self.rig.cluster.hosts.values() if host.node is not None]

    async def _account(self) -> None:
        async with self.rig.consumer(read_ahead=False) as consumer:
            for topic in self.topics.values():
                found = [message.body for message in await self._stored(consumer, topic)]
                topic.check(found, topic.life)
                assert topic.owed <= set(found), f"{topic.name}: acknowledged and lost: {sorted(topic.owed - set(found))}"
        account.check_epochs(self.orderlies.seen)
        stores = self._stores()  # transactions of earlier lives are still checked, from time to time
        await self.until(lambda: len({store.applied_index for store in stores}) == 1, "replicas do not come together")
        for part in ("topics", "consumer_offsets", "queue_locks", "send_backs", "offset_history", "transactions", "timers", "delays"):
            assert len({str(getattr(store, part).dump()) for store in stores}) == 1, f"replicas differ in their {part}"
        gc.collect()  # errors of tasks that nobody looked at are told when those are freed


def _of(seen: Sequence[Seen], bodies: set[bytes]) -> list[Seen]:
    return [each for each in seen if each.body in bodies]


def run(seed: int, *, readable: bool = False, sink: Callable[[str], None] | None = None) -> World:
    """One run; any violation raises, with the faults that were carried out."""
    rig = Rig(seed, settings=SETTINGS, readable=readable)
    world = World(rig)
    run_world(rig, "remaking", world, LIMIT_S, sink)
    return world
