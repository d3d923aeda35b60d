"""Producers and consumers over several replica groups, while nodes, name servers and clients die, stand still and are cut off.

Owns the actors and the acts of a run.  ``plans.py`` has what strikes, ``strikes.py`` carries it out, ``account.py`` has the rules for
messages, ``name_watch.py`` those for name servers.  ``operations.py`` changes the cluster meanwhile: a group is added, or drained.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from dataclasses import dataclass

from broker.node import BrokerNode
from dledger_client.aio import Action, Message
from dledger_client.consumer.allocation import MessageQueue
from dledger_wire.errors import DledgerError
from tests.sim import messaging_account
from tests.sim.cluster import are_equal
from tests.sim.faults import Fault, carry_out
from tests.sim.invariants import check_logs_match
from tests.sim.spread import account
from tests.sim.spread.intruders import Intruders
from tests.sim.spread.name_watch import NameWatch
from tests.sim.spread.operations import OPERATIONS
from tests.sim.spread.plans import Strike, plan_clients, plan_name_servers, plan_of_group
from tests.sim.spread.strikes import strike_clients, strike_name_servers
from tests.sim.spread.visitors import Place, Visitors
from tests.unit.client.push_rig import Group
from tests.unit.client.sim_rig import Rig

MESSAGES = 40
KEYS = 5
SETTLE_S = 60.0
REPLAY_S = 6.0
NOBODY_MADE = "nobody-made-this"
QUEUES = {"plain": 2, "ordered": 2}  # in each group


@dataclass(frozen=True, slots=True)
class Plans:
    """What strikes a run, drawn before it."""

    nodes: dict[str, list[Fault]]  # by replica group
    name_servers: list[Strike]
    clients: list[Strike]

    def texts(self) -> list[str]:
        found = [f"{group}: {fault}" for group, faults in self.nodes.items() for fault in faults]
        return found + [f"name servers: {strike}" for strike in self.name_servers] + [f"clients: {strike}" for strike in self.clients]


class SpreadWorld:
    """One run.  ``sent``: topic -> bodies; ``acknowledged``: those that a producer was told are stored."""

    def __init__(self, rig: Rig, seed: int, operation: str = "") -> None:
        self.rig, self.cluster = rig, rig.cluster
        self.draw = random.Random(f"spread {seed}")
        self.sent: dict[str, set[bytes]] = {topic: set() for topic in QUEUES}
        self.acknowledged: dict[str, set[bytes]] = {topic: set() for topic in QUEUES}
        self.first_groups = list(self.cluster.groups)
        self.workers = Group(rig, "plain", "workers", "10.0.3")
        self.orderlies = Group(rig, "ordered", "orderlies", "10.0.4", orderly=True, suspend_current_queue_time_ms=50)
        self.groups = [self.workers, self.orderlies]
        self.plans = Plans(
            {group.name: plan_of_group(group.name, group.node_ids, self.draw) for group in self.cluster.groups.values()},
            plan_name_servers(self.draw) if self.cluster.name_servers.hosts else [],
            plan_clients(self.draw),
        )
        self.faults = self.plans.texts()
        self.names = NameWatch(self.cluster, random.Random(self.draw.getrandbits(64)))
        self.visitors = Visitors(self, random.Random(f"visitors {seed}"))
        self.intruders = Intruders(self, random.Random(f"intruders {seed}"))
        self.agreed_s = 0.0  # how long the name service took to recover
        self.may_lie_dead = not operation and self.draw.random() < 0.3 and self.cluster.config.name_service.expireAfter < 5000
        self.stops_at_once = random.Random(f"stops {seed}").random() < 0.5  # consumers, before they have committed regularly
        self.operation = OPERATIONS[operation](self)
        self._names = 0

    # The acts

    async def run(self) -> None:
        await self.intruders.prepare()
        await self.create_topics()
        for group in self.groups:
            group.pause_s = 0.002
            await self.join(group)
            await self.join(group)
        self.workers.answers = [self.draw.choice([Action.COMMIT, Action.COMMIT, Action.RECONSUME_LATER, None]) for _ in range(20)]
        acts = [self._produce("plain"), self._produce("ordered"), self.visitors.come(), self._strike(), self.operation.during()]
        await asyncio.gather(*acts, self.intruders.come())
        await self._settle()
        await self.operation.afterwards()
        if self.may_lie_dead:
            await self._let_a_group_lie_dead()
        await self._account()

    async def create_topics(self) -> None:
        async with self.rig.admin() as admin:
            for topic, queues in QUEUES.items():
                for group in self.cluster.groups:
                    await admin.create_topic(topic, queues=queues, replica_group=group)
        self.names.topics_exist(QUEUES)

    def first_queues(self, topic: str) -> set[Place]:
        """All queues of a topic as it was made; they can be read to the end of the run."""
        return {(group, number) for group in self.first_groups for number in range(QUEUES[topic])}

    async def join(self, group: Group) -> None:
        self._names += 1
        await group.start(f"c{self._names}")

    async def join_again(self, group: Group) -> None:
        """Join in place of one that was killed; this one may be killed before it has joined."""
        self._names += 1
        name = f"c{self._names}"
        process, starting = group.add(name).process, asyncio.ensure_future(group.start(name))
        while not starting.done() and process.alive:  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.02)
        if starting.done():
            starting.result()
        else:
            starting.cancel()

    # Producers

    async def _produce(self, topic: str) -> None:
        other = topic == "plain" and self.draw.random() < 0.7
        async with self.rig.producer(send_timeout_ms=60_000, retry_another_group=other, sticky_messages=5) as producer:
            sends = []
            for number in range(MESSAGES):
                key = f"k{number % KEYS}"
                body = b"%s:%d" % (key.encode(), number)
                sending = producer.send(Message(topic, body), queue_key=key if topic == "ordered" else None)
                sends.append(asyncio.ensure_future(self._send(sending, topic, body)))
                await asyncio.sleep(self.draw.random() * 0.12)
            await asyncio.gather(*sends)

    async def _send(self, sending: object, topic: str, body: bytes) -> None:
        self.sent[topic].add(body)
        try:
            await sending
        except DledgerError as error:
            if not error.outcome_unknown:
                raise
        else:
            self.acknowledged[topic].add(body)

    # Faults

    async def _strike(self) -> None:
        spawn, world = self.cluster.loop.spawn, self.cluster.loop.world
        running = [spawn(world, carry_out(self.cluster, faults), f"faults of {group}") for group, faults in self.plans.nodes.items()]
        running.append(spawn(world, strike_name_servers(self.cluster, self.plans.name_servers), "faults of name servers"))
        running.append(spawn(world, self.names.replay_along(REPLAY_S), "late registrations"))
        await asyncio.gather(strike_clients(self, self.plans.clients), *running)
        self.cluster.net.heal_all()
        self.cluster.ensure_all_running()

    # The end

    async def _settle(self) -> None:
        """Wait until everybody was given everything, and what was refused came again."""
        await self.until(self.cluster.has_masters, "a group without a master")
        self.agreed_s = await self.names.check_end([*QUEUES, NOBODY_MADE])
        for group in self.groups:
            await self.until(lambda group=group: self.acknowledged[group.topic] <= set(group.bodies()), f"{group.name} miss messages")
        await self.until(lambda: not messaging_account.refused_for_good(self.workers.seen), "refused, and never given again")
        await self.until(self._is_settled, "replicas do not come together")
        await self.until(self.intruders.agree, "replica groups have different users and rules")
        if not self.stops_at_once:
            await self.until(self._all_committed, "consumers have not committed what they consumed")

    def _all_committed(self) -> bool:
        nodes = {name: found[0] for name in self.cluster.groups if (found := self.settled_nodes(name))}
        return len(nodes) == len(self.cluster.groups) and not any(account.uncommitted(each.name, each.topic, nodes) for each in self.groups)

    async def _let_a_group_lie_dead(self) -> None:
        """All nodes of a group are down for so long that nothing of it counts any more, and come back."""
        group = self.cluster.groups["g1"]
        for node_id in group.node_ids:
            self.cluster.kill(node_id)
        await asyncio.sleep(3 * self.cluster.config.name_service.expireAfter / 1000)
        await self.names.check_dead(group.name, list(QUEUES))
        self.cluster.ensure_all_running()
        await self.until(self.cluster.has_masters, "a group without a master")
        await self.names.check_end([*QUEUES, NOBODY_MADE])

    def _is_settled(self) -> bool:
        return all(self.settled_nodes(group) is not None for group in self.cluster.groups)

    def settled_nodes(self, group: str) -> list[BrokerNode] | None:
        """All nodes of a group, when all are up and have applied the same."""
        hosts = self.cluster.hosts_of(group)
        nodes = [host.node for host in hosts if host.node is not None and self.cluster.is_up(host)]
        return nodes if len(nodes) == len(hosts) and are_equal(nodes) else None

    async def until(self, condition: Callable[[], bool], otherwise: str, limit_s: float = SETTLE_S) -> None:
        await self.cluster.until(condition, otherwise, limit_s)

    async def _stop_consumers(self, group: Group) -> dict[MessageQueue, int]:
        """One member after the other.  How far they had consumed when each was told to stop, retries included."""
        found: dict[MessageQueue, int] = {}
        for name in list(group.members):
            engine = group.members[name].consumer._engine
            for queue, consumer in engine.queues.items() if engine is not None else ():
                if consumer.process_queue is not None:
                    found[queue] = max(found.get(queue, 0), consumer.process_queue.consume_offset)
            await group.stop(name)
        return found

    async def _account(self) -> None:
        consumed = [(group, await self._stop_consumers(group)) for group in self.groups]
        await self.until(self._is_settled, "replicas do not come together")
        masters = {}
        for name in self.cluster.groups:
            nodes = self.settled_nodes(name) or []
            await check_logs_match(nodes)
            self.cluster.groups[name].invariants.check_nothing_lost(nodes)
            masters[name] = nodes[0]
        for topic in QUEUES:
            found = [each for node in masters.values() for each in await account.stored_in(node, topic)]
            account.check_once(topic, found, self.sent[topic], self.acknowledged[topic])
            if topic == "plain":
                self.visitors.check(found, [self.first_queues(topic), self.operation.last_queues(topic, masters)])
            if topic == "ordered":
                account.check_keys(topic, found, queues_changed=not self.operation.keeps_queues)
                account.check_given_in_order(topic, messaging_account.check_epochs(self.orderlies.seen), found)
        for group in self.groups if not self.stops_at_once else ():
            assert account.uncommitted(group.name, group.topic, masters) == [], "an offset went back"
        for group, offsets in consumed:
            for queue, offset in offsets.items():
                committed = masters[queue.replica_group].store.consumer_offsets.position(group.name, queue.topic, queue.queue_id)
                assert committed >= offset, f"{group.name} consumed {queue} up to {offset}, and left {committed} behind"
        gc.collect()  # errors of tasks that nobody looked at are told when those are freed
