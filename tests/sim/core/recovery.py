"""Unsafe recovery in the core simulator: an operator makes one survivor the only member, and the group goes on with what that one has.

Owns what the command does to a folder (``dledger_offline/recovery``), and what an acknowledgement of before is still worth: an
operation counts for the lineage that kept its entry, and for no other.
"""

from __future__ import annotations

from dataclasses import replace

from dledger.core.types import EntryKind, EntryMeta, HardState, Membership
from tests.checkers.append_log import Outcome
from tests.sim.core.machine import FIRST_SIZE, Operation
from tests.sim.core.node import CoreNode
from tests.sim.core.world import CONFIG_BYTES, World
from tests.unit.core.harness import NO_VOTERS

MOST_RECOVERIES = 3  # in one run


def may_recover(world: World, survivor: CoreNode) -> bool:
    """Whether an operator could take this one: a voter of the newest group, on the folder that belongs to it."""
    if survivor.lineage != world.lineage or survivor.is_blank or len(world.kept) >= MOST_RECOVERIES:
        return False
    membership = survivor.core.membership
    return survivor.name in membership.voters and membership.store_of(survivor.name) in ("", survivor.store)


def recover(world: World, survivor: CoreNode, terms_ahead: int) -> None:
    """``survivor``, which is down, is the only voter of a group of its own from now on; whoever starts on an empty folder waits."""
    folder = survivor.disk
    del survivor.folders[survivor.store]
    store = survivor.new_store(folder)
    kept, of = world.safety.recovered(folder.lineage, store, folder), world.safety.lineages[folder.lineage].commit
    world.note(f"{survivor.name} is recovered on {store}, with {kept} of {of} committed entries")
    world.safety.count("recovered")
    entries = (*folder.state, *folder.entries)
    world.kept[store] = {meta.size_bytes - FIRST_SIZE for meta in entries if meta.kind is EntryKind.NORMAL}
    folder.lineage, folder.suspect = store, False
    term = max(folder.last.term, folder.hard_state.term) + terms_ahead
    alone = Membership((survivor.name,)).with_stores({survivor.name: store})
    folder.hard_state = HardState(term)
    folder.entries += [EntryMeta(term, CONFIG_BYTES, EntryKind.CONFIG, alone), EntryMeta(term, CONFIG_BYTES, EntryKind.NO_OP)]
    survivor.put(store)
    for node in world.nodes.values():
        node.first = NO_VOTERS


def worth(world: World, operation: Operation) -> Operation:
    """What its client was told, as far as that binds the newest group."""
    chain = list(world.safety.lineages)
    later = [world.kept[name] for name in chain[chain.index(operation.lineage) + 1 :]]
    if not later:
        return operation
    kept = set.intersection(*later)
    if operation.kind != "poll":
        binds = operation.outcome is Outcome.ACKED and operation.number in kept
        return operation if binds else replace(operation, outcome=Outcome.UNKNOWN)
    if operation.outcome is not Outcome.ACKED:
        return operation
    end = next((at for at, (_offset, number) in enumerate(operation.result) if number not in kept), len(operation.result))
    return replace(operation, result=operation.result[:end])
