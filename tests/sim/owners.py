"""Push consumers in the simulator: killed, paused, cut off, restarted, while nodes die too; and the check that no two ever own a queue.

Owns the consumers, what strikes them, and the history of their listeners' calls.  A call notes when it began and ended, in which epoch, and
which message it was given.  The rules, for each queue:

    epochs never go back, and an epoch has one owner
    no call begins while another member's call is at work, unless that member was paused in the middle of it (a fact no lock can change)
    within an epoch messages come in order without gaps; a new epoch begins at or before where the one before ended
    in the end every acknowledged message was consumed

Concurrent consumers are held by the last rule only, the messages they send back too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from dledger_client.aio import Action, Admin, ConsumeContext, Message, Producer, PushConsumer
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.runtime.environment import ClientEnvironment, use_environment
from dledger_wire.errors import DledgerError
from tests.sim.clock import SimClock
from tests.sim.cluster import QUICK_RETRIES, SimCluster
from tests.sim.faults import POLL_S, Fault, carry_out, plan_everything, plan_kill_the_leader, plan_split
from tests.sim.loop import Process
from tests.sim.network import NetworkSettings, ProcessNetwork

TOPIC, GROUP = "t", "g"
RUN_LIMIT_S = 200.0
END_LIMIT_S = 40.0
KINDS = ("kill", "kill", "pause", "pause", "cut", "deafen", "mute", "stop", "reset")


@dataclass(slots=True)
class Call:
    """One listener call; ``ended_s`` None: it never ended."""

    member: str
    run: int
    epoch: int
    offset: int
    body: bytes
    began_s: float
    ended_s: float | None = None
    committed: bool = False


@dataclass(slots=True, eq=False)
class Host:
    """A consumer's machine."""

    name: str
    ip: str
    clock: SimClock
    runs: int = 0
    process: Process | None = None
    consumer: PushConsumer | None = None
    pauses: list[tuple[float, float]] = field(default_factory=list)  # (from, to)


@dataclass(frozen=True, slots=True)
class Strike:
    """What happens to a consumer."""

    after_s: float
    kind: str
    name: str
    lasts_s: float


class OwnersWorld:
    """Three nodes, some orderly consumers, one producer."""

    def __init__(self, seed: int, *, orderly: bool, readable: bool = False) -> None:
        self.orderly = orderly
        self.draw = random.Random(f"owners {seed}")
        network = NetworkSettings(slow_chance=self.draw.choice((0.0, 0.02)))
        self.cluster = SimCluster(seed, readable=readable, network=network, settings=QUICK_RETRIES)
        self.queues = self.draw.choice((1, 2, 4))
        self.messages = self.draw.choice((60, 150))
        self.calls: dict[int, list[Call]] = {}
        self.acknowledged: dict[int, set[bytes]] = {}
        self.hosts = {
            name: Host(
                name, f"10.0.2.{number + 1}", SimClock(self.cluster.loop, offset_ms=number, rate=1.0 + self.draw.uniform(-0.01, 0.01))
            )
            for number, name in enumerate("abc"[: self.draw.choice((2, 3))])
        }
        self.cluster.client_ips += [host.ip for host in self.hosts.values()]
        self.producing, self._network = self.cluster.new_client("10.0.1.1")
        self.node_plan: Sequence[Fault] = self.draw.choice((_none, plan_kill_the_leader, plan_split, plan_everything))(
            list(self.cluster.hosts), self.draw
        )
        self.strikes = [
            Strike(
                self.draw.random() * 1.5,
                self.draw.choice(KINDS),
                self.draw.choice(list(self.hosts)),
                self.draw.random() * self.draw.choice((0.3, 2, 4)),
            )
            for _ in range(self.draw.randint(2, 6))
        ]

    # Consumers

    def start(self, host: Host) -> None:
        if host.process is not None:
            return
        host.runs += 1
        host.process = Process(host.ip, host.runs)
        network: ProcessNetwork = self.cluster.net.of(host.process)
        rng = random.Random(f"{self.cluster.seed} {host.name} {host.runs}")
        with use_environment(network, host.clock, rng):
            host.consumer = PushConsumer(
                self.cluster.bootstrap,
                GROUP,
                self._listener(host, host.runs),
                orderly=self.orderly,
                client_id=host.name,
                suspend_current_queue_time_ms=100,
                timeout_ms=100_000,
            )
        host.consumer.subscribe(TOPIC)
        self.cluster.loop.spawn(host.process, host.consumer.start(), "start")

    def _listener(self, host: Host, run: int) -> Callable[[list[ReceivedMessage], ConsumeContext], Any]:
        rng = random.Random(f"{self.cluster.seed} {host.name} {run} listener")

        async def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
            (message,) = messages
            call = Call(host.name, run, context.epoch, message.queue_offset, message.body, self.cluster.loop.now_s)
            self.calls.setdefault(context.queue_id, []).append(call)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.04)
            call.ended_s = self.cluster.loop.now_s
            call.committed = rng.random() > 0.02
            return Action.COMMIT if call.committed else Action.SUSPEND

        return listener

    def kill(self, host: Host, *, silent: bool) -> None:
        if host.process is not None:
            self.cluster.loop.kill(host.process, host.consumer)
            self.cluster.net.process_died(host.process, silent=silent)
            self._end_calls(host)
            host.process = host.consumer = None

    def _end_calls(self, host: Host) -> None:
        for calls in self.calls.values():
            for call in calls:
                if call.member == host.name and call.ended_s is None:
                    call.ended_s = self.cluster.loop.now_s

    async def strike(self) -> None:
        running = []
        for strike in self.strikes:
            await asyncio.sleep(strike.after_s)
            running.append(asyncio.ensure_future(self._strike(strike, self.hosts[strike.name])))
        await asyncio.gather(*running)

    async def _strike(self, strike: Strike, host: Host) -> None:
        cluster = self.cluster
        cluster.trace.note("strike", host.ip, f"{strike.kind} for {strike.lasts_s:.3f}")
        if strike.kind == "kill":
            self.kill(host, silent=strike.lasts_s < 0.5)
            await asyncio.sleep(strike.lasts_s)
            self.start(host)
        elif strike.kind == "pause":
            await self._pause(host, strike.lasts_s)
        elif strike.kind == "stop":
            await self._stop(host)
            await asyncio.sleep(strike.lasts_s)
            self.start(host)
        elif strike.kind == "reset":
            for node in cluster.hosts.values():
                cluster.net.break_connections(host.ip, node.ip)
        else:
            pairs = [(host.ip, node.ip) for node in cluster.hosts.values()] if strike.kind != "deafen" else []
            pairs += [(node.ip, host.ip) for node in cluster.hosts.values()] if strike.kind != "mute" else []
            for pair in pairs:
                cluster.net.cut(*pair)
            await asyncio.sleep(strike.lasts_s)
            for pair in pairs:
                cluster.net.heal(*pair)

    async def _pause(self, host: Host, lasts_s: float) -> None:
        process = host.process
        if process is None or process.paused:
            return
        began_s = self.cluster.loop.now_s
        self.cluster.loop.pause(process)
        await asyncio.sleep(lasts_s)
        host.pauses.append((began_s, self.cluster.loop.now_s))
        self.cluster.loop.resume(process)

    async def _stop(self, host: Host) -> None:
        process, consumer = host.process, host.consumer
        if process is None or consumer is None or process.paused:
            return
        stopping = self.cluster.loop.spawn(process, consumer.shutdown(), "shutdown")
        while process.alive and not stopping.done():  # noqa: ASYNC110 - it may be killed meanwhile, and then never ends
            await asyncio.sleep(0.01)
        if host.process is process:
            self.kill(host, silent=False)

    # The run

    def _environment(self) -> AbstractContextManager[ClientEnvironment]:
        return use_environment(self._network, SimClock(self.cluster.loop), random.Random(self.cluster.seed))

    async def create_topic(self) -> None:
        with self._environment():
            admin = Admin(self.cluster.bootstrap, timeout_ms=20_000)
        async with admin:
            await admin.create_topic(TOPIC, queues=self.queues)

    async def produce(self) -> None:
        with self._environment():
            producer = Producer(self.cluster.bootstrap, "sim", send_timeout_ms=20_000)
        async with producer:
            await asyncio.gather(*(self._produce(producer, queue_id) for queue_id in range(self.queues)))

    async def _produce(self, producer: Producer, queue_id: int) -> None:
        for number in range(self.messages):
            body = b"%d-%d" % (queue_id, number)
            try:
                await producer.send(Message(TOPIC, body), queue_id=queue_id)
                self.acknowledged.setdefault(queue_id, set()).add(body)
            except DledgerError as error:
                self.cluster.trace.note("send", f"queue {queue_id}", error.code)
            await asyncio.sleep(self.draw.random() * 0.06)

    def is_consumed(self) -> bool:
        consumed = {call.body for calls in self.calls.values() for call in calls if call.committed}
        return all(bodies <= consumed for bodies in self.acknowledged.values())

    async def acts(self) -> None:
        cluster = self.cluster
        for node_id in cluster.hosts:
            cluster.start(node_id)
        await cluster.loop.spawn(self.producing, self.create_topic(), "create topic")
        for host in self.hosts.values():
            self.start(host)
        producing = cluster.loop.spawn(self.producing, self.produce(), "produce")
        striking = asyncio.ensure_future(self.strike())
        await carry_out(cluster, self.node_plan)
        await striking
        cluster.net.heal_all()
        for node_id in cluster.hosts:
            cluster.ensure_running(node_id)
        for host in self.hosts.values():
            self.start(host)
        await producing
        limit_s = cluster.loop.now_s + END_LIMIT_S
        while not self.is_consumed() and not cluster.problems():
            assert cluster.loop.now_s < limit_s, "acknowledged messages are not consumed, long after everything was healed"
            await asyncio.sleep(POLL_S)
        for host in self.hosts.values():
            await self._stop(host)

    # The check

    def anomalies(self) -> list[str]:
        found = self.cluster.problems()
        for queue_id, calls in self.calls.items() if self.orderly else ():
            found += [f"queue {queue_id}: {text}" for text in self._check(calls)]
        return found

    def _check(self, calls: list[Call]) -> list[str]:
        found: list[str] = []
        owners: dict[int, tuple[str, int]] = {}
        upto: dict[int, int] = {}  # epoch -> behind the last message given to a listener
        committed = 0
        for number, call in enumerate(calls):
            before = calls[number - 1] if number else None
            if before is not None and call.epoch < before.epoch:
                found.append(f"epoch {call.epoch} of {call.member} at {call.began_s:.3f} after {before.epoch} of {before.member}")
            if owners.setdefault(call.epoch, (call.member, call.run)) != (call.member, call.run):
                found.append(f"epoch {call.epoch} had two owners, {owners[call.epoch]} and {call.member}")
            if call.epoch in upto:
                if call.offset not in (upto[call.epoch], upto[call.epoch] - 1):
                    found.append(f"epoch {call.epoch}: message {call.offset} behind {upto[call.epoch] - 1}")
            elif call.offset > committed:
                found.append(f"epoch {call.epoch} begins at {call.offset}, consumed up to {committed}")
            upto[call.epoch] = call.offset + 1
            found += [
                f"{call.member} began {call.offset} at {call.began_s:.3f} while {other.member} was at {other.offset} "
                f"({other.began_s:.3f} to {other.ended_s})"
                for other in calls[:number]
                if other.member != call.member and self._overlap(other, call)
            ]
            if call.committed and call.offset == committed:
                committed = call.offset + 1
        return found

    def _overlap(self, other: Call, call: Call) -> bool:
        if other.ended_s is not None and other.ended_s <= call.began_s:
            return False
        end_s = other.ended_s if other.ended_s is not None else self.cluster.loop.now_s
        return not any(other.began_s <= to_s and from_s <= end_s for from_s, to_s in self.hosts[other.member].pauses)


def _none(_names: Sequence[str], _draw: random.Random) -> list[Fault]:
    return []


def run(seed: int, *, orderly: bool = True, readable: bool = False, sink: Callable[[str], None] | None = None) -> OwnersWorld:
    """One run; what was wrong is in its ``anomalies()``."""
    world = OwnersWorld(seed, orderly=orderly, readable=readable)
    try:
        world.cluster.loop.run_until_complete(asyncio.wait_for(world.acts(), RUN_LIMIT_S))
    except BaseException as error:
        world.cluster.note_run(error, "owners" if orderly else "sharers", [*world.strikes, *world.node_plan])
        raise
    finally:
        world.cluster.trace.give(sink)
        world.cluster.loop.close()
    return world
