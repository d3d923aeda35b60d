"""Why a leader was lost: a node whose own disk held it up does not blame the leader or the network."""

from __future__ import annotations

import pytest

from broker.leadership.leader_reasons import OWN_DISK, Explained, explained
from dledger.core.causes import Cause, LeaderLoss
from dledger.core.effects import RoleChanged
from dledger.core.types import NodeId, Role

N0, N1, N2 = (NodeId(name) for name in ("n0", "n1", "n2"))


def reason(cause: Cause, disk_held_ms: float, lost: NodeId = N2, leads: NodeId = N0) -> Explained:
    event = RoleChanged(Role.LEADER, 4, leads, True, LeaderLoss(cause, lost, None, 0), 1200)
    return explained(event, N0, last_run_broken=False, disk_held_ms=disk_held_ms)


def test_a_node_that_its_own_disk_held_up_says_so() -> None:
    own = reason(Cause.SILENT, 2000.0)
    assert own.reason == "n0 lost leader n2: a write took 2.0 s on its own disk, and n0 read no messages meanwhile"
    assert (own.kind, own.cause) == ("election", OWN_DISK)
    assert reason(Cause.SILENT, 2000.0, leads=N1).kind == "followed"
    assert reason(Cause.NOT_CONFIRMED, 2000.0, lost=N0, leads=N1).reason.startswith("n0 stepped down: a write took 2.0 s on its own disk")


@pytest.mark.parametrize(("cause", "held_ms"), [(Cause.SILENT, 300.0), (Cause.SILENT, 0.0), (Cause.LINK_LOST, 2000.0)])
def test_a_short_wait_for_the_disk_explains_nothing(cause: Cause, held_ms: float) -> None:
    found = reason(cause, held_ms)
    assert found.cause == cause.value
    assert "its own disk" not in found.reason
