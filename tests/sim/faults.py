"""What strikes a simulated cluster: single faults with all their details drawn beforehand, and how each is carried out and undone.

Owns the kinds of faults.  A plan is a list of ``Fault``; since nothing is drawn while it runs, any of its faults may be left out without
changing the others, which is what lets a failing plan be shrunk.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from broker.node import BrokerNode
from dledger.snapshot.source import SnapshotSource
from dledger_wire.errors import DledgerError
from store.durability.expiry import Expired
from tests.sim import disk_faults, folders, operators, recipes, recovery, rot, spare_hosts
from tests.sim.cluster import SimCluster
from tests.sim.disk_content import Loss
from tests.sim.host import Host, Machine
from tests.sim.shrink import Times

LEADER = "leader"
MASTER_WAIT_S = 3.0
POLL_S = 0.02
YEAR_MS = 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: ``after_s`` the one before began (or ended, when that one ``blocks``), on ``nodes`` for ``lasts_s``."""

    kind: str
    after_s: float
    nodes: tuple[str, ...]  # the first may be LEADER: whoever is master then; with several groups ``leader:g1``
    lasts_s: float = 0.0
    loss: Loss = Loss.ALL_KEPT
    blocks: bool = True
    amount: float = 0.0  # a clock's rate, a link's delay, a disk's bytes: what the kind makes of it

    def __str__(self) -> str:
        loss = f" losing {self.loss.value}" if self.kind == "power" else ""
        return f"{self.kind} {','.join(self.nodes)} for {self.lasts_s:.3f} s{loss}, {self.after_s:.3f} s after"


Strike = Callable[[SimCluster, Fault, list[Host]], Awaitable[None]]


def shortened(plan: Sequence[Fault], times: Times | None) -> list[Fault]:
    """The same faults, some of them sooner or shorter."""
    factors = times or {}
    found = []
    for position, fault in enumerate(plan):
        delay, duration = factors.get(position, (1.0, 1.0))
        found.append(replace(fault, after_s=fault.after_s * delay, lasts_s=fault.lasts_s * duration))
    return found


async def carry_out(cluster: SimCluster, plan: Sequence[Fault], keep: Sequence[int] | None = None) -> None:
    """Let every fault of the plan happen (or those at the positions in ``keep``), and wait until the last has ended."""
    running = []
    for position, fault in enumerate(plan):
        if keep is not None and position not in keep:
            continue
        await asyncio.sleep(fault.after_s)
        strike = cluster.loop.spawn(cluster.loop.world, _strike(cluster, position, fault), fault.kind)
        running.append(strike)
        if fault.blocks:
            await strike
    for strike in running:
        await strike


async def _strike(cluster: SimCluster, position: int, fault: Fault) -> None:
    nodes = [await _node(cluster, name) for name in fault.nodes]
    hosts = [cluster.hosts[name] for name in dict.fromkeys(nodes)]
    cluster.trace.note("fault", hosts[0].ip, f"{position}: {fault}")
    await STRIKES[fault.kind](cluster, fault, hosts)
    cluster.trace.note("over", hosts[0].ip, f"{position}: {fault.kind}")


async def _node(cluster: SimCluster, name: str) -> str:
    kind, _, group = name.partition(":")
    if kind != LEADER:
        return name
    group = group or "g0"
    for _ in range(round(MASTER_WAIT_S / POLL_S)):
        master = cluster.master(group)
        if master is not None:
            return master
        await asyncio.sleep(POLL_S)
    return cluster.groups[group].node_ids[0]


# Processes and machines


async def _kill(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    await _end(cluster, fault, hosts, lambda host: cluster.kill(host.node_id))


async def _power(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    await _end(cluster, fault, hosts, lambda host: cluster.power_off(host.node_id, fault.loss))


async def _lone_power(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """The power goes for a machine, unless a majority would be suspect then: only its process ends then (ASYNC_FLUSH)."""

    def end(host: Host) -> None:
        loss = cluster.groups[host.group].async_loss
        if loss is not None and not loss.may_lose_power(host.node_id, cluster.suspects(host.group)):
            cluster.kill(host.node_id)
        else:
            cluster.power_off(host.node_id, fault.loss)

    await _end(cluster, fault, hosts, end)


async def _power_of_others(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """The power goes for all but the host named, which the others do not see for a while: they elect without what it knows."""
    others = [host for host in cluster.hosts_of(hosts[0].group) if host is not hosts[0]]
    for host in others:
        cluster.power_off(host.node_id, fault.loss)
    for host in others:
        cluster.net.cut(host.ip, hosts[0].ip)
        cluster.net.cut(hosts[0].ip, host.ip)
        cluster.ensure_running(host.node_id)
    await asyncio.sleep(fault.lasts_s)
    for host in others:
        cluster.net.heal(host.ip, hosts[0].ip)
        cluster.net.heal(hosts[0].ip, host.ip)


async def _end(cluster: SimCluster, fault: Fault, hosts: list[Host], end: Callable[[Host], None]) -> None:
    for host in hosts:
        end(host)
    for host in hosts:
        await asyncio.sleep(fault.lasts_s / len(hosts))
        cluster.ensure_running(host.node_id)


async def _restart(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """A rolling restart as an operator does it: each hands over and stops in order."""
    for host in hosts:
        await cluster.stop(host.node_id)
        await asyncio.sleep(fault.lasts_s / len(hosts))
        cluster.ensure_running(host.node_id)


async def _pause(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    processes = [host.process for host in hosts if host.process is not None]
    for process in processes:
        cluster.loop.pause(process)
    await asyncio.sleep(fault.lasts_s)
    for process in processes:
        cluster.loop.resume(process)


async def _transfer(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """An operator moves leadership; nobody promises that it works while everything breaks."""
    master = cluster.master(hosts[0].group)
    host = cluster.hosts[master] if master is not None else hosts[0]
    if host.process is None or host.node is None or not cluster.is_up(host):
        return
    operators.move_leadership(cluster, host, hosts[0].node_id if hosts[0] is not host else None)
    await asyncio.sleep(fault.lasts_s)


# Retention


async def _expire(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """An operator deletes all old segments, on every node named that is up."""

    def report(host: Host, done: Expired) -> None:
        cluster.trace.note("expired", host.ip, f"to entry {done.first_index}")

    await _expire_on(cluster, fault, hosts, 0, report)


async def _expire_old(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Segments go by age: none is old enough in a run, whatever a clock says."""

    def report(host: Host, done: Expired) -> None:
        if done.segments:
            cluster.groups[host.group].invariants.violations.append(f"{host.node_id}: {done.segments} segments deleted as old")

    await _expire_on(cluster, fault, hosts, None, report)


async def _expire_on(
    cluster: SimCluster, fault: Fault, hosts: list[Host], older_than_ms: int | None, report: Callable[[Host, Expired], None]
) -> None:
    for host in hosts:
        node, process = host.node, host.process
        if node is None or process is None or not cluster.is_up(host):
            continue

        async def expire(node: BrokerNode = node, host: Host = host) -> None:
            try:
                done = await node.store.expiry.expire(older_than_ms)
            except (DledgerError, OSError) as error:
                cluster.trace.note("refused", host.ip, str(error))
            else:
                report(host, done)

        cluster.loop.spawn(process, expire(), "expire")
    await asyncio.sleep(fault.lasts_s)


async def _flip_pieces(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Bits of copies flip on their way, in every third piece or so."""
    until_s = cluster.loop.now_s + fault.lasts_s
    for host in cluster.hosts.values():
        if host.node is not None and host.node.is_open:
            _flip_pieces_of(cluster, host.node.raft._replica.source, until_s, fault.amount)
    await asyncio.sleep(fault.lasts_s)


def _flip_pieces_of(cluster: SimCluster, source: SnapshotSource, until_s: float, where: float) -> None:
    made, count = source._piece, 0

    def flipped(copy_id: str, pos: int, data: bytes) -> bytes:
        nonlocal count
        count += 1
        piece = made(copy_id, pos, data)
        if count % 3 or cluster.loop.now_s > until_s:
            return piece
        at = len(piece) - 1 - round(where * (len(data) - 1))
        return piece[:at] + bytes([piece[at] ^ 1 << count % 8]) + piece[at + 1 :]

    source._piece = flipped  # type: ignore[method-assign]


# Cables


async def _cut(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """One direction between two hosts; from one host to nowhere in particular: to all others."""
    await _cut_pairs(cluster, fault, [(hosts[0], other) for other in _others(cluster, hosts)])


async def _deafen(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Nothing reaches the host, everything it says arrives."""
    await _cut_pairs(cluster, fault, [(other, hosts[0]) for other in _others(cluster, hosts)])


async def _isolate(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Both directions, between the hosts named and everybody else (two of three together: the third is alone)."""
    outside = [machine for machine in cluster.machines() if machine not in hosts]
    await _cut_pairs(cluster, fault, [pair for host in hosts for other in outside for pair in ((host, other), (other, host))])


async def _bridge(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Two hosts do not see each other, and both see all others."""
    other = _others(cluster, hosts)[0]
    await _cut_pairs(cluster, fault, [(hosts[0], other), (other, hosts[0])])


def _others(cluster: SimCluster, hosts: list[Host]) -> Sequence[Machine]:
    """The hosts named behind the first, or all the others."""
    return hosts[1:] or [machine for machine in cluster.machines() if machine is not hosts[0]]


async def _cut_pairs(cluster: SimCluster, fault: Fault, pairs: Sequence[tuple[Machine, Machine]]) -> None:
    for source, target in pairs:
        cluster.net.cut(source.ip, target.ip)
    await asyncio.sleep(fault.lasts_s)
    for source, target in pairs:
        cluster.net.heal(source.ip, target.ip)


async def _cut_clients(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Answers to clients do not arrive."""
    for ip in cluster.client_ips:
        cluster.net.cut(hosts[0].ip, ip)
    await asyncio.sleep(fault.lasts_s)
    for ip in cluster.client_ips:
        cluster.net.heal(hosts[0].ip, ip)


async def _reset(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    for other in (*(host.ip for host in _others(cluster, hosts)), *cluster.client_ips):
        cluster.net.break_connections(hosts[0].ip, other)


async def _slow_link(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    links = [cluster.net.link(hosts[0].ip, other.ip) for other in _others(cluster, hosts)]
    for link in links:
        link.extra_s = fault.amount * 0.1
    await asyncio.sleep(fault.lasts_s)
    for link in links:
        link.extra_s = 0.0


# Clocks and disks


async def _clock(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    hosts[0].clock.set_rate(1.0 + (fault.amount - 0.5) * 0.04)
    hosts[0].clock.jump_wall(round((fault.amount - 0.5) * 10_000))


async def _clock_leap(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """A wall clock shows another year for a while: a dead battery, a bad time server."""
    leap_ms = round((fault.amount - 0.5) * 20 * YEAR_MS)
    hosts[0].clock.jump_wall(leap_ms)
    await asyncio.sleep(fault.lasts_s)
    hosts[0].clock.jump_wall(-leap_ms)


async def _bit_rot(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Bits flip on one disk, under a dead process or (``amount`` above a half) a running one, which starts anew later."""
    host, draw = hosts[0], random.Random(fault.amount)
    if not rot.is_minority(cluster, host):
        return
    node = host.node
    entries = rot.entry_bytes(cluster, node) if node is not None and cluster.is_up(host) else []
    running = fault.amount > 0.5
    if not running:
        cluster.kill(host.node_id)
    for _ in range(draw.choice((1, 1, 2, 5))):
        rot.strike(cluster, host, draw, entries)
    await asyncio.sleep(fault.lasts_s)
    if running and cluster.is_up(host):
        cluster.kill(host.node_id)
    cluster.ensure_running(host.node_id)


async def _damage(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Sectors or files of one disk are damaged, under a dead process or a running one, which starts anew later."""
    host, draw = hosts[0], random.Random(fault.amount)
    if not rot.is_minority(cluster, host):
        return
    node = host.node
    entries = rot.entry_bytes(cluster, node) if node is not None and cluster.is_up(host) else []
    if fault.kind == "lost-units" or draw.random() < 0.5:
        cluster.kill(host.node_id)
    if fault.kind == "lost-units":
        rot.strike_units(host, draw)
    elif fault.kind == "cut-file":
        rot.strike_file(host, draw, entries)
    else:
        rot.strike_sector(host, draw, entries, misdirected=fault.kind == "misdirected-sector")
    await asyncio.sleep(fault.lasts_s)
    cluster.kill(host.node_id)
    cluster.ensure_running(host.node_id)


def _recipe(work: Callable[[SimCluster, Host, random.Random, float], Awaitable[None]]) -> Strike:
    async def strike(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
        await work(cluster, hosts[0], random.Random(fault.amount), fault.lasts_s)

    return strike


async def _members(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """An operator takes a member out (the leader, if that is named) and brings it back, with its folder or an empty one."""
    if cluster.operator_at_work:
        return
    cluster.operator_at_work = True
    until_s = cluster.loop.now_s + fault.lasts_s + 1.0
    try:
        await operators.take_out_and_bring_back(cluster, hosts[0], random.Random(fault.amount), until_s)
    finally:
        cluster.operator_at_work = False


async def _replace_member(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    await folders.replace(cluster, hosts[0], random.Random(fault.amount), fault.lasts_s)


async def _lost_folder(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    await folders.lose(cluster, hosts[0], fault.lasts_s)


async def _old_folder(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    await folders.put_old_back(cluster, hosts[0], fault.lasts_s)


async def _slow_node(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Others use its processors: it stands still for moments, again and again."""
    host, draw, until_s = hosts[0], random.Random(fault.amount), cluster.loop.now_s + fault.lasts_s
    while cluster.loop.now_s < until_s:
        process = host.process
        if process is not None and not process.paused:
            cluster.loop.pause(process)
            await asyncio.sleep(draw.random() * 0.1)
            cluster.loop.resume(process)
        await asyncio.sleep(draw.random() * 0.05)


STRIKES: dict[str, Strike] = {
    "kill": _kill,
    "power": _power,
    "lone-power": _lone_power,
    "power-of-others": _power_of_others,
    "restart": _restart,
    "pause": _pause,
    "transfer": _transfer,
    "cut": _cut,
    "deafen": _deafen,
    "isolate": _isolate,
    "bridge": _bridge,
    "cut-clients": _cut_clients,
    "reset": _reset,
    "slow-link": _slow_link,
    "clock": _clock,
    "clock-leap": _clock_leap,
    "slow-disk": disk_faults.slow_disk,
    "full-disk": disk_faults.full_disk,
    "failing-sync": disk_faults.failing_sync,
    "failing-reads": disk_faults.failing_reads,
    "failing-writes": disk_faults.failing_writes,
    "full-disks": disk_faults.full_disks,
    "slow-node": _slow_node,
    "flush-mode": _recipe(operators.change_flush_mode),
    "members": _members,
    "replace-member": _replace_member,
    "lost-folder": _lost_folder,
    "old-folder": _old_folder,
    "bit-rot": _bit_rot,
    "expire": _expire,
    "expire-old": _expire_old,
    "flip-pieces": _flip_pieces,
    "stale-pieces": _recipe(recipes.stale_pieces),
    "pause-kill": _recipe(recipes.pause_kill),
    "part-kill": _recipe(recipes.part_kill),
    "cut-kill": _recipe(recipes.cut_kill),
    "part-change": _recipe(recipes.part_change),
    "part-transfer": _recipe(recipes.part_transfer),
    "stale-sector": _damage,
    "misdirected-sector": _damage,
    "cut-file": _damage,
    "lost-units": _damage,
    "recover": _recipe(recovery.recover),
    "spare": _recipe(spare_hosts.end_one),
    "upgrade": _recipe(operators.upgrade),
}
# Kinds that only plans of their own make sense of, and those that came after the seeds of ``everything`` that failed once.
RETENTION = ("expire", "flip-pieces", "stale-pieces")
RECIPES = ("pause-kill", "part-kill", "cut-kill", "part-change", "part-transfer")
DAMAGE = ("stale-sector", "misdirected-sector", "cut-file", "lost-units")
CLOCKS = ("clock-leap", "expire-old")
FOLDERS = ("replace-member", "lost-folder", "old-folder")
ASYNC = ("lone-power", "power-of-others", "flush-mode")
DISKS = ("failing-reads", "failing-writes", "full-disks")
WORLDS = ("recover", "spare", "upgrade")
OF_THEIR_OWN = (*WORLDS, "bit-rot", "members", "slow-node", *ASYNC, *FOLDERS, *RETENTION, *RECIPES, *DAMAGE, *CLOCKS, *DISKS)


# Plans


def plan_kill_the_leader(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """The master dies, once or twice, by its process or its machine, and comes back; sometimes a cable was cut before."""
    plan = []
    for _ in range(draw.choice((1, 1, 2))):
        after_s = 0.02 + draw.random() * 0.25
        if draw.random() < 0.2:
            plan.append(Fault("cut", after_s, (LEADER, draw.choice(names)), draw.random() * 2, blocks=False))
            after_s = draw.random() * 0.5
        kind = draw.choice(("kill", "power"))
        plan.append(Fault(kind, after_s, (LEADER,), draw.random() * draw.choice((0.05, 0.5, 2.0)), draw.choice(list(Loss))))
    return plan


def plan_blackout(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """The power goes for all machines at once, or for a majority: what was acknowledged must be on disks."""
    plan = []
    for _ in range(draw.choice((1, 2))):
        count = len(names) if draw.random() < 0.7 else len(names) // 2 + 1
        loss = draw.choice((Loss.NOTHING_KEPT, Loss.PREFIX, Loss.SUBSET))
        plan.append(Fault("power", 0.02 + draw.random() * 0.3, tuple(draw.sample(names, count)), draw.random() * 0.6, loss))
    return plan


def plan_split(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """The master is cut off from the others but not from clients, so that logs part; then others die while they come together again."""
    plan = []
    for _ in range(draw.randint(2, 4)):
        plan.append(Fault("isolate", 0.05 + draw.random() * 0.3, (LEADER,), 0.2 + draw.random() * 1.5, blocks=draw.random() < 0.6))
        for _ in range(draw.choice((0, 1, 1, 2))):
            victim = draw.choice((LEADER, *names))
            lasts_s = draw.random() * draw.choice((0.05, 0.5))
            plan.append(Fault(draw.choice(("kill", "power")), draw.random() * 0.5, (victim,), lasts_s, draw.choice(list(Loss))))
    return plan


def plan_storm(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Machines lose power and are back at once, again and again, so that elections meet voters that have just been away."""
    plan = []
    for _ in range(draw.randint(8, 20)):
        victims = (draw.choice((LEADER, *names)),)
        plan.append(Fault("power", draw.random() * 0.12, victims, draw.random() * 0.02, draw.choice((Loss.NOTHING_KEPT, Loss.SUBSET))))
    return plan


def plan_members(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Operators change members while others fail."""
    plan = []
    for _ in range(draw.randint(1, 3)):
        nodes = (draw.choice((LEADER, *names)),)
        plan.append(Fault("members", 0.1 + draw.random() * 0.4, nodes, draw.random() * 2, blocks=draw.random() < 0.5, amount=draw.random()))
        for _ in range(draw.choice((0, 1, 1, 2))):
            kind = draw.choice(("kill", "power", "isolate", "transfer", "pause", "cut", "reset", "restart", "slow-disk"))
            nodes = (draw.choice((LEADER, *names)),)
            plan.append(Fault(kind, draw.random() * 0.5, nodes, draw.random(), draw.choice(list(Loss)), amount=draw.random()))
    return plan


def plan_rot(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Bits flip on one machine's disk, while others fail."""
    victim, plan = draw.choice(names), []
    for _ in range(draw.choice((1, 2, 3))):
        lasts_s = draw.random() * 0.5
        plan.append(Fault("bit-rot", 0.1 + draw.random() * 0.6, (victim,), lasts_s, blocks=draw.random() < 0.7, amount=draw.random()))
        if draw.random() < 0.5:
            kind = draw.choice(("kill", "power", "isolate", "transfer", "pause"))
            plan.append(Fault(kind, draw.random() * 0.5, (draw.choice((LEADER, *names)),), draw.random(), draw.choice(list(Loss))))
    return plan


def plan_retention(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """A node is away while the others delete what it needs; it dies again while it copies, or others do, and pieces are damaged."""
    plan = []
    for _ in range(draw.choice((1, 2, 3))):
        victim = draw.choice(names)
        kind, loss = draw.choice(("kill", "power", "isolate")), draw.choice(list(Loss))
        away_s = 0.6 + draw.random()
        plan.append(Fault(kind, draw.random() * 0.4, (victim,), away_s, loss, blocks=False))
        plan.append(Fault("expire", 0.3 + draw.random() * (away_s - 0.3), tuple(names), draw.random() * 0.5))
        if draw.random() < 0.5:
            plan.append(Fault("flip-pieces", draw.random() * 0.5, (victim,), draw.random() * 2, blocks=False, amount=draw.random()))
        for _ in range(draw.choice((0, 1, 2, 4))):
            nodes = (draw.choice((victim, victim, *names)),)
            plan.append(Fault(draw.choice(("kill", "power")), draw.random() * 0.8, nodes, draw.random() * 0.1, draw.choice(list(Loss))))
    return plan


def plan_stale_copies(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """The same, and pieces come late and again while those who give or take them start anew."""
    plan = []
    for _ in range(draw.choice((1, 2))):
        victim = draw.choice(names)
        away_s = 0.6 + draw.random()
        kind, loss = draw.choice(("kill", "power", "isolate")), draw.choice(list(Loss))
        plan.append(Fault(kind, draw.random() * 0.4, (victim,), away_s, loss, blocks=False))
        plan.append(Fault("expire", 0.3 + draw.random() * (away_s - 0.3), tuple(names), draw.random() * 0.5))
        plan.append(Fault("stale-pieces", draw.random() * 0.3, (victim,), 0.5 + draw.random() * 2, amount=draw.random()))
    return plan


def plan_recipes(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Leaders stand still or are alone until there are others, and end at the worst moment; sometimes somebody else does, too."""
    plan = []
    for _ in range(draw.choice((1, 2, 3))):
        node = draw.choice((LEADER, LEADER, LEADER, draw.choice(names)))
        kind, lasts_s = draw.choice((*RECIPES, "full-disk")), draw.random() * draw.choice((0.05, 0.5, 2.0))
        plan.append(Fault(kind, 0.05 + draw.random() * 0.3, (node,), lasts_s, blocks=draw.random() < 0.7, amount=draw.random()))
        if draw.random() < 0.3:
            kind, nodes = draw.choice(("kill", "power")), (draw.choice((LEADER, *names)),)
            plan.append(Fault(kind, draw.random(), nodes, draw.random() * 0.5, draw.choice(list(Loss))))
    return plan


def plan_damage(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Sectors, files and bits are damaged on a minority of the disks, while others fail."""
    victims, plan = draw.sample(names, (len(names) - 1) // 2), []
    for _ in range(draw.choice((1, 2, 3, 4))):
        nodes, lasts_s = (draw.choice(victims),), draw.random() * 0.5
        kind = draw.choice((*DAMAGE, "bit-rot"))
        plan.append(Fault(kind, 0.1 + draw.random() * 0.6, nodes, lasts_s, blocks=draw.random() < 0.7, amount=draw.random()))
        if draw.random() < 0.5:
            kind = draw.choice(("kill", "power", "isolate", "transfer", "pause"))
            plan.append(Fault(kind, draw.random() * 0.5, (draw.choice((LEADER, *names)),), draw.random(), draw.choice(list(Loss))))
    return plan


def plan_disks(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Disks fail now and then, are full or slow, while others fail, and while the log's head is deleted and copies are taken."""
    plan, victim = [], draw.choice(names)
    for _ in range(draw.choice((1, 2, 3, 4))):
        nodes: tuple[str, ...]
        kind, nodes = draw.choice((*DISKS, "full-disk", "failing-sync", "slow-disk")), (draw.choice((LEADER, victim, *names)),)
        lasts_s = 0.1 + draw.random() * draw.choice((0.3, 1.0, 3.0))
        plan.append(Fault(kind, 0.05 + draw.random() * 0.4, nodes, lasts_s, blocks=draw.random() < 0.6, amount=draw.random()))
        if draw.random() < 0.5:
            kind = draw.choice(("kill", "power", "isolate", "transfer", "pause", "restart", "expire"))
            nodes = tuple(names) if kind == "expire" else (draw.choice((LEADER, *names)),)
            plan.append(Fault(kind, draw.random() * 0.5, nodes, draw.random() * draw.choice((0.1, 1.0)), draw.choice(list(Loss))))
    return plan


def plan_clocks(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """One clock at a time leaps by years, the leader's most of all, while nodes die, start, are cut off and hand leadership around."""
    plan = []
    for _ in range(draw.choice((1, 2, 3))):
        for _ in range(draw.choice((0, 1, 1, 2))):
            kind, nodes = draw.choice(("kill", "power", "isolate", "transfer", "pause", "restart")), (draw.choice((LEADER, *names)),)
            plan.append(Fault(kind, draw.random() * 0.3, nodes, draw.random() * 2, draw.choice(list(Loss)), blocks=False))
        nodes = (draw.choice((LEADER, LEADER, *names)),)
        plan.append(Fault("clock-leap", 0.1 + draw.random() * 0.3, nodes, draw.random() * 4, blocks=False, amount=draw.random()))
        for _ in range(draw.choice((1, 2))):
            plan.append(Fault("expire-old", draw.random() * 0.5, tuple(names), draw.random() * 0.5))
        if draw.random() < 0.3:
            victims = tuple(names) if draw.random() < 0.3 else (draw.choice((LEADER, *names)),)
            plan.append(Fault("kill", draw.random() * 0.5, victims, draw.random() * 0.5, blocks=False))
        plan.append(Fault("expire-old", 4.0, tuple(names), 0.1))  # by then the clock is right again
    return plan


def plan_async(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Under ASYNC_FLUSH machines lose power, fewer than a majority before they are sound again, while others are behind and cut off."""
    plan = []
    for _ in range(draw.randint(2, 5)):
        behind = (draw.choice((LEADER, *names)),)
        plan.append(Fault(draw.choice(("isolate", "isolate", "pause")), draw.random() * 0.2, behind, draw.random() * 1.5, blocks=False))
        for _ in range(draw.choice((1, 1, 2))):
            nodes = (draw.choice((LEADER, *names)),)
            kind, lasts_s = draw.choice(("lone-power", "lone-power", "kill")), draw.random() * draw.choice((0.05, 0.5))
            plan.append(Fault(kind, draw.random() * 0.3, nodes, lasts_s, draw.choice((Loss.NOTHING_KEPT, Loss.PREFIX))))
        if draw.random() < 0.4:
            kind, nodes = draw.choice(("isolate", "transfer", "restart")), (draw.choice((LEADER, *names)),)
            plan.append(Fault(kind, draw.random() * 0.3, nodes, draw.random() * 1.5))
    return plan


def plan_async_blackout(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Under ASYNC_FLUSH all machines, a majority, or all but the leader, which is cut off then, lose power."""
    plan = []
    for _ in range(draw.choice((1, 2, 2, 3))):
        kind, after_s = draw.choice(("power", "power-of-others", "power-of-others")), 0.1 + draw.random() * 0.6
        loss = draw.choice((Loss.NOTHING_KEPT, Loss.PREFIX, Loss.SUBSET))
        count = draw.choice((len(names), len(names) // 2 + 1))
        nodes = tuple(draw.sample(names, count)) if kind == "power" else (LEADER,)
        plan.append(Fault(kind, after_s, nodes, 0.2 + draw.random() * draw.choice((0.3, 3.0)), loss))
    return plan


def plan_everything(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Swarm: a random subset of the kinds, several faults, some of them at the same time."""
    return _some_of(sorted(set(STRIKES) - set(OF_THEIR_OWN)), names, draw)


def plan_swarm(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """The same with operators who change members, damaged disks, slow nodes and faults in several steps."""
    return _some_of(sorted(set(STRIKES) - {*WORLDS, *RETENTION, *FOLDERS, *ASYNC, *DISKS} - set(CLOCKS)), names, draw)


def plan_folders(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Members are replaced, others miss what is written, and an old folder or an empty one is put in their place while others are down."""
    plan = []
    for _ in range(draw.choice((1, 2, 2))):
        victim = draw.choice(names)
        away = draw.choice([name for name in names if name != victim])
        kind = draw.choice(("old-folder", "old-folder", "lost-folder"))
        if kind == "old-folder":
            plan.append(Fault("replace-member", 0.1 + draw.random() * 0.3, (victim,), 4.0))
        lasts_s = 1.0 + draw.random() * 2
        plan.append(Fault("isolate", draw.random() * 0.3, (away,), 0.3 + draw.random() * 0.5, blocks=False))
        plan.append(Fault(kind, draw.random() * 0.3, (victim,), lasts_s, blocks=False))
        other = draw.choice([name for name in (LEADER, *names) if name not in (victim, away)])
        plan.append(Fault(draw.choice(("kill", "power", "isolate")), 0.05, (other,), lasts_s, draw.choice(list(Loss))))
    return plan


def plan_mixture(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Members change while the head is deleted, disks are full while leadership moves, clocks jump while nodes copy: several at a time.

    No damage: what the others have deleted, nobody can repair.  One clock leaps at a time.
    """
    kinds = sorted(set(STRIKES) - {*WORLDS, "bit-rot", "bridge", "expire-old", *ASYNC, *FOLDERS, *DAMAGE})
    chosen, plan = draw.sample(kinds, draw.randint(3, 8)), []
    for _ in range(draw.randint(4, 10)):
        nodes: tuple[str, ...]
        kind, nodes = draw.choice((*chosen, "expire", "members")), (draw.choice((LEADER, *names)),)
        if kind == "slow-link":
            nodes = tuple(draw.sample(names, 2))
        elif kind == "expire" and draw.random() < 0.6:
            nodes = tuple(names)
        lasts_s, blocks = draw.random() * draw.choice((0.3, 1.0, 3.0)), kind == "clock-leap" or draw.random() < 0.5
        plan.append(Fault(kind, draw.random() * 0.4, nodes, lasts_s, draw.choice(list(Loss)), blocks, draw.random()))
    return plan


def _some_of(all_kinds: Sequence[str], names: Sequence[str], draw: random.Random) -> list[Fault]:
    kinds = draw.sample(all_kinds, draw.randint(2, 8))
    plan = []
    for _ in range(draw.randint(3, 8)):
        kind = draw.choice(kinds)
        count = draw.choice((1, 1, 1, 2)) if kind not in ("bridge", "slow-link") else 2
        nodes = tuple(draw.sample(names, count))
        if draw.random() < 0.4:
            nodes = (LEADER, *nodes[1:])
        lasts_s = draw.random() * draw.choice((0.3, 1.0, 3.0))
        blocks = draw.random() < 0.6
        plan.append(Fault(kind, draw.random() * 0.4, nodes, lasts_s, draw.choice(list(Loss)), blocks, draw.random()))
    return plan
