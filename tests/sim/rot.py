"""Bit rot: bits flip on one machine's disk, under a dead process or a running one.

Owns what may be struck, so that there is an answer to it.  Only one machine's files rot in a run, and only files of one kind, since an
entry and its index unit prove each other and others hold what is lost.  Of the log only entries that are committed and were reported
durable there; their index units, written by then, are on the disk once they are struck.  So one thing is left out: units that the power
takes before the kernel has written them, together with a flip among just their entries (docs/operations.md).
"""

from __future__ import annotations

import random

from broker.node import BrokerNode
from dledger.log.segment import LOG_FOLDER, UNITS_FOLDER, log_path
from tests.sim.cluster import Host, SimCluster

HARD_STATE = "hardstate"
QUEUES = "consumequeue"


def entry_bytes(cluster: SimCluster, node: BrokerNode) -> list[tuple[str, int, int]]:
    """(file, position, size) of every entry on the disk that may be struck, oldest first."""
    log = node.raft.log
    found = []
    for index in range(log.first_index, min(len(cluster.invariants.committed) - 1, log.durable.index) + 1):
        place = log.locate(index)
        if place is not None:
            start_pos = max(segment.start_pos for segment in log.segments if segment.start_pos <= place.pos)
            found.append((log_path(start_pos), place.pos - start_pos, place.size))
    return found


def strike(cluster: SimCluster, host: Host, draw: random.Random, entries: list[tuple[str, int, int]]) -> None:
    """Flip one bit of what may be struck, if there is anything."""
    disk = host.disk
    if host.rotten == HARD_STATE:
        return  # damage to one of its four blocks is survived, to more of them it need not be
    kind = host.rotten = host.rotten or draw.choice((LOG_FOLDER, LOG_FOLDER, LOG_FOLDER, UNITS_FOLDER, HARD_STATE, QUEUES))
    if kind == LOG_FOLDER:
        if not entries:
            return
        path, pos, size = draw.choice(entries)
        at = pos + draw.randrange(size)
        units = disk.names.get(path.replace(LOG_FOLDER, UNITS_FOLDER))
        if units is not None:
            units.written_back()
    else:
        paths = [path for path in sorted(disk.names) if path.startswith(kind) and any(disk.names[path].current.whole())]
        if not paths:
            return
        path = draw.choice(paths)
        data = disk.names[path].current.whole()
        at = draw.choice([place for place, byte in enumerate(data) if byte])
    if path not in disk.names or at >= disk.names[path].current.size:
        return
    disk.flip_bit(path, at, draw.randrange(8))
