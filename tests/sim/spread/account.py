"""What must be true of a run over several replica groups: rules over what was sent, what all logs hold, and what consumers committed.

The content is read from the stores of the replicas, by nothing that a client uses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.node import BrokerNode
from dledger_wire.frames.frame import decode_frame
from dledger_wire.frames.frames import frame_positions

READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredAt:
    """One message of a topic, where it is."""

    replica_group: str
    queue_id: int
    offset: int
    body: bytes
    stored_ms: int  # by the time of its group, which never goes back


async def stored_in(node: BrokerNode, topic: str) -> list[StoredAt]:
    """Everything that ``node`` has of a topic, queue by queue."""
    group, known = node.settings.group.name, node.store.topics.get(topic)
    if known is None:
        return []
    found: list[StoredAt] = []
    for queue_id in range(known.read_queues):
        end, offset = node.store.queues.max_offset((topic, queue_id)), 0
        while offset < end:
            chunk = await node.store.read(topic, queue_id, offset, max_bytes=READ_BYTES, for_service=True)
            data, places = b"".join(chunk.frames), frame_positions(np.frombuffer(chunk.sizes, ">u4"))
            frames = [decode_frame(data, place) for place in places.tolist()]
            if not frames:
                raise AssertionError(f"{topic} {group}:{queue_id}: nothing at {offset}, it ends at {end}")
            found += [StoredAt(group, queue_id, offset + place, frame.body, frame.store_timestamp) for place, frame in enumerate(frames)]
            offset += len(frames)
    return found


def check_once(topic: str, found: Sequence[StoredAt], sent: Collection[bytes], acknowledged: Collection[bytes]) -> None:
    """Over all groups: what was acknowledged is there once, and nothing is there twice that was sent once."""
    counts = Counter(each.body for each in found)
    doubled = [(body, [each for each in found if each.body == body]) for body, count in counts.items() if count > 1]
    assert doubled == [], f"{topic}: stored twice"
    assert set(counts) <= set(sent), f"{topic}: nobody sent this"
    assert set(acknowledged) - set(counts) == set(), f"{topic}: acknowledged and lost"


def check_keys(topic: str, found: Sequence[StoredAt], *, queues_changed: bool) -> None:
    """Messages of a key are in one queue, in the order of sending, while the topic's queues stay the same.

    ``queues_changed``: once.  Those sent before that are in the order of sending within their queue, and so are those sent after it.
    Between the two there is no order (P11), not even in one queue: what the old queue refused is moved behind what was sent since (P7).
    """
    places: dict[bytes, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        key, _, number = each.body.partition(b":")
        places[key][each.replica_group, each.queue_id].append(int(number))
    for key, queues in places.items():
        assert queues_changed or len(queues) == 1, f"{topic}: messages of {key!r} are in {sorted(queues)}"
        sent = sorted(number for numbers in queues.values() for number in numbers)
        first_after = sent if queues_changed else sent[:1]  # the first one that was sent after the change: it may be any
        in_order = any(_rise(list(queues.values()), first) for first in first_after)
        assert in_order, f"{topic}: {key!r} out of order: {dict(queues)}"


def _rise(queues: Sequence[Sequence[int]], first_after: int) -> bool:
    """Whether in every queue the numbers before ``first_after`` rise, and the others do."""
    parts = [[number for number in numbers if (number < first_after) is before] for numbers in queues for before in (True, False)]
    return all(part == sorted(part) for part in parts)


def check_given_in_order(topic: str, given: Mapping[tuple[str, int], Sequence[bytes]], found: Sequence[StoredAt]) -> None:
    """Orderly consumers were given each queue in its own order.  ``given``: bodies by queue, in the order of the first times."""
    offsets = {each.body: each.offset for each in found}
    for queue, bodies in given.items():
        order = [offsets[body] for body in bodies]
        assert order == sorted(order), f"{topic}: queue {queue} was given in the order {order}"


def uncommitted(group: str, topic: str, nodes: Mapping[str, BrokerNode]) -> list[str]:
    """What a consumer group has not committed, though it is stored.  ``nodes``: replica group -> a node that has everything."""
    found = []
    for name, node in nodes.items():
        known = node.store.topics.get(topic)
        for queue_id in range(known.read_queues if known is not None else 0):
            end, committed = node.store.queues.max_offset((topic, queue_id)), node.store.consumer_offsets.position(group, topic, queue_id)
            assert committed <= end, f"{group} committed {committed} in {topic} {name}:{queue_id}, which ends at {end}"
            if committed < end:
                found.append(f"{group} has committed {committed} of {end} in {topic} {name}:{queue_id}")
    return found
