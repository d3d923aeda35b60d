"""What strikes simulated cores: the plans of ``tests/sim/faults.py`` carried out on toy disks and links, and the operators' work.

Owns how each kind of fault is done and undone here.  A plan's times are fixed beforehand, so leaving a fault out moves none of the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from dledger.core.effects import Effect, RoleChanged
from dledger.core.events import Campaign, LowOnSpace, TransferRequested
from dledger.core.types import Membership, NodeId, Role
from dledger_offline.recovery.new_members import TERMS_AHEAD
from tests.sim.core import recovery
from tests.sim.core.node import CoreNode
from tests.sim.core.world import CONFIG_BYTES, World
from tests.sim.faults import LEADER, Fault

GOAL_STEP_MS = 40.0
TEND_MS = 500.0
MISTAKEN = 0.3  # how many operators add a node of an older lineage with its folder
MOST_VOTERS = 5

Links = list[tuple[NodeId, NodeId]]


class Strikes:
    """Faults of one run.  ``strike`` begins one; its end is already in the world's heap."""

    def __init__(self, world: World, plan: Sequence[Fault], keep: Sequence[int] | None = None) -> None:
        self._world = world
        self.healed = False
        self._secluding: list[Fault] = []
        self._first = next(iter(world.nodes.values())).first
        self._right: dict[NodeId, str] = {}  # the folder that belongs where another one was put
        self._lost: set[str] = set()  # empty folders in the place of lost ones
        self._replaced: set[NodeId] = set()
        self._mistaken: set[NodeId] = set()  # nodes that are added with a log of another lineage
        self._mistakes = random.Random(len(plan))
        world.watchers.append(self._elected)
        at_ms = 0.0
        self.end_ms = 0.0
        for position, fault in enumerate(plan):
            at_ms += fault.after_s * 1000
            if keep is None or position in keep:
                world.after(at_ms, self.strike, fault)
            self.end_ms = max(self.end_ms, at_ms + fault.lasts_s * 1000)
            if fault.blocks:
                at_ms += fault.lasts_s * 1000

    def strike(self, fault: Fault) -> None:
        nodes = self._nodes(fault)
        self._world.note(f"fault {fault}")
        self._world.safety.count(fault.kind)
        KINDS[fault.kind](self, fault, nodes)

    def _nodes(self, fault: Fault) -> list[CoreNode]:
        world = self._world
        leader = world.leader() or next(iter(world.nodes.values()))
        named = [leader if name == LEADER else world.nodes[NodeId(name)] for name in fault.nodes]
        return list(dict.fromkeys(named))

    def _later(self, fault: Fault, act: Callable[..., None], *facts: object) -> None:
        self._world.after(fault.lasts_s * 1000, act, *facts)

    def heal(self) -> None:
        """Everything works again, and operators want nothing more."""
        world = self._world
        self.healed = True
        self._secluding.clear()
        world.cut.clear()
        world.extra_ms.clear()
        settings = world.settings
        settings.drop_chance = settings.double_chance = settings.late_chance = 0.0
        settings.completion_lag_ms = 0.0
        # The smallest windows would take long over slow cables and disks.
        settings.jitter_ms, settings.sync_ms = min(settings.jitter_ms, 2.0), min(settings.sync_ms, 8.0)
        for node in world.nodes.values():
            world.resume(node)
            node.full = node.sync_fails = False
            node.slow_ms, node.sync_factor = 0.0, 1.0
            self._put_right(node)
            world.restart(node)
        if world.kept or any(len(node.folders) > 1 for node in world.nodes.values()):
            self._tend()

    # Lifecycle

    def _end(self, fault: Fault, nodes: list[CoreNode]) -> None:
        for node in nodes:
            self._world.crash(node, silent=fault.kind == "power")
            self._later(fault, self._world.restart, node)

    def _pause(self, fault: Fault, nodes: list[CoreNode]) -> None:
        for node in nodes:
            node.paused = node.up
            self._later(fault, self._world.resume, node)

    def _slow_node(self, fault: Fault, nodes: list[CoreNode]) -> None:
        nodes[0].slow_ms = fault.amount * 400
        self._later(fault, self._set, nodes[0], "slow_ms", 0.0)

    @staticmethod
    def _set(node: CoreNode, name: str, value: object) -> None:
        setattr(node, name, value)

    # Cables

    def _cut_for(self, fault: Fault, pairs: Links) -> None:
        self._world.cut_links(pairs)
        self._later(fault, self._world.heal_links, pairs)

    def _others(self, nodes: list[CoreNode]) -> list[CoreNode]:
        return nodes[1:] or [node for node in self._world.nodes.values() if node is not nodes[0]]

    def _cut(self, fault: Fault, nodes: list[CoreNode]) -> None:
        self._cut_for(fault, [(nodes[0].name, other.name) for other in self._others(nodes)])

    def _deafen(self, fault: Fault, nodes: list[CoreNode]) -> None:
        self._cut_for(fault, [(other.name, nodes[0].name) for other in self._others(nodes)])

    def _isolate(self, fault: Fault, nodes: list[CoreNode]) -> None:
        outside = [node for node in self._world.nodes.values() if node not in nodes]
        pairs = [(one.name, other.name) for one in nodes for other in outside]
        self._cut_for(fault, pairs + [(other, one) for one, other in pairs])

    def _bridge(self, fault: Fault, nodes: list[CoreNode]) -> None:
        pairs = [(nodes[0].name, other.name) for other in self._others(nodes)[:1]]
        self._cut_for(fault, pairs + [(other, one) for one, other in pairs])

    def _seclude(self, fault: Fault, _nodes: list[CoreNode]) -> None:
        """Whoever is elected next is alone with one other at once, so that its first entries reach nobody else."""
        self._secluding.append(fault)

    def _elected(self, node: CoreNode, effects: list[Effect]) -> None:
        for effect in effects:
            if self._secluding and isinstance(effect, RoleChanged) and effect.role is Role.LEADER and not effect.confirmed:
                fault = self._secluding.pop(0)
                self._isolate(fault, list(dict.fromkeys([node, *self._nodes(fault)])))

    def _reset(self, _fault: Fault, nodes: list[CoreNode]) -> None:
        for other in self._others(nodes):
            self._world.lose_stream(nodes[0].name, other.name)
            self._world.lose_stream(other.name, nodes[0].name)

    def _slow_link(self, fault: Fault, nodes: list[CoreNode]) -> None:
        extra = self._world.extra_ms
        links = [(nodes[0].name, other.name) for other in self._others(nodes)]
        extra.update(dict.fromkeys(links, fault.amount * 300))
        self._later(fault, self._forget_slow, links)

    def _forget_slow(self, links: Links) -> None:
        for link in links:
            self._world.extra_ms.pop(link, None)

    # Clocks and disks

    def _clock(self, fault: Fault, nodes: list[CoreNode]) -> None:
        """It drifts by up to two parts in a hundred from now on, and has leapt ahead by up to three seconds, or none."""
        leap_ms = max(0.0, fault.amount - 0.5) * 6000
        self._world.set_clock(nodes[0], rate=1.0 + (fault.amount - 0.5) * 0.04, leap_ms=leap_ms)

    def _slow_disk(self, fault: Fault, nodes: list[CoreNode]) -> None:
        nodes[0].sync_factor = 1.0 + fault.amount * 900 / self._world.settings.sync_ms
        self._later(fault, self._set, nodes[0], "sync_factor", 1.0)

    def _full_disk(self, fault: Fault, nodes: list[CoreNode]) -> None:
        nodes[0].full = True
        self._low_on_space(nodes[0], on=True)
        self._later(fault, self._set, nodes[0], "full", False)
        self._later(fault, lambda: self._low_on_space(nodes[0], on=False))

    def _low_on_space(self, node: CoreNode, *, on: bool) -> None:
        """The store of a node that is stopped or paused looks at no disk."""
        if node.up and not node.paused:
            self._world.step(node, LowOnSpace(on))

    def _failing_sync(self, fault: Fault, nodes: list[CoreNode]) -> None:
        nodes[0].sync_fails = True
        self._later(fault, self._working_again, nodes[0])

    def _working_again(self, node: CoreNode) -> None:
        node.sync_fails = False
        self._world.restart(node)

    # Folders

    def _wiped(self, fault: Fault, nodes: list[CoreNode]) -> None:
        """A member's folder is lost, and the node started on an empty one; the disk is found again in the end.

        One at a time, and nowhere before it is named: empty folders that know nobody could make a group of their own.
        """
        node = nodes[0]
        if self._may_strike(node) and len(self._first.voters) > 1 and not any(other.store in self._lost for other in self._others(nodes)):
            self._right.setdefault(node.name, node.store)
            store = node.new_store()
            self._lost.add(store)
            self._world.exchange(node, store)
            self._later(fault, self._put_right, node)

    def _old_folder(self, fault: Fault, nodes: list[CoreNode]) -> None:
        """A folder of before its member was replaced is put in the place of the newer one for a while."""
        node = nodes[0]
        old = [store for store in node.folders if store != node.store and store not in self._lost]
        if old and self._may_strike(node):
            self._right.setdefault(node.name, node.store)
            self._world.exchange(node, old[-1])
            self._world.safety.count("old folder put back")
            self._later(fault, self._put_right, node)

    def _replace(self, fault: Fault, nodes: list[CoreNode]) -> None:
        """Operators replace a member by itself with an empty folder: removed, added as a learner, promoted."""
        self._replacing(nodes[0], self._world.now_ms + fault.lasts_s * 1000)

    def _replacing(self, node: CoreNode, until_ms: float) -> None:
        world, leader = self._world, self._world.leader()
        if self.healed or world.now_ms > until_ms or node.name in self._right:
            return
        if leader is not None and node.name in self._replaced and node.name in leader.core.membership.voters:
            world.safety.count("replaced by a new folder")
            return
        world.after(GOAL_STEP_MS, self._replacing, node, until_ms)
        if leader is None or leader.paused or leader.core.membership_index > leader.commit:
            return
        if leader is node:
            world.step(leader, TransferRequested(None))
            return
        now = leader.core.membership
        others = tuple(name for name in now.voters if name != node.name)
        if now.store_of(node.name) in ("", node.store) and node.name in now.voters and node.name not in self._replaced:
            if world.are_named(node.name):
                world.change(leader, Membership(others, now.learners), CONFIG_BYTES)
        elif node.name not in now and node.name not in self._replaced:
            self._replaced.add(node.name)
            world.exchange(node, node.new_store())
        elif node.name not in now:
            world.change(leader, Membership(now.voters, (*now.learners, node.name)), CONFIG_BYTES)
        elif node.name in now.learners:
            world.change(leader, Membership((*others, node.name), tuple(name for name in now.learners if name != node.name)), CONFIG_BYTES)

    def _may_strike(self, node: CoreNode) -> bool:
        return not self.healed and node.up and not node.paused and node.name not in self._right and self._world.are_named(node.name)

    def _put_right(self, node: CoreNode) -> None:
        """The folder that belongs there is back."""
        store = self._right.pop(node.name, None)
        if store is not None and node.folders[store].lineage == self._world.lineage:
            self._world.exchange(node, store)

    def _tend(self) -> None:
        """In the end every member is on the folder that the configuration names, or on an empty one, whatever operators did meanwhile."""
        world, leader = self._world, self._world.leader()
        world.after(TEND_MS, self._tend)
        if leader is None or not leader.core.is_confirmed_leader:
            return
        membership = leader.core.membership
        for node in (world.nodes[name] for name in membership.members):
            named = membership.store_of(node.name)
            if node.up and named != node.store and named in node.folders:
                world.exchange(node, named)
            elif node.up and not named and node.lineage != world.lineage and not node.is_blank:
                world.exchange(node, node.new_store())

    # Logs, flush modes, recoveries

    def _trim(self, fault: Fault, nodes: list[CoreNode]) -> None:
        """The log's head is deleted, on all nodes named."""
        for node in nodes:
            self._world.copies.trim(node, fault.amount)

    def _reflush(self, fault: Fault, nodes: list[CoreNode]) -> None:
        """An operator changes the flush mode and restarts the node."""
        for node in nodes:
            if node.up and not node.paused:
                self._world.safety.count("flush mode changed")
                self._world.set_flush(node, sync=fault.amount < 0.5)

    def _recover(self, fault: Fault, nodes: list[CoreNode]) -> None:
        """All others of a survivor's group fail, and it is made the only voter; the others come back, and operators add them again."""
        world, survivor = self._world, nodes[0]
        if self.healed or not survivor.up or not recovery.may_recover(world, survivor):
            return
        for node in world.nodes.values():
            if node is not survivor and node.name in survivor.core.membership.members:
                world.crash(node, silent=True)
                self._later(fault, world.restart, node)
        world.crash(survivor, silent=False)
        recovery.recover(world, survivor, TERMS_AHEAD + round(fault.amount * 0xFFFF))
        self._right.pop(survivor.name, None)
        world.restart(survivor)
        others = [name for name in world.nodes if name != survivor.name]
        draw = random.Random(fault.amount)
        wanted = Membership((survivor.name, *draw.sample(others, min(len(others), draw.randint(0, 2)))))
        world.after(fault.lasts_s * 1000 * draw.random() * 2, self._toward, wanted, world.now_ms + fault.lasts_s * 2000 + 2000, False)

    # Operators

    def _transfer(self, fault: Fault, nodes: list[CoreNode]) -> None:
        leader = self._world.leader()
        if leader is not None and not leader.paused:
            self._world.step(leader, TransferRequested(None if fault.amount < 0.3 else nodes[0].name))

    def _campaign(self, _fault: Fault, nodes: list[CoreNode]) -> None:
        if nodes[0].up and not nodes[0].paused:
            self._world.step(nodes[0], Campaign())

    def _members(self, fault: Fault, _nodes: list[CoreNode]) -> None:
        """An operator wants other members and goes there step by step, whoever leads meanwhile."""
        draw = random.Random(fault.amount)
        names = list(self._world.nodes)
        wanted = tuple(sorted(draw.sample(names, draw.randint(1, min(MOST_VOTERS, len(names))))))
        learners = tuple(name for name in names if name not in wanted and draw.random() < 0.2)
        self._toward(Membership(wanted, learners), self._world.now_ms + fault.lasts_s * 1000 + 200, fault.amount < 0.2)

    def _toward(self, wanted: Membership, until_ms: float, careless: bool) -> None:
        """``careless`` operators do not wait for one step before they ask for the next, and promote who is not even a learner."""
        world = self._world
        if self.healed or world.now_ms > until_ms:
            return
        leader = world.leader()
        if leader is not None and not leader.paused:
            for _ in range(2 if careless else 1):
                following = _next_step(leader.core.membership, wanted, leader.name, careless)
                if following is not None:
                    self._clear_folders(following)
                    world.change(leader, following, CONFIG_BYTES + len(world.operations) % 800)
        world.after(GOAL_STEP_MS, self._toward, wanted, until_ms, careless)

    def _clear_folders(self, wanted: Membership) -> None:
        """A node of before a recovery is added on an empty folder; by an operator who reads."""
        world = self._world
        for node in (world.nodes[name] for name in wanted.members):
            if node.up and node.lineage != world.lineage and not node.is_blank and node.name not in self._mistaken:
                if self._mistakes.random() < MISTAKEN:
                    self._mistaken.add(node.name)
                else:
                    world.exchange(node, node.new_store())


def _next_step(now: Membership, wanted: Membership, leader: NodeId, careless: bool) -> Membership | None:
    """Add learners first, then promote, then remove (the leader itself last), then tidy up the learners."""
    new = [name for name in wanted.voters if name not in now.voters]
    unknown = [name for name in (*new, *wanted.learners) if name not in now]
    if unknown and not careless:
        return Membership(now.voters, (*now.learners, unknown[0]))
    if new:
        return Membership((*now.voters, new[0]), tuple(name for name in now.learners if name != new[0]))
    old = sorted((name for name in now.voters if name not in wanted.voters), key=lambda name: name == leader)
    if old:
        kept = (old[0],) if old[0] in wanted.learners else ()
        return Membership(tuple(name for name in now.voters if name != old[0]), (*now.learners, *kept))
    learners = tuple(name for name in now.learners if name in wanted.learners)
    return None if learners == now.learners else Membership(now.voters, learners)


FOLDERS: dict[str, Callable[[Strikes, Fault, list[CoreNode]], None]] = {
    "wiped": Strikes._wiped,
    "old-folder": Strikes._old_folder,
    "replace": Strikes._replace,
}
ONE_WORLD: dict[str, Callable[[Strikes, Fault, list[CoreNode]], None]] = {
    "trim": Strikes._trim,
    "reflush": Strikes._reflush,
    "recover": Strikes._recover,
}
KINDS: dict[str, Callable[[Strikes, Fault, list[CoreNode]], None]] = {
    "kill": Strikes._end,
    "power": Strikes._end,
    "pause": Strikes._pause,
    "slow-node": Strikes._slow_node,
    "cut": Strikes._cut,
    "deafen": Strikes._deafen,
    "isolate": Strikes._isolate,
    "bridge": Strikes._bridge,
    "seclude": Strikes._seclude,
    "reset": Strikes._reset,
    "slow-link": Strikes._slow_link,
    "clock": Strikes._clock,
    "slow-disk": Strikes._slow_disk,
    "full-disk": Strikes._full_disk,
    "failing-sync": Strikes._failing_sync,
    "transfer": Strikes._transfer,
    "campaign": Strikes._campaign,
    "members": Strikes._members,
    **FOLDERS,
    **ONE_WORLD,
}
ANYWHERE = sorted(set(KINDS) - set(FOLDERS) - set(ONE_WORLD))  # what makes sense in any world


# Plans


def plan_anything(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Swarm: a random subset of the kinds."""
    kinds = draw.sample(ANYWHERE, draw.randint(1, 8))
    return _some(names, draw, kinds, draw.randint(3, 12))


def plan_members(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Memberships change while leaders fail."""
    kinds = ["members", "members", *draw.sample(ANYWHERE, draw.randint(1, 3))]
    return _some(names, draw, kinds, draw.randint(4, 12))


def plan_coups(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Members change at the moment leaders change: new ones are cut off with one other, so that configurations are cut again."""
    plan = []
    for _ in range(draw.randint(4, 10)):
        plan.append(Fault("members", draw.random() * 0.3, (names[0],), 0.5 + draw.random(), blocks=False, amount=draw.random() * 0.3))
        kind = draw.choice(("seclude", "isolate", "isolate", "transfer"))
        nodes = (LEADER, draw.choice(names)) if kind == "isolate" and draw.random() < 0.5 else (LEADER,)
        plan.append(Fault(kind, draw.random() * 0.3, nodes, 0.7 + draw.random(), blocks=kind == "isolate"))
    return plan


def plan_restarts(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Power goes and is back at once, again and again: voters have just been away, votes and entries were just written."""
    plan = []
    for _ in range(draw.randint(10, 40)):
        victims = tuple(draw.sample(names, draw.choice((1, 1, 2))))
        plan.append(Fault("power", draw.random() * draw.choice((0.05, 0.3, 0.9)), victims, draw.random() * 0.03))
    return plan


def plan_blackouts(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """All nodes, or a majority, lose power at the same moment."""
    plan = []
    for _ in range(draw.randint(3, 8)):
        count = draw.choice((len(names), len(names) // 2 + 1))
        plan.append(Fault("power", 0.8 + draw.random(), tuple(draw.sample(names, count)), draw.random() * 0.3))
    return plan


def plan_forgetting(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """One is behind, another forgets what it acknowledged, and the leader that has it all is cut off: nobody may do without its log."""
    plan = []
    for _ in range(draw.randint(4, 9)):
        behind, victim = draw.sample(names, 2)
        plan.append(Fault("isolate", 0.5 + draw.random(), (behind,), 0.3 + draw.random() * 0.4, blocks=False))
        plan.append(Fault("power", 0.1 + draw.random() * 0.2, (victim,), draw.random() * 0.05, blocks=False))
        plan.append(Fault("isolate", draw.random() * 0.1, (LEADER,), 0.8 + draw.random() * 1.5))
    return plan


def plan_forgetting_members(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """The same while members change: what the victim remembers of them decides who may elect without the one that is cut off."""
    plan = []
    for _ in range(draw.randint(4, 9)):
        behind, victim = draw.sample(names, 2)
        victim = draw.choice((victim, LEADER))
        plan.append(Fault("members", draw.random() * 0.3, (names[0],), 0.6 + draw.random(), blocks=False, amount=draw.random()))
        plan.append(Fault("isolate", 0.2 + draw.random() * 0.5, (behind,), 0.3 + draw.random() * 0.6, blocks=False))
        plan.append(Fault("power", 0.1 + draw.random() * 0.3, (victim,), draw.random() * 0.05, blocks=False))
        away = LEADER if draw.random() < 0.6 else draw.choice(names)
        plan.append(Fault("isolate", draw.random() * 0.1, (away,), 0.8 + draw.random() * 1.5))
    return plan


def plan_forgetting_folders(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Members are replaced and wiped while others lose power."""
    plan = plan_folders(names, draw)
    for _ in range(draw.randint(2, 5)):
        strike = Fault("power", 0.1 + draw.random() * 0.3, (draw.choice(names),), draw.random() * 0.05, blocks=False)
        plan.insert(draw.randint(0, len(plan)), strike)
    return plan


def plan_partings(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Leaders are cut off with entries of their own, come back to others' logs, and die meanwhile."""
    plan = []
    for _ in range(draw.randint(4, 9)):
        plan.append(Fault("isolate", 0.3 + draw.random() * 0.5, (LEADER,), 0.8 + draw.random() * 1.5, blocks=draw.random() < 0.7))
        if draw.random() < 0.6:
            plan.append(Fault(draw.choice(("power", "kill", "pause")), draw.random(), (draw.choice((LEADER, *names)),), draw.random()))
    return plan


def plan_rotations(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """One parting after the other: each time another part of the group goes on alone, and leaders of before return."""
    plan = []
    for _ in range(draw.randint(6, 14)):
        away = draw.sample(names, draw.randint(1, max(1, (len(names) - 1) // 2)))
        if draw.random() < 0.5:
            away[0] = LEADER
        plan.append(Fault("isolate", draw.random() * draw.choice((0.02, 0.3)), tuple(away), 0.7 + draw.random() * draw.choice((0.8, 2.0))))
        if draw.random() < 0.3:
            kind = draw.choice(("transfer", "campaign", "pause", "reset"))
            plan.append(Fault(kind, 0.0, (draw.choice(names),), draw.random(), blocks=False, amount=draw.random()))
    return plan


def plan_seclusions(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """The paper's figure 8 without end: each leader's entries reach one other node only, and leaders of before return."""
    plan = []
    for _ in range(draw.randint(8, 16)):
        plan.append(Fault("seclude", 0.2 + draw.random() * 0.8, (draw.choice(names),), 0.7 + draw.random()))
        if draw.random() < 0.3:
            plan.append(Fault("kill", draw.random() * 0.5, (draw.choice((LEADER, *names)),), draw.random() * 0.1, blocks=False))
    return plan


def plan_handovers(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Leadership is handed around all the time."""
    plan = []
    for _ in range(draw.randint(10, 30)):
        kind = draw.choice(("transfer", "transfer", "transfer", "kill", "isolate", "pause"))
        victim = LEADER if kind != "transfer" else draw.choice(names)
        plan.append(Fault(kind, draw.random() * 0.4, (victim,), draw.random() * 0.3, blocks=False, amount=draw.random()))
    return plan


def plan_promotions(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """A learner becomes a voter and does not hear of it, and then others fail."""
    plan = [Fault("members", 0.1, (names[0],), 3.0, blocks=False, amount=0.2 + draw.random() * 0.8)]
    for _ in range(draw.randint(1, 3)):
        deaf = draw.choice((names[-1], names[-1], LEADER))
        plan.append(Fault("deafen", draw.random() * 0.3, (deaf,), 0.2 + draw.random(), blocks=False))
        plan.append(Fault("kill", draw.random() * 0.5, (draw.choice((LEADER, *names[:-1])),), draw.random(), blocks=draw.random() < 0.5))
    return plan


def plan_folders(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Members are replaced and wiped; another one misses what was written since, and then is alone with an old or an empty folder."""
    plan = []
    for _ in range(draw.randint(2, 4)):
        victim = draw.choice(names)
        kind = draw.choice(("old-folder", "old-folder", "wiped"))
        if kind == "old-folder":
            plan.append(Fault("replace", draw.random() * 0.3, (victim,), 1.5 + draw.random(), blocks=True))
        away = draw.choice([name for name in names if name != victim])
        plan.append(Fault("isolate", draw.random() * 0.2, (away,), 0.2 + draw.random() * 0.6, blocks=True))
        lasts_s = 1.0 + draw.random() * 2
        plan.append(Fault("kill", 0.0, (draw.choice((LEADER, LEADER, *names)),), lasts_s, blocks=False))
        plan.append(Fault(kind, draw.random() * 0.02, (victim,), lasts_s, blocks=True))
        if draw.random() < 0.4:
            plan += _some(names, draw, ANYWHERE, draw.randint(1, 3))
    return plan


def _some(names: Sequence[str], draw: random.Random, kinds: Sequence[str], count: int) -> list[Fault]:
    plan = []
    for _ in range(count):
        kind = draw.choice(kinds)
        nodes = tuple(draw.sample(names, min(len(names), draw.choice((1, 1, 1, 2)) if kind != "bridge" else 2)))
        if draw.random() < 0.4:
            nodes = (LEADER, *nodes[1:])
        lasts_s = draw.random() * draw.choice((0.1, 1.0, 3.0))
        plan.append(Fault(kind, draw.random() * 0.6, nodes, lasts_s, blocks=draw.random() < 0.5, amount=draw.random()))
    return plan
