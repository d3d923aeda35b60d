"""What operators do, and what happens to them: restarts, transfers, a member replaced, name servers gone, certificates rotated."""

from __future__ import annotations

import random

from dledger_drill.faults.base import Fault, Strike, Target
from dledger_drill.faults.roles import WHO, Do, Role, followers, on_machines, pick, strike
from dledger_drill.plan.model import FaultChoice, Need

STOP_S = 30.0


def restart(role: Role) -> Do:
    """Stopped in order, and started when the fault is over."""
    return on_machines(role, lambda held, node: held.stop(node, STOP_S))


def rolling_restart(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
    """Followers first, as an operator does; each is awaited before the next."""
    leader = target.leader_or_last(choice.group)
    order = [*(node for node in target.groups[choice.group] if node != leader), leader]
    for node in order:
        target.restart_node(node)
        target.wait_healthy()
    return Strike(order, _nothing)


def transfer(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
    leader = target.leader(choice.group)
    to = draw.choice(followers(target, choice.group))
    target.transfer_leader(choice.group, to)
    return Strike([leader, to], _nothing)


def replace_member(role: Role) -> Do:
    def do(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
        (node,) = pick(target, choice.group, role, draw)
        target.replace_member(choice.group, node)
        return Strike([node], _nothing, "on an empty disk")

    return do


def name_servers_gone(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
    held = target.machines.hold()
    return strike(list(target.name_servers), held.kill, held.release)


def rotate(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
    target.rotate_certificates()
    return Strike([node for nodes in target.groups.values() for node in nodes], _nothing)


def _nothing() -> None:
    """It is over when it was done."""


_SOON_S, _DONE_S = (0.2, 1.0), (0.0, 0.1)  # the second is of what is over when it was done
_HOOK, _TLS = frozenset({Need.RESTART}), frozenset({Need.TLS})
_TWO = (Role.LEADER, Role.FOLLOWER)
FAULTS: tuple[Fault, ...] = (
    *(
        Fault(f"restart-{role}", "restart", f"{WHO[role]} is stopped in order and started again", _SOON_S, restart(role), takes_long=True)
        for role in _TWO
    ),
    Fault("rolling-restart", "restart", "all nodes, one after the other", _DONE_S, rolling_restart, _HOOK, harmless=True, takes_long=True),
    Fault("transfer", "transfer", "leadership is handed over", _DONE_S, transfer, harmless=True, takes_long=True),
    *(
        Fault(f"replace-{role}", "member", f"{WHO[role]} loses its disk and is replaced", _DONE_S, replace_member(role), takes_long=True)
        for role in reversed(_TWO)
    ),
    Fault("name-servers-gone", "name-server", "all name servers are killed", (1.0, 3.0), name_servers_gone),
    Fault("certificates-rotated", "certificates", "every node gets a new certificate", _DONE_S, rotate, _TLS, takes_long=True),
)
