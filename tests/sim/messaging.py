"""Everything a broker offers at once, in virtual time: producers of every kind, groups of every kind, and deaths of nodes and consumers.

The twin of ``tests/cluster/world.py``.  Owns the actors, the faults drawn from the seed, and the account at the end.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable

from dledger_client.aio import Action, Message, TransactionProducer, TransactionState
from dledger_client.received import ReceivedMessage
from dledger_wire.errors import DledgerError
from dledger_wire.names import HALF_TOPIC
from tests.unit.client.push_rig import Group, Seen
from tests.unit.client.sim_rig import Rig, until

MESSAGES = 30
FAULTS = 6
LIMIT_S = 600.0
QUEUES = {"plain": 3, "ordered": 3, "delayed": 2, "paid": 2}
SETTINGS = "broker: {transactionTimeOut: 1s, transactionCheckInterval: 500ms, transactionCheckMax: 1000}\n"


class World:
    """One run.  ``acknowledged``: topic -> bodies that a producer was told are stored."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.draw = rig.cluster.random
        self.acknowledged: dict[str, set[bytes]] = {topic: set() for topic in QUEUES}
        self.workers = Group(rig, "plain", "workers", "10.0.3")
        self.orderlies = Group(rig, "ordered", "orderlies", "10.0.4", orderly=True, suspend_current_queue_time_ms=50)
        self.groups = [self.workers, self.orderlies]
        self.faults: list[str] = []
        self._names = 0
        self._healed = asyncio.Event()

    async def run(self) -> None:
        for topic, queues in QUEUES.items():
            await self.rig.topic(topic, queues=queues)
        for group in self.groups:
            group.pause_s = 0.002
            await self._join(group)
            await self._join(group)
        for group in self.groups:
            group.answers = [self.draw.choice([Action.COMMIT, Action.COMMIT, Action.RECONSUME_LATER, None]) for _ in range(40)]
        await asyncio.gather(self._produce("plain"), self._produce("ordered"), self._produce("delayed"), self._pay(), self._strike())
        await self._settle()
        await self._account()

    async def _join(self, group: Group) -> None:
        self._names += 1
        await group.start(f"c{self._names}")

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
        try:
            await sending  # type: ignore[misc]
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
            await until(lambda: self.rig.cluster.master() is not None and not self._open_transactions())

    def _check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK if int(message.body) % 3 == 1 else TransactionState.COMMIT

    async def _send_in_transaction(self, producer: TransactionProducer, body: bytes) -> None:
        states = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)
        await self._send(producer.send_in_transaction(Message("paid", body), lambda *_: states[int(body) % 3]), "paid", body)

    def _open_transactions(self) -> list[int]:
        node = self.rig.cluster.hosts[self.rig.master].node
        high = node.store.queues.max_offset((HALF_TOPIC, 0)) if node is not None else 0
        return list(node.store.transactions.open_from(0, high)) if node is not None else [0]

    # Faults

    async def _strike(self) -> None:
        steps: list[Callable[[], object]] = [self._kill_node, self._isolate_node, self._kill_member, self._isolate_member]
        for _ in range(FAULTS):
            await asyncio.sleep(0.2 + self.draw.random())
            await self.draw.choice(steps)()  # type: ignore[misc]
        self._heal()
        self._healed.set()

    async def _kill_node(self) -> None:
        cluster = self.rig.cluster
        victim = cluster.master() if self.draw.random() < 0.7 else self.draw.choice(list(cluster.hosts))
        if victim is None or cluster.hosts[victim].process is None:
            return
        self.faults.append(f"kill {victim}")
        cluster.kill(victim)
        await asyncio.sleep(self.draw.random() * 2)
        cluster.ensure_running(victim)

    async def _isolate_node(self) -> None:
        victim = self.rig.cluster.master()
        if victim is not None:
            self.faults.append(f"isolate {victim}")
            self.rig.isolate(victim)
            await asyncio.sleep(self.draw.random() * 3)
            self.rig.cluster.net.heal_all()

    async def _kill_member(self) -> None:
        group = self.draw.choice(self.groups)
        victim = self.draw.choice(list(group.members))
        self.faults.append(f"kill {group.name} {victim}")
        group.kill(victim, silent=self.draw.random() < 0.5)
        await asyncio.sleep(self.draw.random() * 3)
        await self._join(group)

    async def _isolate_member(self) -> None:
        group = self.draw.choice(self.groups)
        victim = self.draw.choice(list(group.members))
        self.faults.append(f"isolate {group.name} {victim}")
        ip = group.members[victim].process.host
        for host in self.rig.cluster.hosts.values():
            self.rig.cluster.net.cut(ip, host.ip)
            self.rig.cluster.net.cut(host.ip, ip)
        await asyncio.sleep(self.draw.random() * 4)
        self.rig.cluster.net.heal_all()

    def _heal(self) -> None:
        self.rig.cluster.net.heal_all()
        for node_id in self.rig.cluster.hosts:
            self.rig.cluster.ensure_running(node_id)

    # The end

    async def _settle(self) -> None:
        cluster = self.rig.cluster
        await until(lambda: cluster.master() is not None)
        for group in self.groups:
            await until(lambda group=group: self.acknowledged[group.topic] <= set(group.bodies()))  # type: ignore[misc]
            await group.stop()

    async def _account(self) -> None:
        for topic in ("plain", "ordered"):
            counts = Counter(await self._stored(topic))
            assert self.acknowledged[topic] <= set(counts), f"{topic}: acknowledged and lost"
            assert max(counts.values()) == 1, f"{topic}: stored twice"
        paid = await self._stored("paid")
        assert len(paid) == len(set(paid)), "a transaction was published twice"
        assert {body for body in self.acknowledged["paid"] if int(body) % 3 != 1} <= set(paid), "a committed transaction was lost"
        assert [body for body in paid if int(body) % 3 == 1] == [], "a transaction that was rolled back was published"
        await asyncio.sleep(5)  # the last ones were due within 4 s
        found = await self._stored("delayed")
        assert self.acknowledged["delayed"] <= set(found), "delayed: acknowledged and not delivered"
        assert len(found) == len(set(found)), "delivered twice"
        self._check_order()

    async def _stored(self, topic: str) -> list[bytes]:
        found: list[bytes] = []
        async with self.rig.consumer() as consumer:
            for queue_id in range(QUEUES[topic]):
                found += [message.body for message in await consumer.fetch(topic, queue_id, 0, 10_000)]
        return found

    def _check_order(self) -> None:
        """Owners of a queue take turns (epochs only grow), and what each was given rises but for repeats in place."""
        by_queue: dict[int, list[Seen]] = defaultdict(list)
        for seen in self.orderlies.seen:
            by_queue[seen.queue_id].append(seen)
        for queue_id, all_seen in by_queue.items():
            epochs = [seen.epoch for seen in all_seen]
            assert epochs == sorted(epochs), f"queue {queue_id}: an older owner after a newer one"
            first_times = list(dict.fromkeys(seen.body for seen in all_seen))
            for key in {body.partition(b":")[0] for body in first_times}:
                numbers = [int(body.partition(b":")[2]) for body in first_times if body.startswith(key + b":")]
                assert numbers == sorted(numbers), f"messages of {key!r} out of order"


def run(seed: int) -> World:
    """One run; any violation raises, with the faults that were carried out."""
    rig = Rig(seed, settings=SETTINGS)
    world = World(rig)
    try:
        rig.run(lambda _rig: world.run(), limit_s=LIMIT_S)
    except BaseException as error:
        error.add_note(f"seed {seed}; faults: {', '.join(world.faults)}; at {rig.cluster.loop.now_s:.2f} s")
        error.add_note(f"replay: python -m tests.sim.messaging {seed}")
        raise
    return world


if __name__ == "__main__":
    import sys

    first, _, upto = sys.argv[1].partition(":")
    for number in range(int(first), int(upto or int(first) + 1)):
        world = run(number)
        print(number, {topic: len(bodies) for topic, bodies in world.acknowledged.items()}, *world.faults, sep="  ", flush=True)
