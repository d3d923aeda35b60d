"""Polled consumers on machines of their own beside a cluster in virtual time, and what they were given."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from dledger_client.aio import Consumer, MessageQueue
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.runtime.environment import use_environment
from tests.sim.clock import SimClock
from tests.sim.loop import Process
from tests.unit.client.sim_rig import Rig, until


@dataclass(slots=True)
class PolledMember:
    """A consumer and its machine, what it was given, and what it was called with."""

    name: str
    process: Process
    consumer: Consumer
    given: list[bytes] = field(default_factory=list)
    calls: list[tuple[str, list[int]]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class PolledGroup:
    """Members of one consumer group.  ``pause_s``: how long each works on a message."""

    def __init__(self, rig: Rig, name: str = "g", **settings: Any) -> None:
        self.rig, self.name, self.settings = rig, name, settings
        self.members: dict[str, PolledMember] = {}
        self.given: list[bytes] = []
        self.pause_s = 0.0
        self._machines = 0

    def add(self, name: str, topics: Any = "t", **more: Any) -> PolledMember:
        """A member that does nothing yet."""
        rig, calls = self.rig, []
        self._machines += 1
        process, network = rig.cluster.new_client(f"10.0.3.{self._machines}")

        def noted(what: str) -> Any:
            return lambda queues: calls.append((what, _numbers(queues)))

        settings = {"on_assigned": noted("assigned"), "on_revoked": noted("revoked"), "on_lost": noted("lost")} | self.settings | more
        with use_environment(network, SimClock(rig.cluster.loop), random.Random(name)):
            consumer = Consumer(rig.cluster.bootstrap, self.name, topics, client_id=name, **settings)
        member = self.members[name] = PolledMember(name, process, consumer, calls=calls)
        return member

    def note(self, member: PolledMember, message: ReceivedMessage) -> None:
        self.given.append(message.body)
        member.given.append(message.body)

    def run(self, name: str, **more: Any) -> PolledMember:
        """A member that iterates until it is stopped or killed."""
        member = self.members.get(name) or self.add(name, **more)

        async def iterate() -> None:
            async for message in member.consumer:
                self.note(member, message)
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)

        member.task = self.rig.cluster.loop.spawn(member.process, iterate(), name)
        return member

    async def on(self, member: PolledMember, work: Any) -> Any:
        """Await ``work`` in the member's process."""
        return await self.rig.cluster.loop.spawn(member.process, work, member.name)

    async def poll(self, member: PolledMember, ready: int, max_messages: int = 500) -> list[ReceivedMessage]:
        """The first poll, once so many messages wait for it."""
        await self.on(member, member.consumer.start())
        waiting = member.consumer._polling.queues
        await until(lambda: sum(queue.count for queue in waiting.values()) >= ready)
        found: list[ReceivedMessage] = await self.on(member, member.consumer.poll(max_messages))
        return found

    async def stop(self, name: str) -> None:
        member = self.members.pop(name)
        await self.on(member, member.consumer.close())

    def kill(self, name: str, *, silent: bool = False) -> None:
        member = self.members.pop(name)
        self.rig.cluster.loop.kill(member.process, member)
        self.rig.cluster.net.process_died(member.process, silent=silent)

    @property
    def shares(self) -> dict[str, list[int]]:
        return {name: _numbers(member.consumer.assigned()) for name, member in self.members.items()}


def _numbers(queues: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in queues if queue.topic == "t"]
