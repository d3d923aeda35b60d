"""Transactions in virtual time: producers killed between any two steps, masters killed, cut off and paused at any moment, calls repeated.

Owns the producers, the faults drawn from the seed, and the account at the end: what the application decided to commit is there once,
nothing else is, nothing is open, and every replica says the same.  The application's own records survive everything, as a database would.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from dledger_client.aio import Message, TransactionProducer, TransactionState
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.runtime.environment import use_environment
from dledger_wire.errors import DledgerError
from dledger_wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from tests.sim.clock import SimClock
from tests.sim.faults import YEAR_MS
from tests.sim.loop import Process
from tests.unit.client.sim_rig import Rig, run_world, until

TRANSACTIONS = 12  # of each producer
PRODUCERS = 3
FAULTS = 6
LIMIT_S = 300.0
SETTINGS = "broker: {transactionTimeOut: 300ms, transactionCheckInterval: 300ms, transactionCheckMax: 500}\n"
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


class World:
    """One run.  ``decided``: the application's records."""

    def __init__(self, rig: Rig, *, leaps: bool = False) -> None:
        self.rig = rig
        self.leaps = leaps  # clocks of masters leap by years, too
        self.draw = rig.cluster.random
        self.decided: dict[bytes, TransactionState] = {}
        self.asked = 0
        self.faults: list[str] = []
        self.producers: dict[Process, TransactionProducer] = {}
        self._made = 0
        self._leaping = False

    async def run(self) -> None:
        await self.rig.topic("t", queues=2)
        for _ in range(PRODUCERS):
            self._start_producer()
        await self._strike()
        self._heal()
        self._start_producer()  # somebody who can be asked
        await self._settle()
        await self._account()

    # Producers

    def _start_producer(self) -> None:
        self._made += 1
        name = f"p{self._made}"
        process, network = self.rig.cluster.new_client(f"10.0.5.{self._made}")
        around: dict[str, Any] = {"network": network, "clock": SimClock(self.rig.cluster.loop), "random": random.Random(name)}
        with use_environment(**around):
            producer = TransactionProducer(self.rig.cluster.bootstrap, "shop", self._check, send_timeout_ms=3000)
        self.producers[process] = producer
        self.rig.cluster.loop.spawn(process, self._produce(name, producer), name)

    async def _produce(self, name: str, producer: TransactionProducer) -> None:
        """Transact, and attend until killed."""
        producer.start()
        for number in range(TRANSACTIONS):
            with contextlib.suppress(DledgerError):  # not known to be stored: if it is, somebody is asked
                await producer.send_in_transaction(Message("t", f"{name}/{number}".encode()), self._local)
            await asyncio.sleep(self.draw.random() * 0.1)

    async def _local(self, message: Message, _argument: Any) -> TransactionState:
        if self.draw.random() < 0.5:
            await asyncio.sleep(self.draw.random() * 0.5)
        state = self.decided.setdefault(message.body, self.draw.choice([COMMIT, COMMIT, ROLLBACK]))
        return self.draw.choice([state, state, UNKNOWN])

    def _check(self, message: ReceivedMessage) -> TransactionState:
        """What was not decided by now never will be: its producer finds that recorded."""
        self.asked += 1
        return self.draw.choice([self.decided.setdefault(message.body, ROLLBACK), UNKNOWN])

    # Faults

    async def _strike(self) -> None:
        steps: list[Callable[[], Any]] = [self._kill_master, self._cut_master, self._pause_master, self._kill_producer]
        if self.leaps:
            steps += [self._leap_clock] * 2
        for _ in range(FAULTS):
            await asyncio.sleep(self.draw.random() * 0.8)
            await self.draw.choice(steps)()

    async def _kill_master(self) -> None:
        victim = self.rig.cluster.master()
        if victim is not None:
            self.faults.append(f"kill {victim}")
            self.rig.cluster.kill(victim)
            await asyncio.sleep(self.draw.random())
            self.rig.cluster.ensure_running(victim)

    async def _cut_master(self) -> None:
        victim = self.rig.cluster.master()
        if victim is not None:
            self.faults.append(f"cut {victim}")
            self.rig.isolate(victim)
            await asyncio.sleep(self.draw.random() * 2)
            self.rig.cluster.net.heal_all()

    async def _pause_master(self) -> None:
        victim = self.rig.cluster.master()
        process = self.rig.cluster.hosts[victim].process if victim is not None else None
        if process is not None:
            self.faults.append(f"pause {victim}")
            self.rig.cluster.loop.pause(process)
            await asyncio.sleep(self.draw.random() * 2)
            self.rig.cluster.loop.resume(process)

    async def _leap_clock(self) -> None:
        """It shows another year for some seconds; others of the steps come meanwhile."""
        victim = self.rig.cluster.master()
        if victim is None or self._leaping:
            return
        clock, leap_ms = self.rig.cluster.hosts[victim].clock, round((self.draw.random() - 0.5) * 20 * YEAR_MS)
        self.faults.append(f"the clock of {victim} leaps by {leap_ms} ms")
        self._leaping = True
        clock.jump_wall(leap_ms)

        async def back() -> None:
            await asyncio.sleep(self.draw.random() * 5)
            clock.jump_wall(-leap_ms)
            self._leaping = False

        self.rig.cluster.loop.spawn(self.rig.cluster.loop.world, back(), "clock")

    async def _kill_producer(self) -> None:
        victim = self.draw.choice(list(self.producers))
        self.faults.append(f"kill producer {victim.host}")
        self._kill(victim, silent=self.draw.random() < 0.5)
        self._start_producer()

    def _kill(self, process: Process, *, silent: bool) -> None:
        self.rig.cluster.loop.kill(process, self.producers.pop(process))
        self.rig.cluster.net.process_died(process, silent=silent)

    def _heal(self) -> None:
        self.rig.cluster.net.heal_all()
        for node_id in self.rig.cluster.hosts:
            self.rig.cluster.ensure_running(node_id)

    # The end

    def _open(self) -> list[int]:
        master = self.rig.cluster.master()
        node = self.rig.cluster.hosts[master].node if master is not None else None
        if node is None:
            return [-1]
        _, high = node.store.reader.bounds(HALF_TOPIC, 0, for_service=True)
        return list(node.store.transactions.open_from(0, high))

    async def _settle(self) -> None:
        await asyncio.sleep(TRANSACTIONS * 0.7)  # whoever lives has sent everything
        await until(lambda: not self._open())
        await asyncio.sleep(5.0)  # repeated ends come late
        for process in list(self.producers):
            self._kill(process, silent=False)
        await until(lambda: not self._open())

    async def _account(self) -> None:
        nodes = [host.node for host in self.rig.cluster.hosts.values() if host.node is not None]
        await until(lambda: len({node.store.applied_index for node in nodes}) == 1)
        assert len({str(node.store.transactions.dump()) for node in nodes}) == 1, "replicas differ in what has ended"
        found: list[bytes] = []
        async with self.rig.consumer() as consumer:
            for queue_id in (0, 1):
                found += [message.body for message in await consumer.fetch("t", queue_id, 0, 10_000)]
            assert await consumer.fetch(CHECK_MAX_TIME_TOPIC, 0, 0, 10) == []
        counts = Counter(found)
        committed = {body for body, state in self.decided.items() if state is COMMIT}
        assert max(counts.values(), default=1) == 1, f"published twice: {[body for body, count in counts.items() if count > 1]}"
        assert set(counts) == committed, f"published {set(counts) - committed} uncommitted; missing {committed - set(counts)}"


def run(seed: int, *, leaps: bool = False, readable: bool = False, sink: Callable[[str], None] | None = None) -> World:
    """One run; any violation raises, with the faults that were carried out."""
    rig = Rig(seed, settings=SETTINGS, readable=readable)
    world = World(rig, leaps=leaps)
    run_world(rig, "transacting-clocks" if leaps else "transacting", world, LIMIT_S, sink)
    return world
