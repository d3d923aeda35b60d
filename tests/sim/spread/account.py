"""What must be true of a run over several replica groups: rules over what was sent, what all logs hold, and what consumers committed.

The content is read from the stores of the replicas, by nothing that a client uses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.node import BrokerNode
from dledger_wire.frames.frame import decode_frame, frame_positions

READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredAt:
    """One message of a topic, where it is."""

    replica_group: str
    queue_id: int
    offset: int
    body: bytes


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
            found += [StoredAt(group, queue_id, offset + place, frame.body) for place, frame in enumerate(frames)]
            offset += len(frames)
    return found


def check_once(topic: str, found: Sequence[StoredAt], sent: Collection[bytes], acknowledged: Collection[bytes]) -> None:
    """Over all groups: what was acknowledged is there once, and nothing is there twice that was sent once."""
    counts = Counter(each.body for each in found)
    doubled = [(body, [each for each in found if each.body == body]) for body, count in counts.items() if count > 1]
    assert doubled == [], f"{topic}: stored twice"
    assert set(counts) <= set(sent), f"{topic}: nobody sent this"
    assert set(acknowledged) - set(counts) == set(), f"{topic}: acknowledged and lost"


def check_keys(topic: str, found: Sequence[StoredAt], *, one_queue: bool) -> None:
    """Messages of a key are in the order of sending within their queue; ``one_queue``: all of them are in one, its queues never changed."""
    places: dict[bytes, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        key, _, number = each.body.partition(b":")
        places[key][each.replica_group, each.queue_id].append(int(number))
    for key, queues in places.items():
        assert not one_queue or len(queues) == 1, f"{topic}: messages of {key!r} are in {sorted(queues)}"
        for queue, numbers in queues.items():
            assert numbers == sorted(numbers), f"{topic}: {key!r} out of order in {queue}: {numbers}"


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
