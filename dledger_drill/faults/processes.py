"""Faults of processes: killed, paused, killed one after the other."""

from __future__ import annotations

import random

from dledger_drill.faults.base import Fault, Strike, Target
from dledger_drill.faults.roles import WHO, Do, Role, on_machines, strike
from dledger_drill.hosts.shared_machines import HeldMachines
from dledger_drill.plan.model import FaultChoice
from dledger_wire.errors import InvalidArgumentError

SHORT_S, LONG_S = (0.1, 0.5), (1.2, 4.0)  # less and more than an election timeout
NEXT_LEADER_S = 30.0


def kill_leader_twice(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
    """The leader, and the next one as soon as there is one; the first is started in between, so that a majority is left."""
    first = target.leader_or_last(choice.group)
    held = target.machines.hold()
    struck = strike([first], held.kill, held.release)
    try:
        second = target.leader(choice.group, NEXT_LEADER_S)
    finally:
        struck.heal()
    held = target.machines.hold()
    return strike([second], held.kill, held.release, f"after {first}")


def pause(role: Role) -> Do:
    return on_machines(role, HeldMachines.pause)


def pause_clients(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
    """All workloads at once, as applications on a host that stands still: sessions of consumers end, and their queues go to others."""
    workloads = target.workloads
    if workloads is None:
        raise InvalidArgumentError("there is no load to pause")
    workloads.pause()
    resumed = False

    def go_on() -> None:
        nonlocal resumed
        if not resumed:
            workloads.resume()
            resumed = True

    return Strike([], go_on, pauses_clients=True)


_KILLED = (Role.LEADER, Role.FOLLOWER, Role.TWO, Role.ALL)
_PAUSED = (Role.LEADER, Role.FOLLOWER, Role.ALL)
FAULTS: tuple[Fault, ...] = (
    *(Fault(f"kill-{role}", "kill", f"kill -9 of {WHO[role]}", (0.5, 2.0), on_machines(role, HeldMachines.kill)) for role in _KILLED),
    Fault("kill-leader-twice", "kill", "kill -9 of the leader, then of the next one", (0.5, 2.0), kill_leader_twice, takes_long=True),
    *(
        Fault(
            f"pause-short-{role}",
            "pause",
            f"SIGSTOP of {WHO[role]} for less than an election timeout",
            SHORT_S,
            pause(role),
        )
        for role in _PAUSED
    ),
    *(Fault(f"pause-{role}", "pause", f"SIGSTOP of {WHO[role]} for longer than that", LONG_S, pause(role)) for role in _PAUSED),
    Fault("pause-clients", "pause", "SIGSTOP of all producers and consumers", LONG_S, pause_clients, harmless=True),
)
