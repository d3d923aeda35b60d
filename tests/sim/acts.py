"""The acts of a run: the groups come up, clients work while faults strike, everything heals; then everything is compared.

Owns their order and how long each may take.  Every replica group has clients and a plan of faults of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from broker.node import BrokerNode
from dledger_wire.errors import DledgerError
from tests.levels import NEXT_BUILD, NEXT_LEVEL
from tests.sim import operators
from tests.sim.clock import EPOCH_MS
from tests.sim.cluster import SimCluster, are_equal
from tests.sim.faults import POLL_S, Fault, carry_out
from tests.sim.invariants import check_logs_match
from tests.sim.result import LivenessError
from tests.sim.spread.replacement_watch import ReplacementWatch
from tests.sim.spread.strangers import MALLORY, Strangers
from tests.sim.spread.users import create_users
from tests.sim.workload import Workload

RUN_LIMIT_S = 300.0
STAMP_LIMIT_MS = 10_000  # clocks of hosts may be off by half of that without a leap
LEADER_LIMIT_S = 15.0  # once faults have stopped
RAISE_AGAIN_S = 0.3
REPLACED_LIMIT_S = 90.0  # where members are replaced first
OPERATED = ("members", "part-change", "replace-member", "recover")  # faults that may leave a member outside


class Acts:
    """Of one run.  ``plans``: one for each workload, whose group it strikes; ``keep``: which faults of all of them are carried out."""

    def __init__(
        self, cluster: SimCluster, workloads: Sequence[Workload], plans: Sequence[Sequence[Fault]], keep: Sequence[int] | None
    ) -> None:
        self._cluster, self._workloads = cluster, workloads
        self._plans = [list(plan) for plan in plans]
        self._keep = keep
        self._upgrades = any(host.levels != NEXT_BUILD for host in cluster.hosts.values())
        voters = len(cluster.groups["g0"].node_ids)
        self._watch = ReplacementWatch(cluster, voters) if cluster.spares.hosts else None
        self._strangers = Strangers(cluster, random.Random(cluster.random.getrandbits(64))) if cluster.security.is_on else None

    async def run(self) -> None:
        """All of them, in ``RUN_LIMIT_S``."""
        try:
            async with asyncio.timeout(RUN_LIMIT_S) as limit:
                await self._run()
        except TimeoutError as error:
            if limit.expired():
                raise LivenessError(f"the run is not over after {RUN_LIMIT_S:.0f} s") from error
            raise

    async def _run(self) -> None:
        cluster = self._cluster
        cluster.start_all()
        await self._prepare()
        work = [task for workload in self._workloads for task in self._begin(workload)]
        raising = cluster.loop.spawn(self._workloads[0].process, self._raise_level(), "raise the level") if self._upgrades else None
        watching = self._watch.start() if self._watch is not None else None
        strangers = [cluster.loop.spawn(cluster.loop.world, self._strangers.knock(), "strangers")] if self._strangers is not None else []
        await self._strike()
        await self._heal()
        for workload, (producing, _others) in zip(self._workloads, work, strict=True):
            await producing
            workload.stop_reading()
        for task in [task for _producing, others in work for task in others] + strangers:
            await task
        if raising is not None:
            await raising
            await self._until(self._have_risen, "replica groups stay at the feature level of before")
        await self._until(self._is_settled, "replicas do not come together")
        if watching is not None:
            watching.cancel()
        if not cluster.problems():
            await self._compare()

    async def _prepare(self) -> None:
        cluster = self._cluster
        if len(self._workloads) > 1 or cluster.security.is_on:
            await self._until(cluster.has_masters, "no master")
            first = self._workloads[0]
            await cluster.loop.spawn(first.process, create_users(first, (MALLORY,)), "users")
        for workload in self._workloads:
            await cluster.loop.spawn(workload.process, workload.create_topic(), "create topic")

    def _begin(self, workload: Workload) -> list[tuple[asyncio.Task[None], list[asyncio.Task[None]]]]:
        """The task that produces, and the others."""
        spawn = self._cluster.loop.spawn
        producing = spawn(workload.process, workload.produce(), "produce")
        others = [spawn(workload.process, workload.read_along(), "read")]
        others += [spawn(process, workload.commit_along(number), "commit") for number, (process, _) in enumerate(workload.committers)]
        return [(producing, [*others, spawn(self._cluster.loop.world, workload.ask_read_indexes(), "read index")])]

    async def _strike(self) -> None:
        cluster, running, before = self._cluster, [], 0
        for workload, plan in zip(self._workloads, self._plans, strict=True):
            keep = None if self._keep is None else [position - before for position in self._keep]
            running.append(cluster.loop.spawn(cluster.loop.world, carry_out(cluster, plan, keep), f"faults of {workload.group}"))
            before += len(plan)
        for each in running:
            await each

    async def _heal(self) -> None:
        cluster = self._cluster
        cluster.net.heal_all()
        cluster.ensure_all_running()
        await self._until(cluster.has_masters, "no master")
        if any(fault.kind in OPERATED for plan in self._plans for fault in plan):
            await operators.restore(cluster)

    async def _raise_level(self) -> None:
        """An operator asks until every group has risen."""
        async with self._workloads[0].admin() as admin:
            while not self._cluster.problems():
                try:
                    await admin.finish_upgrade(level=NEXT_LEVEL.number)
                except DledgerError as error:
                    self._cluster.trace.note("refused", "finish upgrade", error.code)
                    await asyncio.sleep(RAISE_AGAIN_S)
                else:
                    break
        older = [node_id for node_id, host in self._cluster.hosts.items() if host.levels != NEXT_BUILD]
        if older:
            self._cluster.invariants.violations.append(f"feature level {NEXT_LEVEL.number} with {older} on a build of before")

    def _have_risen(self) -> bool:
        nodes = [host.node for host in self._cluster.hosts.values() if host.node is not None and self._cluster.is_up(host)]
        return all(node.store.feature_level.now.level == NEXT_LEVEL.number for node in nodes)

    async def _compare(self) -> None:
        cluster = self._cluster
        for workload in self._workloads:
            nodes = self._settled(workload.group)
            cluster.groups[workload.group].invariants.check_nothing_lost(nodes)
            self._check_store_times(workload.group, nodes)
            await check_logs_match(nodes)
            await cluster.loop.spawn(workload.process, workload.drain([node.settings.node.id for node in nodes]), "drain")

    def _check_store_times(self, group: str, nodes: Sequence[BrokerNode]) -> None:
        """What the log was stamped with last is not far from what time it really is, whatever single clocks showed."""
        real_ms = EPOCH_MS + self._cluster.loop.now_s * 1000
        for node in nodes:
            ahead_ms = node.store.applied.store_ms - real_ms
            if ahead_ms > STAMP_LIMIT_MS:
                text = f"{node.settings.node.id}: the newest stamp is {ahead_ms:.0f} ms ahead of the time"
                self._cluster.groups[group].invariants.violations.append(text)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait in virtual time; when a node has failed there is nothing to wait for."""
        cluster = self._cluster
        limit_s = cluster.loop.now_s + (REPLACED_LIMIT_S if self._watch is not None else LEADER_LIMIT_S)
        while not condition() and not cluster.problems():
            if cluster.loop.now_s > limit_s:
                raise LivenessError(f"{what}, long after everything was healed")
            await asyncio.sleep(POLL_S)

    def _is_settled(self) -> bool:
        """In every group there is a master, and everybody has applied everything.

        What stopped by itself is started: a write that failed while its disk did is sometimes met only when the file is needed, after that.
        """
        cluster = self._cluster
        for node_id, host in cluster.hosts.items():
            if host.ended is not None:
                cluster.ensure_running(node_id)
        return all(self._settled(name) for name in cluster.groups)

    def _settled(self, group: str) -> list[BrokerNode]:
        """All replicas of a group, once they have applied the same; without those whose places spare nodes have taken."""
        if self._watch is not None:
            return self._watch.settled_voters(group) or []
        cluster = self._cluster
        nodes = [host.node for host in cluster.hosts_of(group) if host.node is not None and cluster.is_up(host)]
        whole = cluster.master(group) is not None and len(nodes) == len(cluster.groups[group].node_ids) and are_equal(nodes)
        return nodes if whole else []
