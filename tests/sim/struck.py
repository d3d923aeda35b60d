"""What strikes a world of clients beside one replica group: nodes and members of consumer groups die, stand still and are cut off.

Owns the members' names and the list of what was carried out; the seed draws it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.sim.loop import Process
from tests.unit.client.push_rig import Group
from tests.unit.client.sim_rig import Rig

SETTLE_S = 60.0


class StruckWorld:
    """``groups``: whose members are struck, too."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.draw = rig.cluster.random
        self.groups: list[Group] = []
        self.faults: list[str] = []
        self._names = 0

    async def join(self, group: Group, name: str = "") -> None:
        self._names += 1
        await group.start(name or f"c{self._names}")

    async def strike(self, count: int) -> None:
        steps: list[Callable[[], object]] = [self._kill_node, self._isolate_node, self._pause_node]
        steps += [self._kill_member, self._isolate_member, self._pause_member]
        for _ in range(count):
            await asyncio.sleep(0.2 + self.draw.random())
            await self.draw.choice(steps)()
        self.heal()

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

    async def _pause_node(self) -> None:
        cluster = self.rig.cluster
        victim = cluster.master() if self.draw.random() < 0.7 else self.draw.choice(list(cluster.hosts))
        process = cluster.hosts[victim].process if victim is not None else None
        if process is not None:
            self.faults.append(f"pause {victim}")
            await self._pause(process)

    async def _pause_member(self) -> None:
        """Often for longer than a master waits for it (``sessions.SESSION_MS``)."""
        group = self.draw.choice(self.groups)
        victim = self.draw.choice(list(group.members))
        self.faults.append(f"pause {group.name} {victim}")
        await self._pause(group.members[victim].process)

    async def _pause(self, process: Process) -> None:
        self.rig.cluster.loop.pause(process)
        await asyncio.sleep(self.draw.random() * 4)
        self.rig.cluster.loop.resume(process)

    async def _kill_member(self) -> None:
        group = self.draw.choice(self.groups)
        victim = self.draw.choice(list(group.members))
        self.faults.append(f"kill {group.name} {victim}")
        group.kill(victim, silent=self.draw.random() < 0.5)
        await asyncio.sleep(self.draw.random() * 3)
        await self.join(group, victim if group.options.get("broadcast") else "")  # it goes on from its own file

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

    def heal(self) -> None:
        self.rig.cluster.net.heal_all()
        for node_id in self.rig.cluster.hosts:
            self.rig.cluster.ensure_running(node_id)

    async def until(self, condition: Callable[[], bool], otherwise: str) -> None:
        await self.rig.cluster.until(condition, otherwise, SETTLE_S)
