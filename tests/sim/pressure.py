"""More than a replica group can take: producers that send all they can beside one that sends little, tiny limits, slow disks, quotas.

Owns the producers, consumers that stop reading, what strikes them, and the rules: what is under way stays within the window, each send
ends, what is refused is not stored and what is acknowledged is stored once, streams that wait are served in turn, consumers get each
message once however they stop, and nothing is counted any more at the end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from statistics import median

from dledger.replica.proposer import Proposer
from dledger_client.aio import Message, PullConsumer
from dledger_client.aio import Producer as Client
from dledger_wire.errors import DledgerError, NotReadyError
from tests.sim.host import Host
from tests.sim.struck import StruckWorld
from tests.unit.client.sim_rig import Rig, run_world

LIMIT_S = 900.0
SEND_LIMIT_S = 120.0  # by then each send has ended, whatever struck it
WINDOW_BYTES, BATCH_BYTES, QUEUES = 64 << 10, 16 << 10, 2
LARGEST_BYTES = 15_000  # of a message
REQUEST_BYTES = QUEUES * (BATCH_BYTES + LARGEST_BYTES)  # at most
LANES, MESSAGES = 4, 24  # of each heavy producer: how many at once, how many in all
LIGHT_MESSAGES = 60
SETTINGS = f"raft: {{maxUncommittedBytes: {WINDOW_BYTES}}}\n"


@dataclass
class Sender:
    """A producer and what became of its messages."""

    name: str
    producer: Client
    size_bytes: int
    acknowledged: list[bytes] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    sent: int = 0


class World(StruckWorld):
    """One run.  A quarter of the seeds strikes nothing: there it is looked at who waited for how long."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        draw = self.draw
        self._is_quiet = draw.random() < 0.25
        self._timeouts_ms = (60_000,) if self._is_quiet else (300, 1000, 5000, 20_000)
        heavy_bytes = draw.choice((300, 4000, LARGEST_BYTES))
        sizes = [heavy_bytes if self._is_quiet else draw.randrange(50, LARGEST_BYTES) for _ in range(draw.randrange(3, 9))]
        self.heavy = [self._sender(f"h{number}", size) for number, size in enumerate(sizes)]
        self.light = self._sender("light", 100)
        self.most_under_way = 0
        self._readers = draw.randrange(4)  # consumers that stop in the middle of an answer, again and again
        self._sent_all = False

    @property
    def senders(self) -> list[Sender]:
        return [*self.heavy, self.light]

    def _sender(self, name: str, size_bytes: int) -> Sender:
        timeout_ms = self.draw.choice(self._timeouts_ms)
        return Sender(name, self.rig.producer(send_timeout_ms=timeout_ms, batch_bytes=BATCH_BYTES, compress_type="none"), size_bytes)

    async def run(self) -> None:
        await self.rig.topic("t", queues=QUEUES)
        looking = asyncio.ensure_future(self._look())
        reading = asyncio.gather(*(self._read_and_stop() for _ in range(self._readers)))
        async with asyncio.timeout(LIMIT_S / 2):
            await asyncio.gather(*map(self._send_all, self.heavy), self._send_light(), self._slow_down())
        for sender in self.senders:
            await sender.producer.close()
        self._sent_all = True
        await self._account()
        async with asyncio.timeout(LIMIT_S / 4):
            read = await reading
        stored = sorted(await self._stored())
        assert all(sorted(bodies) == stored for bodies in read), f"read {[len(bodies) for bodies in read]} of {len(stored)} messages"
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking  # raises what it found

    # Senders

    async def _send(self, sender: Sender) -> None:
        body = f"{sender.name} {sender.sent} ".encode().ljust(sender.size_bytes, b".")
        sender.sent += 1
        began_s = self.rig.cluster.loop.time()
        into = sender.acknowledged
        try:
            async with asyncio.timeout(SEND_LIMIT_S):
                await sender.producer.send(Message("t", body))
        except DledgerError as error:
            into = sender.unknown if error.outcome_unknown else sender.refused
        into.append(body)
        sender.took_s.append(self.rig.cluster.loop.time() - began_s)
        sender.ended_s = self.rig.cluster.loop.time()

    async def _send_all(self, sender: Sender) -> None:
        async def lane() -> None:
            while sender.sent < MESSAGES:
                await self._send(sender)

        await asyncio.gather(*(lane() for _ in range(LANES)))

    async def _send_light(self) -> None:
        while self.light.sent < LIGHT_MESSAGES:
            await self._send(self.light)
            await asyncio.sleep(self.draw.random() / 50)

    # Consumers that stop reading

    async def _read_and_stop(self) -> list[bytes]:
        """What a consumer gets that leaves what was asked for unread for seconds; it ends when it has read all that is stored."""
        bodies: list[bytes] = []
        at = [0] * QUEUES
        async with self.rig.consumer() as consumer:
            while True:
                is_last = self._sent_all
                for queue_id in range(QUEUES):
                    with suppress(DledgerError):
                        await self._read_some(consumer, queue_id, at, bodies, stops=not is_last)
                with suppress(DledgerError):
                    ends = {queue_id: held.max_offset for (_group, queue_id), held in (await consumer.offsets("t")).items()}
                    if is_last and [ends[queue_id] for queue_id in range(QUEUES)] == at:
                        return bodies
                await asyncio.sleep(self.draw.random())

    async def _read_some(self, consumer: PullConsumer, queue_id: int, at: list[int], bodies: list[bytes], *, stops: bool) -> None:
        """Read on from ``at``; stop after each chunk, and leave the rest now and then."""
        end = next(held.max_offset for (_group, number), held in (await consumer.offsets("t")).items() if number == queue_id)
        async with aclosing(consumer.read_chunks("t", queue_id, at[queue_id], end, chunk_bytes=BATCH_BYTES)) as chunks:
            async for chunk in chunks:
                bodies += [message.body for message in chunk.messages()]
                at[queue_id] += chunk.count
                if stops:
                    await asyncio.sleep(self.draw.random() * 5)
                    if self.draw.random() < 0.2:
                        return

    # What strikes

    async def _slow_down(self) -> None:
        if not self._is_quiet:
            steps: list[Callable[[], object]] = [self._slow_disks, self._slow_disks, self._quota, self._kill_node, self._pause_node]
            for _ in range(self.draw.randrange(1, 5)):
                await asyncio.sleep(self.draw.random() / 2)
                await self.draw.choice(steps)()
        self.heal()

    async def _slow_disks(self) -> None:
        hosts = list(self.rig.cluster.hosts.values())
        struck: list[Host] = self.draw.sample(hosts, self.draw.randrange(1, len(hosts) + 1))
        sync_s = self.draw.choice((0.1, 0.3, 0.8))
        self.faults.append(f"syncs of {', '.join(host.node_id for host in struck)} take {sync_s} s")
        for host in struck:
            host.disk.settings.sync_s = sync_s
        await asyncio.sleep(self.draw.random() * 5)
        for host in struck:
            host.disk.settings.sync_s = 0.0008

    async def _quota(self) -> None:
        rate = self.draw.choice((5000, 100_000))
        self.faults.append(f"topic t may get {rate} bytes a second")
        async with self.rig.admin() as admin:
            with suppress(DledgerError):
                await admin.set_quota("topic", "t", produce_bytes=rate)
            await asyncio.sleep(self.draw.random() * 3)
            while True:
                with suppress(DledgerError):
                    await admin.delete_quota("topic", "t")
                    return

    # The rules

    async def _look(self) -> None:
        """What a leader takes on stays within its window, a request that was let in below it, and the reserve."""
        bound = WINDOW_BYTES + WINDOW_BYTES // 8 + REQUEST_BYTES
        while True:
            for host in self.rig.cluster.running("g0"):
                proposer = _proposer_of(host)
                if proposer is not None:
                    under_way = proposer.proposals.bytes_under_way + proposer.room.granted_bytes
                    self.most_under_way = max(self.most_under_way, under_way)
                    assert 0 <= under_way <= bound, f"{host.node_id}: {under_way} bytes under way; at most {bound} may be"
            await asyncio.sleep(0.001)

    async def _account(self) -> None:
        found = Counter(await self._stored())
        for sender in self.senders:
            assert len(sender.took_s) == sender.sent, f"{sender.name}: {sender.sent - len(sender.took_s)} sends did not end"
            wrong = {body[:12]: found[body] for body in sender.acknowledged if found[body] != 1}
            wrong |= {body[:12]: found[body] for body in sender.refused if found[body]}
            wrong |= {body[:12]: found[body] for body in sender.unknown if found[body] > 1}
            assert not wrong, f"{sender.name}: stored so often: {wrong}"
        await self.until(lambda: all(map(_is_at_rest, self.rig.cluster.running("g0"))), "something is counted that is not there any more")
        if self._is_quiet:
            ends = [sender.ended_s for sender in self.heavy]
            began_s = min(ends) - max(sum(sender.took_s) / LANES for sender in self.heavy)
            assert max(ends) - began_s <= 2 * (min(ends) - began_s) + 0.1, f"ended at {ends}"
            light, heavy = median(self.light.took_s), median(took for sender in self.heavy for took in sender.took_s)
            assert light <= heavy + 0.002, f"the light producer waited {light} s, the heavy ones {heavy} s"

    async def _stored(self) -> list[bytes]:
        bodies: list[bytes] = []
        async with self.rig.consumer() as consumer:
            for (_group, queue_id), held in (await consumer.offsets("t")).items():
                at = held.min_offset
                while at < held.max_offset:
                    read = await consumer.fetch("t", queue_id, at, 100)
                    bodies += [message.body for message in read]
                    at = read[-1].queue_offset + 1
        return bodies


def _proposer_of(host: Host) -> Proposer | None:
    """Of a node that is open."""
    with suppress(NotReadyError):
        return host.node.raft._replica.proposer if host.node is not None else None
    return None


def _is_at_rest(host: Host) -> bool:
    """Nothing waits, and nothing is counted that is not there."""
    proposer = _proposer_of(host)
    if proposer is None:
        return False
    room = proposer.room
    return not (room.waiting or room.granted_bytes or room._tenants or proposer.proposals.bytes_under_way)


def run(seed: int, *, readable: bool = False, sink: Callable[[str], None] | None = None) -> World:
    """One run; any violation raises, with the faults that were carried out."""
    rig = Rig(seed, settings=SETTINGS, readable=readable)
    world = World(rig)
    run_world(rig, "pressure", world, LIMIT_S, sink)
    return world
