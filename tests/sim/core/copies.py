"""Catch-up copies between simulated cores: what a replica does whose leader has deleted the entries that it needs.

Owns the way of a copy: it is taken from one member at one moment, arrives later, and is installed if it is still of use.  The rules are
those of ``dledger/snapshot``: only what is committed is copied, nothing that this node holds for certain goes, and whatever waits to be
written is on the disk before.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from dledger.core.effects import FetchSnapshot
from dledger.core.events import Applied, SnapshotInstalled
from dledger.core.types import NodeId
from tests.sim.core.node import CoreNode, Folder
from tests.unit.core.harness import runs_of

if TYPE_CHECKING:
    from tests.sim.core.world import World

LEAST_MS, MOST_MS = 5.0, 600.0


class Copies:
    """All of one world."""

    def __init__(self, world: World, draw: random.Random) -> None:
        self._world = world
        self._draw = draw
        self._under_way: set[tuple[NodeId, int]] = set()  # (node, its start)

    def trim(self, node: CoreNode, share: float) -> None:
        """Delete a share of the entries that ``node`` has applied."""
        if not node.up or node.paused:
            return
        before = node.log.before.index
        trimmed = node.trim(before + round((node.applied - before) * share))
        if trimmed is not None:
            self._world.safety.count("trimmed")
            self._world.step(node, trimmed)

    def offered(self, node: CoreNode, offer: FetchSnapshot) -> None:
        """A copy under way goes on."""
        run = (node.name, node.starts)
        if run not in self._under_way:
            self._under_way.add(run)
            delay_ms = LEAST_MS * (MOST_MS / LEAST_MS) ** self._draw.random()
            self._world.after(delay_ms / 2, self._take, node, node.starts, offer, delay_ms / 2)

    def _take(self, node: CoreNode, start: int, offer: FetchSnapshot, delay_ms: float) -> None:
        """From a member that has enough, preferably not from the leader."""
        world = self._world
        names = [name for name in sorted(node.core.membership.members) if name not in (node.name, offer.source)]
        self._draw.shuffle(names)
        for name in (*names, offer.source):
            source = world.nodes.get(name)
            if source is not None and self._is_source(node, source, offer):
                world.after(delay_ms, self._arrive, node, start, source.copy(), source.lineage)
                return
        self._under_way.discard((node.name, start))

    def _is_source(self, node: CoreNode, source: CoreNode, offer: FetchSnapshot) -> bool:
        world = self._world
        if not source.up or source.paused or {(source.name, node.name), (node.name, source.name)} & world.cut:
            return False
        if source.lineage != node.lineage and world.settings.lineages_apart:
            return False
        least = offer.first_available - 1 if source.name == offer.source else offer.last.index
        return source.applied >= least

    def _arrive(self, node: CoreNode, start: int, copied: Folder, lineage: str) -> None:
        """Everything queued is written first, and what comes of that may make the copy pointless."""
        world = self._world
        if node.starts != start or not node.up:
            return
        if node.paused:
            node.inbox.append((self._arrive, node, start, copied, lineage))
            return
        self._under_way.discard((node.name, start))
        if node.full or node.sync_fails or lineage != node.lineage:
            return
        world.flushed(node)
        if self._is_of_use(node, copied):
            self._install(node, copied)

    @staticmethod
    def _is_of_use(node: CoreNode, copied: Folder) -> bool:
        last = copied.last
        known = node.core.term_at(last.index)
        return (
            node.core.snapshot_wanted is not None
            and last.index > node.commit
            and known != last.term
            and last.term <= node.disk.hard_state.term
        )

    def _install(self, node: CoreNode, copied: Folder) -> None:
        world = self._world
        membership = copied.membership_at(copied.last.index)
        node.replace_log(copied, world.operations)
        world.safety.log_replaced(node)
        world.safety.count("copied")
        first = copied.before.index + 1
        world.step(node, SnapshotInstalled(first, copied.last, membership, copied.before, tuple(runs_of(copied.entries, first))))
        world.step(node, Applied(node.applied))
