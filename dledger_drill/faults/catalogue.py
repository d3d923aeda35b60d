"""All faults by name, and which of them this machine has the means for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger_drill.faults import clocks, damage, disks, links, operations, processes
from dledger_drill.faults.base import Fault
from dledger_drill.plan.model import Need

CATALOGUE: dict[str, Fault] = {
    fault.name: fault for fault in (*processes.FAULTS, *links.FAULTS, *disks.FAULTS, *damage.FAULTS, *clocks.FAULTS, *operations.FAULTS)
}


# One of each family, which a short drill has: the one that says most of it.
LEADING = frozenset(
    {
        "kill-leader",
        "pause-leader",
        "partition-leader",
        "loss",
        "slow-disk-leader",
        "failing-disk-leader",
        "full-disk-leader",
        "power-all",
        "flip-active-minority",
        "clock-forward-leader",
        "rolling-restart",
        "transfer",
        "replace-leader",
        "name-servers-gone",
        "certificates-rotated",
    }
)


def families() -> dict[str, list[str]]:
    """Family -> names of its faults."""
    found: dict[str, list[str]] = {}
    for fault in CATALOGUE.values():
        found.setdefault(fault.family, []).append(fault.name)
    return found


def harmless() -> list[str]:
    """Those that may be done to a cluster in use."""
    return [fault.name for fault in CATALOGUE.values() if fault.harmless]


def impossible(names: Iterable[str], missing: Mapping[Need, str]) -> dict[str, str]:
    """Those of ``names`` that need what is missing, and why it is."""
    return {name: missing[need] for name in names for need in sorted(CATALOGUE[name].needs) if need in missing}
