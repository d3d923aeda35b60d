"""Push consumers on machines of their own beside a cluster in virtual time, and what their listeners saw."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dledger_client.aio import Action, ConsumeContext, Message, PushConsumer
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.runtime.environment import use_environment
from tests.sim.clock import SimClock
from tests.sim.loop import Process
from tests.unit.client.sim_rig import Rig


@dataclass(slots=True)
class Seen:
    """One message in a listener."""

    at_s: float
    member: str
    queue_id: int
    epoch: int
    body: bytes
    topic: str
    attempt: int
    refused: bool | None = None  # None: no answer was given, or not yet
    replica_group: str = ""


@dataclass(slots=True)
class Member:
    """A consumer and its machine."""

    name: str
    process: Process
    consumer: PushConsumer
    seen: list[Seen] = field(default_factory=list)


async def here(work: Callable[[], None]) -> None:
    """In virtual time there are no threads."""
    work()


class Group:
    """Members of one consumer group.  ``pause_s``: how long a listener takes; ``subnet``: where its machines are."""

    def __init__(self, rig: Rig, topic: str = "t", name: str = "g", subnet: str = "10.0.2", **options: Any) -> None:
        self.rig, self.topic, self.name, self.subnet, self.options = rig, topic, name, subnet, options
        self._machines = 0
        self.members: dict[str, Member] = {}
        self.seen: list[Seen] = []
        self.pause_s = 0.0
        self.answers: list[object] = []  # what the next calls answer, before they go back to COMMIT

    def add(self, name: str, **more: Any) -> Member:
        """A member that is not started yet."""
        rig = self.rig
        self._machines += 1
        process, network = rig.cluster.new_client(f"{self.subnet}.{self._machines}")

        async def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> object:
            now_s = rig.cluster.loop.now_s
            given = [
                Seen(
                    now_s,
                    name,
                    context.queue_id,
                    context.epoch,
                    message.body,
                    message.topic,
                    message.reconsume_times,
                    replica_group=context.replica_group,
                )
                for message in messages
            ]
            self.seen += given
            member.seen += given
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
            answer = self.answers.pop(0) if self.answers else Action.COMMIT
            for seen in given:
                seen.refused = answer is not Action.COMMIT
            return answer

        settings = self.options | more
        run_in_thread = settings.pop("run_in_thread", here)
        with use_environment(network, SimClock(rig.cluster.loop), random.Random(name), run_in_thread=run_in_thread):
            consumer = PushConsumer(rig.cluster.bootstrap, self.name, listener, client_id=name, **settings)
        consumer.subscribe(self.topic)
        member = self.members[name] = Member(name, process, consumer)
        return member

    async def start(self, *names: str, **more: Any) -> None:
        for name in names:
            member = self.members.get(name) or self.add(name, **more)
            await self.rig.cluster.loop.spawn(member.process, member.consumer.start(), name)

    async def stop(self, *names: str) -> None:
        for name in names or list(self.members):
            member = self.members.pop(name)
            if member.process.alive:
                await self.rig.cluster.loop.spawn(member.process, member.consumer.shutdown(), name)

    def kill(self, name: str, *, silent: bool = False) -> None:
        member = self.members.pop(name)
        self.rig.cluster.loop.kill(member.process, member)
        self.rig.cluster.net.process_died(member.process, silent=silent)
        if member.consumer._file is not None:  # the kernel lets go of a dead process's locks
            member.consumer._file.unlock()

    def share(self, name: str) -> list[int]:
        return [queue.queue_id for queue in self.members[name].consumer.assigned() if queue.topic == self.topic]

    @property
    def shares(self) -> dict[str, list[int]]:
        return {name: self.share(name) for name in self.members}

    def bodies(self) -> list[bytes]:
        return [each.body for each in self.seen]


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def send(rig: Rig, count: int, queues: int = 1, first: int = 0, **message: Any) -> None:
    """Numbered messages, round the queues."""
    async with rig.producer() as producer:
        futures = [
            producer.send_async(Message("t", b"%d" % number, **message), queue_id=number % queues) for number in range(first, first + count)
        ]
        await producer.flush()
        assert all(future.exception() is None for future in futures)
