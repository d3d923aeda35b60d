"""Where the members of a replica group are: which of them would fail together."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.config.cluster_file import GroupConfig

Place = tuple[str, str, str]  # node id, host, rack; empty: not known


def group_warnings(group: GroupConfig) -> list[str]:
    """``shared_places`` of a group of the cluster file; its spare nodes do not count."""
    return shared_places(group.name, [(node.id, node.host_label, node.rack) for node in group.nodes if not node.spare])


def shared_places(group: str, members: Iterable[Place]) -> list[str]:
    """Members of one replica group on one host or in one rack, a warning for each such place.

    A loopback address is no place: a cluster to try things on has no other hosts.
    """
    found = list(members)
    hosts = [(node_id, "" if is_loopback(host) else host) for node_id, host, _ in found]
    racks = [(node_id, rack) for node_id, _, rack in found]
    return _shared(group, "on host", hosts) + _shared(group, "in rack", racks)


def is_loopback(host: str) -> bool:
    """Whether only the own machine is reached at ``host``; names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _shared(group: str, where: str, places: list[tuple[str, str]]) -> list[str]:
    by_place: dict[str, list[str]] = {}
    for node_id, place in places:
        if place:
            by_place.setdefault(place, []).append(node_id)
    shared = {place: ids for place, ids in by_place.items() if len(ids) > 1}
    return [f"replica group {group}: {', '.join(ids)} are {where} {place}" for place, ids in shared.items()]
