"""What must be true while spare nodes take the places of members: how many voters there are, whose turn it is, who belongs where.

Owns the rules, and the policy of runs in which that happens soon.
"""

from __future__ import annotations

import asyncio

from broker.node import BrokerNode
from dledger.core.types import Membership
from tests.sim.cluster import SimCluster, are_equal

REPLACE_AFTER_S = 1.5
REGISTER_S, EXPIRE_S = 0.5, 3.0
POLICY = (
    f"replicas: {{replaceAfter: {REPLACE_AFTER_S * 1000:.0f}ms}}\n"
    f"name_service: {{registerInterval: {REGISTER_S * 1000:.0f}ms, expireAfter: {EXPIRE_S:.0f}s}}\n"
)
WATCH_S = 0.02
LAG = 64  # entries that a learner may lack when its promotion is proposed


class ReplacementWatch:
    """Of all groups of a cluster, each with so many ``voters``.  ``replaced``: how many spare nodes became voters."""

    def __init__(self, cluster: SimCluster, voters: int = 3) -> None:
        self._cluster, self._voters = cluster, voters
        self.replaced = 0
        self.wiped: set[str] = set()
        self._known: dict[str, tuple[int, Membership]] = {}
        self._led_s: dict[str, float] = {}  # when a group had a master last
        self._lost_turn: set[str] = set()  # groups that had none for so long that another one could begin

    def start(self) -> asyncio.Task[None]:
        """Look at everything from now on, until the task is cancelled."""
        for group in self._cluster.groups:
            self._watch_group(group)
        return self._cluster.loop.spawn(self._cluster.loop.world, self._watch_along(), "watch")

    def is_under_way(self, group: str) -> bool:
        master = self._cluster.master_node(group)
        return master is not None and master.store.replica_group.replacement is not None

    def is_well(self) -> bool:
        """Whether every group is whole."""
        return all(self.settled_voters(group) is not None for group in self._cluster.groups)

    def settled_voters(self, group: str) -> list[BrokerNode] | None:
        """The voters of a group that is whole, when all have applied the same; None before that."""
        master = self._cluster.master_node(group)
        if master is None or self.is_under_way(group):
            return None
        voters = master.raft.committed_members()[1].voters
        hosts = [self._cluster.hosts[name] for name in voters]
        nodes = [host.node for host in hosts if host.node is not None and self._cluster.is_up(host)]
        return nodes if len(nodes) == self._voters and are_equal(nodes) else None

    async def _watch_along(self) -> None:
        while True:
            for group in self._cluster.groups:
                self._watch_group(group)
            self._watch_turns()
            await asyncio.sleep(WATCH_S)

    def _watch_turns(self) -> None:
        now_s = self._cluster.loop.now_s
        for group in self._cluster.groups:
            if self._cluster.master_node(group) is None:
                if now_s - self._led_s.get(group, now_s) >= EXPIRE_S - REGISTER_S:
                    self._lost_turn.add(group)
                continue
            self._led_s[group] = now_s
            if not self.is_under_way(group):
                self._lost_turn.discard(group)
        busy = [group for group in self._cluster.groups if self.is_under_way(group)]
        if len(busy) > 1 and not self._lost_turn.intersection(busy):
            self._violated(f"{' and '.join(busy)} replace members at the same time")

    def _watch_group(self, group: str) -> None:
        for host in self._cluster.hosts_of(group):
            if host.node is None or not self._cluster.is_up(host):
                continue
            index, members = host.node.raft.committed_members()
            before = self._known.get(group)
            if before is None or index > before[0]:
                self._known[group] = index, members
                self._check_change(group, index, members, before[1] if before is not None else None)

    def _check_change(self, group: str, index: int, now: Membership, before: Membership | None) -> None:
        self._cluster.trace.note("members", group, f"{index}: {now.voters} {now.learners}")
        if not self._voters - 1 <= len(now.voters) <= self._voters + 1:
            self._violated(f"{group} has the voters {now.voters}")
        for other, (_, theirs) in self._known.items():
            shared = {*theirs.voters, *theirs.learners} & {*now.voters, *now.learners} if other != group else set()
            # One that was wiped is somebody new, and free: the group that it belonged to may not have removed it yet, and gets no answer.
            if shared - self.wiped or shared & set(theirs.voters) & set(now.voters):
                self._violated(f"{shared} belong to {group} and to {other}")
        for name in now.voters if before is not None else ():
            if before is not None and name not in before.voters and name in self._cluster.spares.hosts:
                self.replaced += 1
                node = self._cluster.spares.hosts[name].node
                if node is not None and node.is_open and node.raft.log.last.index < index - LAG:
                    self._violated(f"{name} became a voter of {group} at {index} and has {node.raft.log.last.index} entries")

    def _violated(self, text: str) -> None:
        self._cluster.trace.note("VIOLATED", "spares", text)
        self._cluster.groups["g0"].invariants.violations.append(f"spare nodes: {text}")
