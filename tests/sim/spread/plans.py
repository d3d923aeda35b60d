"""What strikes clusters of several groups: the faults of each group's nodes, those of name servers, and those of clients.

Owns which are drawn.  Node faults are plans of ``tests/sim/faults.py``, one a group, carried out beside each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.sim.faults import LEADER, Fault, plan_everything, plan_kill_the_leader, plan_split, plan_storm

Plan = Callable[[Sequence[str], random.Random], list[Fault]]
NAME_SERVER_KINDS = ("kill", "power", "wipe", "pause", "split", "alone", "from-nodes", "from-clients", "all-killed", "all-wiped", "clock")
CLIENT_KINDS = ("kill", "pause", "isolate")


@dataclass(frozen=True, slots=True)
class Strike:
    """What happens to a name server or a consumer: ``after_s`` the one before has begun, for ``lasts_s``."""

    kind: str
    after_s: float
    lasts_s: float
    number: int  # which one, modulo how many there are

    def __str__(self) -> str:
        return f"{self.kind} {self.number} for {self.lasts_s:.3f} s, {self.after_s:.3f} s after"


def calm(_names: Sequence[str], _draw: random.Random) -> list[Fault]:
    return []


def plan_of_group(group: str, names: Sequence[str], draw: random.Random) -> list[Fault]:
    """One of the plans for a single group, with its leader named after it."""
    plan = draw.choice((calm, plan_kill_the_leader, plan_kill_the_leader, plan_split, plan_everything, plan_storm))
    faults = plan(names, draw)
    return [replace(fault, nodes=tuple(f"{LEADER}:{group}" if name == LEADER else name for name in fault.nodes)) for fault in faults]


def plan_name_servers(draw: random.Random, kinds: Sequence[str] = NAME_SERVER_KINDS) -> list[Strike]:
    return [_strike(kinds, draw, 3.0) for _ in range(draw.randint(2, 6))]


def plan_clients(draw: random.Random) -> list[Strike]:
    return [_strike(CLIENT_KINDS, draw, 4.0) for _ in range(draw.randint(0, 3))]


def _strike(kinds: Sequence[str], draw: random.Random, longest_s: float) -> Strike:
    return Strike(draw.choice(kinds), 0.1 + draw.random(), draw.random() * draw.choice((0.3, longest_s)), draw.randrange(12))
