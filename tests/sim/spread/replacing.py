"""Members that stay away, and spare nodes that take their places, while leaders, spare nodes and name servers fail at awkward moments.

Owns one run of scenario ``spares``: who is away for how long, what strikes while a replacement is under way, and what must be true of it:

    a group has at least two of its three voters in every committed configuration, and four at most
    a spare node that keeps its folder is a member of one group only
    it becomes a voter only when it has what was committed before its promotion was proposed
    at most one group replaces a member at a time (one that has no leader for expireAfter has lost its turn)
    in the end every group has three voters that are up, nothing is under way, and no acknowledged message is lost or doubled
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from dledger_client.aio import Message
from dledger_wire.errors import DledgerError
from tests.sim.disk_content import Loss
from tests.sim.host import Host
from tests.sim.invariants import check_logs_match
from tests.sim.spread import account
from tests.sim.spread.replacement_watch import WATCH_S, ReplacementWatch
from tests.sim.spread.users import create_users
from tests.unit.client.sim_rig import Rig

TOPIC = "t"
MESSAGES = 60
SETTLE_S = 90.0
KINDS = ("kill the leader", "power of the leader", "kill the spare", "wipe the spare", "cut the spare off", "member back", "name server")


@dataclass(frozen=True, slots=True)
class Absence:
    """One member of ``group`` is away for ``lasts_s``, ``after_s`` the absence before has begun.

    ``strikes``: what happens meanwhile, so long after a replacement has begun.
    """

    group: str
    after_s: float
    lasts_s: float
    by_power: bool
    strikes: tuple[tuple[float, str], ...]

    def __str__(self) -> str:
        meanwhile = ", ".join(f"{kind} after {after_s:.3f} s" for after_s, kind in self.strikes)
        return f"{self.group}: a member away for {self.lasts_s:.3f} s, {self.after_s:.3f} s after; meanwhile {meanwhile or 'nothing'}"


def plan_absences(groups: list[str], draw: random.Random) -> list[Absence]:
    found = []
    for _ in range(draw.randint(1, 3)):
        strikes = sorted((draw.random() * draw.choice((0.2, 3.0)), draw.choice(KINDS)) for _ in range(draw.randint(0, 3)))
        lasts_s = draw.choice((2.0, 8.0, 20.0)) * (0.5 + draw.random())
        after_s = draw.random() * draw.choice((2.0, 2.0, 15.0))
        found.append(Absence(draw.choice(groups), after_s, lasts_s, draw.random() < 0.3, tuple(strikes)))
    return found


class ReplacingWorld:
    """One run."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig, self.cluster = rig, rig.cluster
        self.draw = random.Random(f"replacing {seed}")
        self.absences = plan_absences(list(self.cluster.groups), self.draw)
        self.faults = [str(each) for each in self.absences]
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.watch = ReplacementWatch(rig.cluster)

    async def run(self) -> None:
        await create_users(self.rig)
        await self.rig.topic(TOPIC, queues=4)
        watching = self.watch.start()
        producing = asyncio.ensure_future(self._produce())
        running = []
        for absence in self.absences:
            await asyncio.sleep(absence.after_s)
            running.append(self.cluster.loop.spawn(self.cluster.loop.world, self._carry_out(absence), "absence"))
        await asyncio.gather(*running)
        self._repair()
        await producing
        await self.cluster.until(self.watch.is_well, "the groups are not whole", SETTLE_S, every_s=WATCH_S)
        watching.cancel()
        await self._account()

    async def _produce(self) -> None:
        async with self.rig.producer(send_timeout_ms=120_000) as producer:
            for number in range(MESSAGES):
                body = b"m:%d" % number
                self.sent.add(body)
                try:
                    await producer.send(Message(TOPIC, body))
                except DledgerError as error:
                    if not error.outcome_unknown:
                        raise
                else:
                    self.acknowledged.add(body)
                await asyncio.sleep(self.draw.random() * 0.3)

    # Faults

    async def _carry_out(self, absence: Absence) -> None:
        cluster, draw = self.cluster, self.draw
        master = self.cluster.master_node(absence.group)
        if master is None:
            return
        voters = [str(node) for node in master.raft.membership.voters]
        victim = draw.choice(voters)
        cluster.trace.note("absence", victim, str(absence))
        self._end(victim, by_power=absence.by_power)
        back_at_s = cluster.loop.now_s + absence.lasts_s
        while cluster.loop.now_s < back_at_s and not self.watch.is_under_way(absence.group):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(WATCH_S)
        began_s = cluster.loop.now_s
        for after_s, kind in absence.strikes:
            await asyncio.sleep(max(0.0, began_s + after_s - cluster.loop.now_s))
            await self._strike(absence.group, kind, victim)
        await asyncio.sleep(max(0.0, back_at_s - cluster.loop.now_s))
        self._start(victim)

    async def _strike(self, group: str, kind: str, victim: str) -> None:
        cluster, master, spares = self.cluster, self.cluster.master(group), self.cluster.spares
        cluster.trace.note("strike", group, kind)
        bound = [name for name, host in spares.hosts.items() if host.group == group and host.process is not None]
        free = [name for name, host in spares.hosts.items() if not host.group and host.process is not None]
        if "leader" in kind and master is not None:
            self._end(master, by_power="power" in kind)
            await asyncio.sleep(self.draw.random() * 1.5)
            self._start(master)
        elif kind == "member back":
            self._start(victim)
        elif kind == "name server" and cluster.name_servers.hosts:
            name = self.draw.choice(list(cluster.name_servers.hosts))
            cluster.name_servers.wipe(name)
            await asyncio.sleep(self.draw.random())
            cluster.name_servers.ensure_running(name, cluster.config)
        elif "spare" in kind and (bound or free):
            await self._strike_spare(self.draw.choice(bound or free), kind)

    async def _strike_spare(self, name: str, kind: str) -> None:
        spares, host = self.cluster.spares, self.cluster.spares.hosts[name]
        if kind == "cut the spare off":
            others = [machine.ip for machine in self.cluster.machines() if machine.ip != host.ip]
            pairs = [pair for other in others for pair in ((host.ip, other), (other, host.ip))]
            for pair in pairs:
                self.cluster.net.cut(*pair)
            await asyncio.sleep(self.draw.random() * 2)
            for pair in pairs:
                self.cluster.net.heal(*pair)
            return
        if kind == "wipe the spare" and not self._is_voter(name):  # a voter that forgets its votes is a member replaced by hand
            spares.wipe(name)
            self.watch.wiped.add(name)
        else:
            spares.kill(name)
        await asyncio.sleep(self.draw.random() * 2)
        self._start(name)

    def _end(self, name: str, *, by_power: bool) -> None:
        if by_power and name in self.cluster.hosts:
            self.cluster.power_off(name, self.draw.choice(list(Loss)))
        elif name in self.cluster.spares.hosts:
            self.cluster.spares.kill(name)
        else:
            self.cluster.kill(name)

    def _start(self, name: str) -> None:
        if self._host(name).process is None:
            self.cluster.start(name)

    def _repair(self) -> None:
        self.cluster.net.heal_all()
        for name in self.cluster.name_servers.hosts:
            self.cluster.name_servers.ensure_running(name, self.cluster.config)
        for name in [*self.cluster.hosts, *self.cluster.spares.hosts]:
            self._start(name)

    # Looking

    def _host(self, name: str) -> Host:
        return self.cluster.spares.hosts.get(name) or self.cluster.hosts[name]

    def _is_voter(self, name: str) -> bool:
        """In any configuration that a node of its group has, committed or not."""
        nodes = [host.node for host in self.cluster.hosts.values() if host.node is not None and self.cluster.is_up(host)]
        return any(name in node.raft.membership.voters for node in nodes)

    # The end

    async def _account(self) -> None:
        found = []
        for group in self.cluster.groups:
            nodes = self.watch.settled_voters(group) or []
            await check_logs_match(nodes)
            self.cluster.groups[group].invariants.check_nothing_lost(nodes)
            found += await account.stored_in(nodes[0], TOPIC)
        account.check_once(TOPIC, found, self.sent, self.acknowledged)
