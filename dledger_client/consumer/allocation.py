"""The six strategies that assign a topic's queues to the members of a consumer group, as RocketMQ names and computes them.

Owns pure functions of (member id, queues, members).  Every member computes the same assignment.  Queues and members are sorted first; a
member that is not in the list gets nothing.  Rules after RocketMQ 5's ``rebalance`` package.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dledger_wire.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic in one replica group.

    Attributes:
        topic: The topic.
        replica_group: The replica group that stores it (RocketMQ's ``brokerName``).
        queue_id: The number of the queue.
    """

    topic: str
    replica_group: str
    queue_id: int

    def __str__(self) -> str:
        return f"MessageQueue [topic={self.topic}, brokerName={self.replica_group}, queueId={self.queue_id}]"


Item = TypeVar("Item")
Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]


def averagely(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Allocation AVG: consecutive shares that differ by at most one queue, the larger ones first.

    Args:
        member: The group member to allocate for.
        queues: All queues.
        members: All members of the consumer group.

    Returns:
        The queues of ``member``.

    Examples:
        >>> queues = [MessageQueue("orders", "g0", number) for number in range(3)]
        >>> [queue.queue_id for queue in averagely("a", queues, ["a", "b"])]
        [0, 1]
    """
    rank = _rank(member, members)
    if rank is None:
        return []
    ordered, index, count = sorted(queues), *rank
    share, rest = divmod(len(ordered), count)
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]


def averagely_by_circle(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Allocation AVG_BY_CIRCLE: queues are assigned round-robin.

    Args:
        member: The group member to allocate for.
        queues: All queues.
        members: All members of the consumer group.

    Returns:
        The queues of ``member``.

    Examples:
        >>> queues = [MessageQueue("orders", "g0", number) for number in range(3)]
        >>> [queue.queue_id for queue in averagely_by_circle("a", queues, ["a", "b"])]
        [0, 2]
    """
    rank = _rank(member, members)
    if rank is None:
        return []
    index, count = rank
    return sorted(queues)[index::count]


def by_config(preset: Sequence[MessageQueue]) -> Strategy:
    """Allocation CONFIG: exactly the given queues, for every member.

    Args:
        preset: The queues.

    Returns:
        A strategy for ``PushConsumer(allocate_strategy=)``.

    Examples:
        >>> strategy = by_config([MessageQueue("orders", "g0", 0)])
        >>> strategy("a", [], ["a"])[0].queue_id
        0
    """
    fixed = list(preset)
    return lambda member, queues, members: list(fixed)


def _room(name: str) -> str:
    """The room of a replica group or member of that name."""
    return name.split("-")[0]


def by_machine_room(rooms: Sequence[str]) -> Strategy:
    """Allocation MACHINE_ROOM: only queues of replica groups in the given rooms, in equal consecutive shares.

    The room of a replica group is its name up to the first ``-``, as for ``machine_room_nearby``. RocketMQ separates
    it by ``@``, which no name of a replica group has. What remains after equal shares goes one each to the first
    members, from the end of the list.

    Args:
        rooms: The rooms whose queues are allocated.

    Returns:
        A strategy for ``PushConsumer(allocate_strategy=)``.

    Examples:
        >>> strategy = by_machine_room(["room1"])
        >>> len(strategy("a", [MessageQueue("orders", "room1-g0", 0)], ["a"]))
        1
    """
    wanted = frozenset(rooms)

    def allocate(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        rank = _rank(member, members)
        if rank is None:
            return []
        index, count = rank
        near = [queue for queue in sorted(queues) if _room(queue.replica_group) in wanted]
        share, rest = divmod(len(near), count)
        mine = near[index * share : (index + 1) * share]
        if index < rest:
            mine.append(near[index + share * count])
        return mine

    return allocate


def machine_room_nearby(
    inner: Strategy,
    room_of_group: Callable[[str], str] = _room,
    room_of_member: Callable[[str], str] = _room,
) -> Strategy:
    """Allocation MACHINE_ROOM_NEARBY: ``inner`` within each room; queues of rooms without members are shared by all members.

    Args:
        inner: The strategy within a room.
        room_of_group: The room of a replica group. Default: its name up to the first ``-``.
        room_of_member: The room of a group member. Default: its client id up to the first ``-``.

    Returns:
        A strategy for ``PushConsumer(allocate_strategy=)``.

    Raises:
        InvalidArgumentError: When it is called: the room of a queue or member is empty.

    Examples:
        >>> strategy = machine_room_nearby(averagely)
        >>> queues = [MessageQueue("orders", "eu-1", 0), MessageQueue("orders", "us-1", 0)]
        >>> [queue.replica_group for queue in strategy("eu-a", queues, ["eu-a", "us-b"])]
        ['eu-1']
    """

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
    """Allocation CONSISTENT_HASH: a hash ring, so that a change of members moves few queues.

    Args:
        virtual_nodes: Points on the ring per member, at least 1.

    Returns:
        A strategy for ``PushConsumer(allocate_strategy=)``.

    Raises:
        InvalidArgumentError: ``virtual_nodes`` is less than 1.

    Examples:
        >>> strategy = consistent_hash(virtual_nodes=20)
        >>> len(strategy("a", [MessageQueue("orders", "g0", 0)], ["a"]))
        1
    """
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
        "CONSISTENT_HASH": lambda: consistent_hash(_number("virtual_nodes", chosen.get("virtual_nodes", "10"))),
        "MACHINE_ROOM": lambda: by_machine_room(chosen.get("rooms", "").split(",")),
        "MACHINE_ROOM_NEARBY": lambda: machine_room_nearby(strategy(chosen.get("inner", "AVG"))),
    }
    if name not in plain:
        raise InvalidArgumentError(f"allocation strategy {name!r}: expected one of {', '.join(sorted([*plain, 'CONFIG']))}")
    return plain[name]()


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{name} {value!r}: expected a whole number") from None


def _rank(member: str, members: Sequence[str]) -> tuple[int, int] | None:
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
