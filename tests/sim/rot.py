"""Damage on disks: bits flip, sectors are stale or another place's, files are cut off or lost, under a dead process or a running one.

Owns what may be struck, so that there is an answer to it.  Only a minority's files rot in a run, and of each machine only files of one
kind, since an entry and its index unit prove each other and others hold what is lost.  Of the log only entries that are committed and were
reported durable there; their index units, written by then, are on the disk once they are struck, and so is a segment whose units are
lost.  So one thing is left out: that the power takes what proves, or what is to be proven, before the kernel has written it
(docs/guides/operate/troubleshoot.md).
"""

from __future__ import annotations

import random
from collections.abc import Collection

from broker.node import BrokerNode
from dledger.log.segment import UNITS_FOLDER, log_path
from dledger.runtime.folders import LOG_FOLDER
from tests.sim.cluster import SimCluster
from tests.sim.disk import SimDisk
from tests.sim.disk_content import PAGE, SECTOR
from tests.sim.host import Host

HARD_STATE = "hardstate"
QUEUES = "consumequeue"
Entries = list[tuple[str, int, int]]


def entry_bytes(cluster: SimCluster, node: BrokerNode) -> Entries:
    """(file, position, size) of every entry on the disk that may be struck, oldest first."""
    log = node.raft.log
    found = []
    for index in range(log.first_index, min(len(cluster.invariants.committed) - 1, log.durable.index) + 1):
        place = log.locate(index)
        if place is not None and place.term == cluster.invariants.committed[index]:  # not a tail that others will have cut
            start_pos = max(segment.start_pos for segment in log.segments if segment.start_pos <= place.pos)
            found.append((log_path(start_pos), place.pos - start_pos, place.size))
    return found


def strike(cluster: SimCluster, host: Host, draw: random.Random, entries: Entries) -> None:
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
        _units_are_there(disk, path)
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


def is_minority(cluster: SimCluster, host: Host) -> bool:
    """Whether this machine may be damaged, too: in every configuration that is in force somewhere, most voters are sound then, too."""
    if sum(bool(other.rotten) for other in cluster.hosts.values() if other is not host) >= (len(cluster.hosts) - 1) // 2:
        return False
    known = [each.node.raft.membership.voters for each in cluster.running() if each.node is not None and cluster.is_up(each)]
    return all(most_are_sound(cluster, voters, struck=host) for voters in (*known, cluster.invariants.voters))


def most_are_sound(cluster: SimCluster, voters: Collection[str], struck: Host | None = None) -> bool:
    """Whether the disks of most ``voters`` were never damaged, and are not with ``struck``; also when there are none."""
    hosts = [cluster.hosts[node_id] for node_id in voters]
    return not hosts or sum(not host.rotten and host is not struck for host in hosts) > len(hosts) // 2


def strike_sector(host: Host, draw: random.Random, entries: Entries, *, misdirected: bool) -> None:
    """A sector or page of entries holds what stood there before, or what was meant for another place."""
    if not entries or not _take(host, LOG_FOLDER):
        return
    path, pos, size = draw.choice(entries)
    places = [(start, start + length) for other, start, length in entries if other == path]
    unit = draw.choice((SECTOR, PAGE))
    start = (pos + draw.randrange(size)) // unit * unit
    first, end = max(start, places[0][0]), min(start + unit, places[-1][1])
    if path not in host.disk.names or end <= first:
        return
    stood = bytes(end - first)
    if misdirected:
        other = draw.choice(entries)
        if other[0] in host.disk.names:
            stood = host.disk.names[other[0]].current.read(other[1] // SECTOR * SECTOR, end - first).ljust(end - first, b"\0")
    _units_are_there(host.disk, path)
    host.disk.overwrite(path, first, stood)


def strike_file(host: Host, draw: random.Random, entries: Entries) -> None:
    """A sealed segment ends before its end."""
    paths = list(dict.fromkeys(path for path, _pos, _size in entries))[:-1]
    if not paths or not _take(host, LOG_FOLDER):
        return
    path = draw.choice(paths)
    if path in host.disk.names and (size := host.disk.names[path].current.size):  # not one of which nothing is left
        _units_are_there(host.disk, path)
        host.disk.cut_off(path, draw.choice((0, draw.randrange(size))))


def strike_units(host: Host, draw: random.Random) -> None:
    """A file of index units is not there any more."""
    paths = [path for path in sorted(host.disk.names) if path.startswith(UNITS_FOLDER)]
    if paths and _take(host, UNITS_FOLDER):
        path = draw.choice(paths)
        host.disk.lose(path)
        _is_there(host.disk, path.replace(UNITS_FOLDER, LOG_FOLDER))


def _units_are_there(disk: SimDisk, path: str) -> None:
    """What proves the entries of a segment is on the disk when they are struck."""
    _is_there(disk, path.replace(LOG_FOLDER, UNITS_FOLDER))


def _is_there(disk: SimDisk, path: str) -> None:
    """What the kernel has of a file is on the disk, if there is such a file."""
    if path in disk.names:
        disk.names[path].written_back()


def _take(host: Host, kind: str) -> bool:
    """Whether files of this kind may be damaged on this machine: they are from now on the only ones."""
    host.rotten = host.rotten or kind
    return host.rotten == kind
