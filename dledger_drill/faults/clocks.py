"""Wall clocks that jump in running processes; monotonic clocks go on."""

from __future__ import annotations

import random

from dledger_drill.faults.base import Fault, Strike, Target
from dledger_drill.faults.roles import WHO, Do, Role, pick, strike
from dledger_drill.plan.model import FaultChoice, Need

HOUR_S, DAY_S = 3600.0, 86_400.0
JUMPS_S = (30.0, HOUR_S, 30 * DAY_S, 1000 * DAY_S)  # above what a node tolerates, up to what a dead battery or a bad NTP server makes of it


def clock_jump(role: Role, direction: int) -> Do:
    def do(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
        nodes = pick(target, choice.group, role, draw)
        seconds = direction * draw.choice(JUMPS_S)
        held = target.machines.hold()
        return strike(nodes, lambda node: held.jump(node, seconds), held.release, f"{seconds:+.0f} s")

    return do


FAULTS: tuple[Fault, ...] = tuple(
    Fault(
        f"clock-{name}-{role}",
        "clock",
        f"the wall clock of {WHO[role]} jumps {name} by 30 s to 1000 days",
        (2.0, 6.0),
        clock_jump(role, direction),
        frozenset({Need.PRELOAD}),
    )
    for name, direction in (("forward", 1), ("back", -1))
    for role in (Role.LEADER, Role.FOLLOWER)
)
