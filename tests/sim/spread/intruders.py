"""Strangers in a secured cluster of several groups (``strangers.py``), and a user that is allowed to write at times.

Owns the rules:

    a right that was taken away, once all groups have confirmed it, is away for good: nothing sent after that is stored, whoever leads
    in the end all groups have the same users and rules
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from dledger_client.aio import AccessRule, Message, Producer
from dledger_client.runtime.environment import use_environment
from dledger_wire.errors import (
    DledgerError,
    InvalidArgumentError,
)
from tests.sim.result import LivenessError
from tests.sim.spread.strangers import MALLORY, Strangers
from tests.sim.spread.users import create_users

if TYPE_CHECKING:
    from tests.sim.spread.world import SpreadWorld

TEMPORARY = "temporary"
TOPIC = "plain"
ROUNDS, FORBIDDEN = 3, 3
SEND_MS = 2500
CHANGE_S = 60.0


class Intruders(Strangers):
    """Of one run; does nothing in a cluster that is not secured.  ``met``: how often each answer was."""

    def __init__(self, world: SpreadWorld, draw: random.Random) -> None:
        super().__init__(world.cluster, draw)
        self._world = world
        self.confirmed = 0  # revocations that all groups confirmed

    async def prepare(self) -> None:
        """Make the users of the run."""
        await create_users(self._world.rig, (MALLORY, TEMPORARY))

    async def come(self) -> None:
        if self._security.is_on:
            await asyncio.gather(self.knock(), self._come_and_go())

    # Who may at times

    async def _come_and_go(self) -> None:
        """One producer all the while, so that nothing is asked anew that was asked while it had its right."""
        world = self._world
        rules = [AccessRule(TEMPORARY, "allow", "topic", TOPIC, "write"), AccessRule(TEMPORARY, "allow", "topic", TOPIC, "describe")]
        around = world.rig.around() | {"network": self._network(self._security.of_user(TEMPORARY))}
        with use_environment(**around):
            producer = Producer(world.cluster.bootstrap, TEMPORARY, send_timeout_ms=SEND_MS)
        async with producer:
            for turn in range(ROUNDS):
                await asyncio.sleep(self._draw.random() * 1.5)
                await self._change(lambda admin: admin.change_rules(added=rules))
                await self._send(producer, [b"t%d:%d" % (turn, number) for number in range(FORBIDDEN)], allowed=True)
                if turn == ROUNDS - 1 and self._draw.random() < 0.5:
                    confirmed = await self._change(lambda admin: admin.delete_user(TEMPORARY))
                else:
                    confirmed = await self._change(lambda admin: admin.change_rules(removed=rules))
                if confirmed:
                    self.confirmed += 1
                    await self._send(producer, [b"forbidden %d:%d" % (turn, number) for number in range(FORBIDDEN)], allowed=False)

    async def _send(self, producer: Producer, bodies: list[bytes], *, allowed: bool) -> None:
        world = self._world
        for body in bodies:
            if allowed:
                world.sent[TOPIC].add(body)
            try:
                await producer.send(Message(TOPIC, body))
            except DledgerError as error:
                self.met[f"{TEMPORARY}: {error.code}"] += 1
                continue
            assert allowed, f"{body!r} was stored after the right to write it had been taken away everywhere"
            world.acknowledged[TOPIC].add(body)

    async def _change(self, work: object) -> bool:
        """Repeat a change until it is made; whether every group has confirmed it."""
        limit_s = self._world.cluster.loop.now_s + CHANGE_S
        async with self._world.rig.admin() as admin:
            while True:
                try:
                    return not (await work(admin)).waiting  # type: ignore[operator]
                except InvalidArgumentError:
                    return False  # it was made by an attempt before this one, of which no answer came
                except DledgerError as error:
                    if self._world.cluster.loop.now_s > limit_s:
                        raise LivenessError(f"users and rules cannot be changed for {CHANGE_S:.0f} s: {error!r}") from error
                    await asyncio.sleep(0.2)

    # The end

    def agree(self) -> bool:
        """Whether all nodes have the same users and rules."""
        hosts = self._world.cluster.hosts.values()
        return len({host.node.store.security.version for host in hosts if host.node is not None}) == 1
