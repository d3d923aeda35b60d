"""The six ways to share a topic's queues among the members of a consumer group, as RocketMQ names and computes them.

Owns pure functions of (member id, queues, members).  Broker and clients use the same ones, so both sides agree who owns what.  Queues and
members are sorted before anything else; a member that is not listed gets nothing.  Rules after RocketMQ 5's ``rebalance`` package.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dledger_client.deprecation import RenamedAttribute
from dledger_wire.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one replica group (RocketMQ's brokerName is our group name)."""

    topic: str
    replica_group: str
    queue_id: int
    group = RenamedAttribute("replica_group")

    def __str__(self) -> str:
        return f"MessageQueue [topic={self.topic}, brokerName={self.replica_group}, queueId={self.queue_id}]"


Item = TypeVar("Item")
Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]


def averagely(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """AVG: consecutive shares that differ by at most one queue, the larger ones first."""
    place = _place(member, members)
    if place is None:
        return []
    ordered, position, count = sorted(queues), *place
    share, rest = divmod(len(ordered), count)
    start = position * share + min(position, rest)
    return ordered[start : start + share + (position < rest)]


def averagely_by_circle(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """AVG_BY_CIRCLE: the queues are dealt round the members like cards."""
    place = _place(member, members)
    if place is None:
        return []
    position, count = place
    return sorted(queues)[position::count]


def by_config(preset: Sequence[MessageQueue]) -> Strategy:
    """CONFIG: exactly the queues given, whoever asks."""
    fixed = list(preset)
    return lambda member, queues, members: list(fixed)


def by_machine_room(rooms: Sequence[str]) -> Strategy:
    """MACHINE_ROOM: only queues of groups named ``room@name`` with a room in ``rooms``, in equal consecutive shares.

    What is left over after equal shares goes one each to the first members, from the end of the list.
    """
    wanted = frozenset(rooms)

    def allocate(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        place = _place(member, members)
        if place is None:
            return []
        position, count = place
        near = [queue for queue in sorted(queues) if len(parts := queue.replica_group.split("@")) == 2 and parts[0] in wanted]
        share, rest = divmod(len(near), count)
        mine = near[position * share : (position + 1) * share]
        if position < rest:
            mine.append(near[position + share * count])
        return mine

    return allocate


def machine_room_nearby(
    inner: Strategy,
    room_of_group: Callable[[str], str] = lambda group: group.split("-")[0],
    room_of_member: Callable[[str], str] = lambda member: member.split("-")[0],
) -> Strategy:
    """MACHINE_ROOM_NEARBY: ``inner`` within each room; rooms that have queues but no member are shared by all members with ``inner``."""

    def allocate(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if member not in members:
            return []
        queues_by_room = _by_room(sorted(queues), lambda queue: room_of_group(queue.replica_group))
        members_by_room = _by_room(sorted(members), room_of_member)
        own_room = room_of_member(member)
        mine = inner(member, queues_by_room.get(own_room, []), members_by_room[own_room])
        for room, orphaned in queues_by_room.items():
            if room not in members_by_room:
                mine = mine + inner(member, orphaned, members)
        return mine

    return allocate


def consistent_hash(virtual_nodes: int = 10) -> Strategy:
    """CONSISTENT_HASH: a ring of ``virtual_nodes`` points a member, so that a change of members moves few queues."""
    if virtual_nodes < 1:
        raise InvalidArgumentError(f"consistent hash: {virtual_nodes} virtual nodes, expected at least 1")

    def allocate(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if member not in members:
            return []
        ring = sorted((_md5_head(f"{name}-{copy}"), name) for name in sorted(members) for copy in range(virtual_nodes))
        points = [point for point, _ in ring]
        return [queue for queue in sorted(queues) if ring[bisect_left(points, _md5_head(str(queue))) % len(ring)][1] == member]

    return allocate


def strategy(name: str, options: Mapping[str, str] | None = None) -> Strategy:
    """The strategy of a name that needs no code (AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, MACHINE_ROOM with option ``rooms``, ...)."""
    chosen = options or {}
    plain: dict[str, Callable[[], Strategy]] = {
        "AVG": lambda: averagely,
        "AVG_BY_CIRCLE": lambda: averagely_by_circle,
        "CONSISTENT_HASH": lambda: consistent_hash(int(chosen.get("virtual_nodes", "10"))),
        "MACHINE_ROOM": lambda: by_machine_room(chosen.get("rooms", "").split(",")),
        "MACHINE_ROOM_NEARBY": lambda: machine_room_nearby(strategy(chosen.get("inner", "AVG"))),
    }
    if name not in plain:
        raise InvalidArgumentError(f"allocation strategy {name!r}: expected one of {', '.join(sorted([*plain, 'CONFIG']))}")
    return plain[name]()


def _place(member: str, members: Sequence[str]) -> tuple[int, int] | None:
    ordered = sorted(members)
    return (ordered.index(member), len(ordered)) if member in ordered else None


def _md5_head(key: str) -> int:
    """First four bytes of the MD5, big-endian: the ring position RocketMQ uses."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _by_room(items: Sequence[Item], room_of: Callable[[Item], str]) -> dict[str, list[Item]]:
    rooms: dict[str, list[Item]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise InvalidArgumentError(f"machine room of {item}: empty")
        rooms.setdefault(room, []).append(item)
    return dict(sorted(rooms.items()))
