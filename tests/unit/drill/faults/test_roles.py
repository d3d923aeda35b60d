"""Taking a strike back: each node once, and the rest after a failure."""

from __future__ import annotations

import pytest

from dledger_drill.faults import clocks, damage, disks
from dledger_drill.faults.roles import strike


def test_each_node_is_healed_once_also_when_healing_was_interrupted() -> None:
    healed: list[str] = []

    def undo(node: str) -> None:
        if node == "n1" and healed.count("try") < 1:
            healed.append("try")
            raise OSError("not yet")
        healed.append(node)

    struck = strike(["n0", "n1", "n2"], undo)
    with pytest.raises(OSError, match="not yet"):
        struck.heal()
    struck.heal()
    struck.heal()
    assert healed == ["n0", "try", "n1", "n2"]
    assert struck.nodes == ["n0", "n1", "n2"]


def test_names_are_unique_and_begin_with_what_is_struck() -> None:
    faults = (*disks.FAULTS, *clocks.FAULTS, *damage.FAULTS)
    assert len({fault.name for fault in faults}) == len(faults) == 19
    for fault in faults:
        assert 0 < fault.hold_s[0] < fault.hold_s[1]
        assert fault.help
        assert not fault.harmless
