"""The offsets of a stream as its checkpoint has them: a JSON object of offsets per topic and queue.

Owns the form, which does not change: a query restarts at what an earlier release wrote.  With many queues it takes long
to make and to read, so a reader remembers what it and Spark exchanged last (``KnownOffsets``).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dledger_wire.errors import InvalidArgumentError
from pyspark_dledger.planning.queue_offsets import Array, Offsets, TopicPart, in_order, no_offsets, same_offsets

FORMAT_VERSION = 1
MAX_QUEUE_ID = 1 << 20  # far beyond what a topic can have
REMEMBERED = 4  # start and end of this micro-batch, the end of all queues, and the end before


class StreamOffsets(NamedTuple):
    """The next offset of each queue, and the epochs of the topics that they belong to."""

    offsets: Offsets
    topic_epochs: Mapping[str, str]


NOWHERE = StreamOffsets({}, {})


def to_json(offsets: Offsets, topic_epochs: Mapping[str, str]) -> dict[str, Any]:
    """The checkpoint's content: version, and per topic its epoch and the next offset of each queue."""
    topics: dict[str, Any] = {name: {"incarnation": incarnation, "queues": {}} for name, incarnation in sorted(topic_epochs.items())}
    for part, some in in_order(offsets):
        returned = zip(_keys(part.group, len(some)), some.tolist(), strict=True)
        queues = topics[part.topic]["queues"]
        queues.update(returned if not len(some) or some.min() >= 0 else ((key, offset) for key, offset in returned if offset >= 0))
    return {"version": FORMAT_VERSION, "topics": topics}


def from_json(stored: Mapping[str, Any]) -> StreamOffsets:
    """What a checkpoint holds.  Raises InvalidArgumentError if it is not one of this source."""
    try:
        if stored["version"] != FORMAT_VERSION:
            raise InvalidArgumentError(f"checkpoint: offsets of format {stored['version']}; expected {FORMAT_VERSION}")
        found, topic_epochs = dict[TopicPart, Array](), dict[str, str]()
        for topic, part in stored["topics"].items():
            topic_epochs[topic] = str(part["incarnation"])
            queues = part["queues"]
            offsets = np.fromiter(queues.values(), np.int64, len(queues))
            if len(offsets) and offsets.min() < 0:
                raise ValueError("an offset below 0")
            for group, places, numbers in _layout(tuple(queues)):
                some = found[TopicPart(topic, group)] = no_offsets(int(numbers.max()) + 1)
                some[numbers] = offsets[places]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise InvalidArgumentError(f"checkpoint: {json.dumps(stored)[:200]} are not offsets of this source") from None
    return StreamOffsets(found, topic_epochs)


@lru_cache(maxsize=1024)
def _keys(group: str, count: int) -> tuple[str, ...]:
    """The keys of the queues of a group."""
    return tuple(f"{group}:{number}" for number in range(count))


@lru_cache(maxsize=1024)
def _layout(keys: tuple[str, ...]) -> list[tuple[str, Array, Array]]:
    """(group, which of the keys are queues of it, numbers of these queues); most topics have the same keys."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    for place, key in enumerate(keys):
        group, _, queue_id = key.rpartition(":")
        number = int(queue_id)
        if not 0 <= number <= MAX_QUEUE_ID:
            raise ValueError(f"no queue has the number {number}")
        places, numbers = found.setdefault(group, ([], []))
        places.append(place)
        numbers.append(number)
    return [(group, np.array(places, np.int64), np.array(numbers, np.int64)) for group, (places, numbers) in found.items()]


class KnownOffsets:
    """What was read or written last, so that the calls of a trigger read and write it once."""

    def __init__(self) -> None:
        self._last: deque[tuple[dict[str, Any], StreamOffsets]] = deque(maxlen=REMEMBERED)

    def read(self, stored: dict[str, Any]) -> StreamOffsets:
        """``from_json``; the same object for equal offsets, while they are remembered."""
        for returned, known in self._last:
            if returned is stored or returned == stored:
                return known
        found = from_json(stored)
        self._last.appendleft((stored, found))
        return found

    def write(self, offsets: Offsets, topic_epochs: Mapping[str, str]) -> dict[str, Any]:
        """``to_json``; the same object for equal offsets, while they are remembered."""
        for returned, known in self._last:
            if known.topic_epochs == topic_epochs and same_offsets(known.offsets, offsets):
                return returned
        made = to_json(offsets, topic_epochs)
        self._last.appendleft((made, StreamOffsets(offsets, topic_epochs)))
        return made
