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

from broker.node import BrokerNode
from dledger.core.types import Membership
from dledger_client.aio import Message
from dledger_wire.errors import DledgerError
from tests.sim.cluster import are_equal
from tests.sim.disk_content import Loss
from tests.sim.host import Host
from tests.sim.invariants import check_logs_match
from tests.sim.spread import account
from tests.sim.spread.users import create_users
from tests.unit.client.sim_rig import Rig

TOPIC = "t"
VOTERS = 3
REPLACE_AFTER_S = 1.5
REGISTER_S, EXPIRE_S = 0.5, 3.0
POLICY = (
    f"replicas: {{replaceAfter: {REPLACE_AFTER_S * 1000:.0f}ms}}\n"
    f"name_service: {{registerInterval: {REGISTER_S * 1000:.0f}ms, expireAfter: {EXPIRE_S:.0f}s}}\n"
)
MESSAGES = 60
SETTLE_S = 90.0
WATCH_S = 0.02
LAG = 64  # entries that a learner may lack when its promotion is proposed
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
    """One run.  ``replaced``: how many spare nodes became voters."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig, self.cluster = rig, rig.cluster
        self.draw = random.Random(f"replacing {seed}")
        self.absences = plan_absences(list(self.cluster.groups), self.draw)
        self.faults = [str(each) for each in self.absences]
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.replaced = 0
        self._wiped: set[str] = set()
        self._known: dict[str, tuple[int, Membership]] = {}
        self._led_s: dict[str, float] = {}  # when a group had a master last
        self._lost_turn: set[str] = set()  # groups that had none for so long that another one could begin

    async def run(self) -> None:
        await create_users(self.rig)
        await self.rig.topic(TOPIC, queues=4)
        for group in self.cluster.groups:
            self._watch_group(group)
        watching = self.cluster.loop.spawn(self.cluster.loop.world, self._watch(), "watch")
        producing = asyncio.ensure_future(self._produce())
        running = []
        for absence in self.absences:
            await asyncio.sleep(absence.after_s)
            running.append(self.cluster.loop.spawn(self.cluster.loop.world, self._carry_out(absence), "absence"))
        await asyncio.gather(*running)
        self._repair()
        await producing
        await self.cluster.until(self._is_well, "the groups are not whole", SETTLE_S, every_s=WATCH_S)
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
        while cluster.loop.now_s < back_at_s and not self._is_under_way(absence.group):  # noqa: ASYNC110 - virtual time
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
            self._wiped.add(name)
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

    def _is_under_way(self, group: str) -> bool:
        master = self.cluster.master_node(group)
        return master is not None and master.store.replica_group.replacement is not None

    def _is_voter(self, name: str) -> bool:
        """In any configuration that a node of its group has, committed or not."""
        nodes = [host.node for host in self.cluster.hosts.values() if host.node is not None and self.cluster.is_up(host)]
        return any(name in node.raft.membership.voters for node in nodes)

    async def _watch(self) -> None:
        while True:
            for group in self.cluster.groups:
                self._watch_group(group)
            self._watch_turns()
            await asyncio.sleep(WATCH_S)

    def _watch_turns(self) -> None:
        now_s = self.cluster.loop.now_s
        for group in self.cluster.groups:
            if self.cluster.master_node(group) is None:
                if now_s - self._led_s.get(group, now_s) >= EXPIRE_S - REGISTER_S:
                    self._lost_turn.add(group)
                continue
            self._led_s[group] = now_s
            if not self._is_under_way(group):
                self._lost_turn.discard(group)
        busy = [group for group in self.cluster.groups if self._is_under_way(group)]
        if len(busy) > 1 and not self._lost_turn.intersection(busy):
            self._violated(f"{' and '.join(busy)} replace members at the same time")

    def _watch_group(self, group: str) -> None:
        for host in self.cluster.hosts_of(group):
            if host.node is None or not self.cluster.is_up(host):
                continue
            index, members = host.node.raft.committed_members()
            before = self._known.get(group)
            if before is None or index > before[0]:
                self._known[group] = index, members
                self._check_change(group, index, members, before[1] if before is not None else None)

    def _check_change(self, group: str, index: int, now: Membership, before: Membership | None) -> None:
        self.cluster.trace.note("members", group, f"{index}: {now.voters} {now.learners}")
        if not VOTERS - 1 <= len(now.voters) <= VOTERS + 1:
            self._violated(f"{group} has the voters {now.voters}")
        for other, (_, theirs) in self._known.items():
            shared = {*theirs.voters, *theirs.learners} & {*now.voters, *now.learners} if other != group else set()
            # One that was wiped is somebody new, and free: the group that it belonged to may not have removed it yet, and gets no answer.
            if shared - self._wiped or shared & set(theirs.voters) & set(now.voters):
                self._violated(f"{shared} belong to {group} and to {other}")
        for name in now.voters if before is not None else ():
            if before is not None and name not in before.voters and name in self.cluster.spares.hosts:
                self.replaced += 1
                node = self.cluster.spares.hosts[name].node
                if node is not None and node.is_open and node.raft.log.last.index < index - LAG:
                    self._violated(f"{name} became a voter of {group} at {index} and has {node.raft.log.last.index} entries")

    def _violated(self, text: str) -> None:
        self.cluster.trace.note("VIOLATED", "spares", text)
        self.cluster.groups["g0"].invariants.violations.append(f"spare nodes: {text}")

    # The end

    def _is_well(self) -> bool:
        return all(self._settled_voters(group) is not None for group in self.cluster.groups)

    def _settled_voters(self, group: str) -> list[BrokerNode] | None:
        """The voters of a group that is whole, when all have applied the same; None before that."""
        master = self.cluster.master_node(group)
        if master is None or self._is_under_way(group):
            return None
        voters = master.raft.committed_members()[1].voters
        hosts = [self.cluster.hosts[name] for name in voters]
        nodes = [host.node for host in hosts if host.node is not None and self.cluster.is_up(host)]
        return nodes if len(nodes) == VOTERS and are_equal(nodes) else None

    async def _account(self) -> None:
        found = []
        for group in self.cluster.groups:
            nodes = self._settled_voters(group) or []
            await check_logs_match(nodes)
            self.cluster.groups[group].invariants.check_nothing_lost(nodes)
            found += await account.stored_in(nodes[0], TOPIC)
        account.check_once(TOPIC, found, self.sent, self.acknowledged)
