"""Which nodes of a group a fault strikes, and taking it back from each of them once.

Owns the names of those choices, which end the names of faults: ``slow-disk-leader``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial

from dledger_drill.faults.base import Strike, Target
from dledger_drill.hosts.shared_machines import HeldMachines
from dledger_drill.plan.model import FaultChoice
from dledger_wire.errors import InvalidArgumentError

Do = Callable[[Target, FaultChoice, random.Random], Strike]


class Role(StrEnum):
    LEADER = "leader"
    FOLLOWER = "follower"
    TWO = "two"
    MINORITY = "minority"
    ALL = "all"


WHO = {
    Role.LEADER: "the leader",
    Role.FOLLOWER: "a follower",
    Role.TWO: "two nodes",
    Role.MINORITY: "a minority",
    Role.ALL: "all nodes",
}


def pick(target: Target, group: str, role: Role, draw: random.Random) -> list[str]:
    """Node ids; ``TWO`` and ``MINORITY`` may have the leader among them."""
    nodes = list(target.groups[group])
    if role is Role.ALL:
        return nodes
    if role is Role.LEADER:
        return [target.leader_or_last(group)]
    if role is Role.FOLLOWER:
        return [draw.choice(followers(target, group))]
    return draw.sample(nodes, 2 if role is Role.TWO else max((len(nodes) - 1) // 2, 1))


def followers(target: Target, group: str) -> list[str]:
    """InvalidArgumentError for a group of one node."""
    leader = target.leader_or_last(group)
    if found := [node for node in target.groups[group] if node != leader]:
        return found
    raise InvalidArgumentError(f"replica group {group} has one node")


def strike(nodes: Sequence[str], do: Callable[[str], None], undo: Callable[[str], None], note: str = "") -> Strike:
    """Strike each node.  ``heal`` calls ``undo`` for each until it worked, and never again; so does a strike that fails half way."""
    struck: list[str] = []

    def heal() -> None:
        while struck:
            undo(struck[0])
            struck.pop(0)

    try:
        for node in nodes:
            struck.append(node)
            do(node)
    except BaseException:
        heal()
        raise
    return Strike(list(nodes), heal, note)


def on_machines(
    role: Role, act: Callable[[HeldMachines, str], None], note: str = "", undo: Callable[[HeldMachines, str], None] = HeldMachines.release
) -> Do:
    """A fault that is one act on each node of a role."""

    def do(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
        held = target.machines.hold()
        return strike(pick(target, choice.group, role, draw), partial(act, held), partial(undo, held), note)

    return do
