"""A seeded random walk over a group of pure cores: whatever may happen, in any order.

Messages are delayed, dropped, doubled and reordered; writes reach the disk late and are reported later still; nodes lose what was not
synced and start again; memberships change, leadership is handed over, logs are trimmed and copied, disks fill up, streams break, clocks
leap.  Each seed switches a subset on (swarm).  ``Safety`` watches every step; at the end everything heals and the group must get on.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from dledger.core.config import CoreConfig
from dledger.core.events import Event, LowOnSpace, StorageFailed, StorageRecovered
from dledger.core.types import NodeId, Role
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Envelope, Node, ids
from tests.unit.core.safety import Safety, expect

MOST_UNDER_WAY = 120


class Explorer:
    """One seed's world."""

    def __init__(self, seed: int, steps: int) -> None:
        self.random = random.Random(seed)
        draw = self.random
        self.steps = steps
        size = draw.choice((3, 3, 5))
        config = CoreConfig(
            heartbeat_interval_ms=HEARTBEAT_MS,
            election_timeout_ms=ELECTION_MS,
            commit_notice_delay_ms=draw.choice((0, 0, 2, 50)),
            max_inflight_messages=draw.choice((1, 2, 8)),
            max_append_bytes=draw.choice((1, 250_000, 4 << 20)),
            max_inflight_bytes=4 << 20,
        )
        self.cluster = Cluster(size, seed=seed, auto_persist=False, config=config)
        for name in ids(size + 1, size + 2):
            self.cluster.add_node(name)
        self.safety = Safety(self.cluster)
        self.cluster.dropping = self._post
        self.completions: dict[NodeId, list[Event]] = {name: [] for name in self.cluster.nodes}
        self.full: set[NodeId] = set()
        self.token = 0
        self.drop_rate = draw.choice((0, 0, 0.05, 0.3))
        self.double_rate = draw.choice((0, 0.1, 0.3))
        self.reorder = draw.random() < 0.7
        self.actions = self._choose_actions()

    def _choose_actions(self) -> list[Callable[[], None]]:
        draw = self.random
        always: list[tuple[int, Callable[[], None]]] = [
            (400, self.deliver),
            (140, self.sync),
            (140, self.complete),
            (80, self.release),
            (draw.choice((15, 40)), self.pass_time),
            (draw.choice((10, 60)), self.propose),
            (8, self.restart),
            (10, self.copy),
        ]
        sometimes: list[tuple[int, Callable[[], None]]] = [
            (3, self.crash),
            (4, self.partition),
            (10, self.read),
            (8, self.change),
            (3, self.transfer),
            (4, self.trim),
            (4, self.lose_stream),
            (2, self.campaign),
            (2, self.fill_disk),
            (2, self.run_low),
            (1, self.leap),
        ]
        chosen = [*always, *(pair for pair in sometimes if draw.random() < 0.6)]
        return [action for weight, action in chosen for _ in range(weight)]

    # The network

    def _post(self, envelope: Envelope) -> bool:
        """Whether a message is lost; whoever sends it must have kept its promises."""
        self.safety.sent(envelope)
        if len(self.cluster.bag) > MOST_UNDER_WAY:
            return True
        return self.random.random() < self.drop_rate

    def deliver(self) -> None:
        bag = self.cluster.bag
        if not bag:
            return
        at = int(self.random.random() * len(bag)) if self.reorder else 0
        envelope = bag[at]
        if self.random.random() >= self.double_rate:
            del bag[at]
        if (envelope.source, envelope.to) in self.cluster.blocked:
            return
        node = self.cluster.nodes[envelope.to]
        if node.up:
            node.receive(envelope.source, envelope.message)

    def partition(self) -> None:
        cluster, draw = self.cluster, self.random
        if cluster.blocked and draw.random() < 0.6:
            cluster.blocked.clear()
            return
        one, other = draw.sample(sorted(cluster.nodes), 2)
        if draw.random() < 0.5:
            cluster.isolate(one)
        else:
            cluster.cut(one, other, both=draw.random() < 0.5)

    def lose_stream(self) -> None:
        one, other = self.random.sample(sorted(self.cluster.nodes), 2)
        if self.cluster[one].up:
            self.cluster[one].lost(other)

    # Nodes

    def _any(self) -> Node | None:
        up = [node for node in self.cluster.nodes.values() if node.up]
        return self.random.choice(up) if up else None

    def _leading(self) -> Node | None:
        leading = [node for node in self.cluster.nodes.values() if node.up and node.role is Role.LEADER]
        return self.random.choice(leading) if leading else None

    def pass_time(self) -> None:
        cluster = self.cluster
        cluster.now_ms += self.random.choice((1, 10, 100, 100, 300))
        self._tick_due()

    def leap(self) -> None:
        self.cluster.now_ms += 2 * ELECTION_MS
        self._tick_due()

    def _tick_due(self) -> None:
        for node in list(self.cluster.nodes.values()):
            due_ms = node.core.next_wakeup_ms() if node.up else None
            if due_ms is not None and due_ms <= self.cluster.now_ms:
                node.tick()

    def propose(self) -> None:
        node = self._leading()
        if node is not None:
            node.propose()

    def read(self) -> None:
        node = self._any()
        if node is not None:
            self.token += 1
            self.safety.read_asked(node, self.token)
            node.read(self.token)

    def campaign(self) -> None:
        node = self._any()
        if node is not None:
            node.campaign()

    def transfer(self) -> None:
        node = self._leading()
        if node is not None:
            node.transfer(self.random.choice((None, *sorted(self.cluster.nodes))))

    def change(self) -> None:
        node = self._leading()
        if node is None:
            return
        membership = node.core.membership
        voters, learners = list(membership.voters), list(membership.learners)
        name = self.random.choice(sorted(self.cluster.nodes))
        if name in learners:
            learners.remove(name)
            if self.random.random() < 0.8:
                voters.append(name)
        elif name not in voters:
            learners.append(name)
        elif len(voters) > 2:
            voters.remove(name)
            if self.random.random() < 0.3:
                learners.append(name)
        node.change(voters, learners)

    def trim(self) -> None:
        node = self._any()
        if node is None:
            return
        upto = min(node.commit, node.disk.last.index)
        node.sync(0)
        if not node.pending and upto > node.disk.before.index:
            node.trim(self.random.randrange(node.disk.before.index + 1, upto + 1) + 1)

    def copy(self) -> None:
        """A replica that was offered a copy gets it."""
        for node in self.cluster.nodes.values():
            wanted = node.core.snapshot_wanted
            source = self.cluster.nodes.get(wanted.source) if wanted is not None else None
            if wanted is None or source is None or not node.up:
                continue
            upto = min(wanted.last.index, source.disk.last.index, source.commit)
            if upto <= node.commit or upto < source.disk.before.index:
                continue
            self.sync_node(node, len(node.pending))
            self.complete_node(node)
            if node.core.snapshot_wanted is wanted and node.commit < upto >= source.disk.before.index:
                node.copy_from(source)
                self.safety.count("copied")

    # The disk

    def sync(self) -> None:
        node = self._any()
        if node is not None and node.pending and node.name not in self.full:
            self.sync_node(node, self.random.randrange(1, len(node.pending) + 1))

    def sync_node(self, node: Node, count: int) -> None:
        self.completions[node.name].extend(node.sync(count))

    def complete(self) -> None:
        node = self._any()
        if node is not None and self.completions[node.name]:
            node.step(self.completions[node.name].pop(0))

    def complete_node(self, node: Node) -> None:
        node.release_held()
        while self.completions[node.name]:
            node.step(self.completions[node.name].pop(0))

    def release(self) -> None:
        node = self._any()
        if node is not None:
            node.release_held()

    def fill_disk(self) -> None:
        node = self._any()
        if node is None:
            return
        if node.name in self.full:
            self.full.discard(node.name)
            node.step(StorageRecovered())
        else:
            self.full.add(node.name)
            node.step(StorageFailed(fatal=False))

    def run_low(self) -> None:
        node = self._any()
        if node is not None:
            node.step(LowOnSpace(on=self.random.random() < 0.5))

    def crash(self) -> None:
        node = self._any()
        if node is None:
            return
        node.crash(self.random.randrange(0, len(node.pending) + 1))
        self.safety.count("crashed")
        self.completions[node.name].clear()
        self.full.discard(node.name)

    def restart(self) -> None:
        for node in self.cluster.nodes.values():
            if not node.up:
                node.restart()
                self.safety.restarted(node)
                return

    # The walk

    def walk(self) -> None:
        draw, actions = self.random, self.actions
        count = len(actions)
        for _ in range(self.steps):
            actions[int(draw.random() * count)]()

    def heal(self) -> None:
        """Everything works again: the group must elect a leader and get everybody on."""
        cluster = self.cluster
        cluster.blocked.clear()
        self.drop_rate = self.double_rate = 0
        for node in cluster.nodes.values():
            if not node.up:
                node.restart()
                self.safety.restarted(node)
            if node.name in self.full:
                self.full.discard(node.name)
                node.step(StorageRecovered())
            self.sync_node(node, len(node.pending))
            self.complete_node(node)
        cluster.auto_persist = True
        for _ in range(60):
            cluster.run(ELECTION_MS // 2, until=self._recovered)
            self.copy()
            if self._recovered():
                term = cluster.leader().term
                cluster.run(2 * ELECTION_MS)  # one that led in vain until now finds out
                if self._recovered() and cluster.leader().term == term:
                    break
        expect(self._recovered(), "no progress after healing:", [node.core.status() for node in cluster.nodes.values()])
        leader = cluster.leader()
        goal = leader.last.index + 1
        leader.propose()
        members = [cluster.nodes[name] for name in (*leader.core.membership.voters, *leader.core.membership.learners)]
        for _ in range(60):
            cluster.run(ELECTION_MS // 2, until=lambda: all(node.commit >= goal for node in members))
            self.copy()
        behind = [node.core.status() for node in members if node.commit < goal]
        expect(not behind, "members do not catch up with", goal, ":", leader.core.status(), behind)

    def _recovered(self) -> bool:
        """One leader, confirmed, with nothing left from before that could make it go."""
        leaders = self.cluster.leaders()
        if len(leaders) != 1:
            return False
        core = leaders[0].core
        return core.is_confirmed_leader and core.node_id in core.membership.voters and core.status().transfer_target is None


def explore(seed: int, steps: int = 600) -> dict[str, int]:
    """Walk one seed; returns what happened how often."""
    world = Explorer(seed, steps)
    try:
        world.walk()
        world.heal()
    except BaseException as error:
        error.add_note(f"seed={seed} steps={steps}: .venv/bin/python -m tests.unit.core.explorer {seed} {steps}")
        raise
    return world.safety.counters


if __name__ == "__main__":
    import sys

    print(explore(int(sys.argv[1]), int(sys.argv[2])))
