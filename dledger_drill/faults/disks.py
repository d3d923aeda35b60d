"""Faults of disks: slow, failing and full ones, and power losses."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from dledger_drill.faults.base import Fault, Strike, Target
from dledger_drill.faults.roles import WHO, Do, Role, on_machines, pick, strike
from dledger_drill.hosts.shared_machines import HeldMachines
from dledger_drill.plan.model import FaultChoice, Need

SYNC_MS = (20.0, 300.0)  # how much longer each sync takes
WRITE_SHARE = 0.1  # of that, for each write
LEAVE_BYTES = 0


def slow_disk(role: Role) -> Do:
    def do(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
        nodes = pick(target, choice.group, role, draw)
        sync_ms = round(draw.uniform(*SYNC_MS))
        held = target.machines.hold()
        struck = strike(nodes, lambda node: held.slow(node, sync_ms, sync_ms * WRITE_SHARE), held.release, f"{sync_ms} ms a sync")
        struck.without_effect = lambda: _unstruck(held, nodes)
        return struck

    return do


def failing_disk(role: Role) -> Do:
    """The node ends by itself at its next write; it is started on the disk when that works again."""

    def do(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
        nodes = pick(target, choice.group, role, draw)
        held = target.machines.hold()

        def undo(node: str) -> None:
            held.kill(node)
            held.release(node)

        struck = strike(nodes, held.fail, undo, "EIO")
        struck.without_effect = lambda: _unstruck(held, nodes)
        return struck

    return do


def full_disk(role: Role) -> Do:
    return on_machines(role, lambda held, node: held.fill(node, LEAVE_BYTES), "ENOSPC")


def power_loss(role: Role) -> Do:
    def do(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
        nodes = pick(target, choice.group, role, draw)
        held = target.machines.hold()
        struck = strike(nodes, held.power_off, held.release)
        for node in nodes:  # when all are off: a kill takes longer
            held.kill(node)
        return struck

    return do


def _unstruck(held: HeldMachines, nodes: Sequence[str]) -> str:
    idle = [node for node in nodes if not held.struck(node)]
    return f"{', '.join(idle)} wrote nothing meanwhile" if idle else ""


def _disk_faults(name: str, what: str, make: Callable[[Role], Do], need: Need, hold_s: tuple[float, float], *roles: Role) -> list[Fault]:
    return [Fault(f"{name}-{role}", name, what.format(WHO[role]), hold_s, make(role), frozenset({need})) for role in roles]


_TWO, _EACH = (Role.LEADER, Role.FOLLOWER), (Role.LEADER, Role.FOLLOWER, Role.ALL)
_POWER = (Role.LEADER, Role.TWO, Role.ALL)
FAULTS: tuple[Fault, ...] = (
    *_disk_faults("slow-disk", "syncs of {} take 20 to 300 ms longer", slow_disk, Need.PRELOAD, (1.5, 4.0), *_EACH),
    *_disk_faults("failing-disk", "writes of {} fail with EIO, until it is started again", failing_disk, Need.PRELOAD, (1.5, 4.0), *_TWO),
    *_disk_faults("full-disk", "no space is left for {}", full_disk, Need.PRELOAD, (3.0, 6.0), *_EACH),
    *_disk_faults("power", "power of {} fails: what was not synced is gone", power_loss, Need.LOOP_DISKS, (0.5, 2.0), *_POWER),
)
