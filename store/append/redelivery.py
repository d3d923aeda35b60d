"""Stored messages go to their real topic later, with a command, in one log entry.

Owns the way from staged frames to new batches.  The real topic and queue come out of the properties.  What belonged to the staging queue is
removed; everything else (body, unique id, keys, birth) stays.

- A message whose topic takes no writes now is staged again behind the others: nothing is lost, and nothing waits for it.
- A message belongs to the topic that existed when it was staged.  A topic created later under that name does not get it.
- Properties that cannot be stored again are stored with ``?`` for what is wrong in them, so that the message is delivered and holds up
  no message behind it.  Only what is sent to wait is checked for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from dledger.runtime.env import Buffer
from dledger_wire.batches.frame_batch import FrameBatch
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES, UNIQUE_ID_SIZE
from dledger_wire.frames.timer import REAL_UNIQUE, TIMER_OUT
from dledger_wire.names import SCHEDULE_TOPIC
from store.append.prepared import PreparedBatches, PreparedCommand
from store.append.staged_check import REAL_QUEUE, REAL_TOPIC
from store.state.topics import Topics

DELAY = "DELAY"
STAGED_POS = "PARKED_POS"  # where in the log a message was staged first, when it was moved since
NO_HOST = "0.0.0.0:0"
MAX_DIGITS = 20
UNIQUE_ID = "UNIQ_KEY"
_PLACE = (REAL_TOPIC, REAL_QUEUE, DELAY, TIMER_OUT, STAGED_POS, REAL_UNIQUE)
_SEPARATOR = "\x01"  # of a name and its value; the other one ends a property, so it is in none
_NOT_UTF8 = "\ufffd"  # what decoding makes of it, which is longer
_MAX_CHAR_BYTES = 4


class AtomicPayload:
    """Batches and a command as one payload: committed together or not at all.

    Not at all also when one of the topics is deleted first: such a deletion may still be refused, and what was passed over then is lost.
    The command's ``result`` says so.
    """

    def __init__(self, batches: PreparedBatches | None, command: PreparedCommand[Any]) -> None:
        self._batches = batches
        self._command = command
        self.size_bytes = command.size_bytes + (batches.size_bytes if batches is not None else 0)

    def seal(self, pos: int, index: int, term: int) -> Sequence[Buffer]:
        buffers: list[Buffer] = []
        refusal = self._command.refusal or (self._batches.refusal if self._batches is not None else None)
        if self._batches is not None and self._batches.size_bytes:
            buffers += self._batches.seal(pos, index, term, refusal=refusal)
            pos += self._batches.size_bytes
        buffers += self._command.seal(pos, index, term, refusal=refusal)
        return buffers


def storable(properties: dict[str, str]) -> dict[str, str]:
    """Properties as they were read, or others with ``?`` for what of them cannot be stored again."""
    text = "".join(properties) + "".join(properties.values())
    size = len(text) * _MAX_CHAR_BYTES + 2 * len(properties)
    if _SEPARATOR in text:
        properties = {name: value.replace(_SEPARATOR, "?") for name, value in properties.items()}
    if size > MAX_PROPERTIES_BYTES and _NOT_UTF8 in text and packed_size(properties) > MAX_PROPERTIES_BYTES:
        properties = {name.replace(_NOT_UTF8, "?"): value.replace(_NOT_UTF8, "?") for name, value in properties.items()}
    return properties


def packed_size(properties: dict[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())


def fitting(properties: dict[str, str]) -> dict[str, str]:
    """Storable properties of a message that goes on waiting; what is beyond the limit is taken from its longest values."""
    properties = storable(properties)
    while (beyond := packed_size(properties) - MAX_PROPERTIES_BYTES) > 0:
        sizes = {name: len(value.encode()) for name, value in properties.items() if name != UNIQUE_ID and name not in _PLACE}
        longest = max(sizes, key=lambda name: sizes[name], default="")
        if not sizes.get(longest):
            break
        properties = {**properties, longest: properties[longest].encode()[:-beyond].decode(errors="ignore")}
    return properties


def storable_frame(frame: Frame) -> Frame:
    """The message itself when its properties can be stored again as they are."""
    properties = storable(frame.properties)
    return frame if properties is frame.properties else replace(frame, properties=properties)


def is_changed(frame: Frame) -> bool:
    """Whether the message's properties are not stored again as they are."""
    return storable(frame.properties) is not frame.properties


def copied(frame: Frame, topic: str, queue_id: int, properties: dict[str, str], reconsume_times: int) -> Frame:
    """The message as it is stored again in another queue.  Position and times are stamped later; everything of its producer stays
    that can be stored."""
    return replace(
        frame,
        topic=topic,
        queue_id=queue_id,
        queue_offset=0,
        physical_offset=0,
        store_timestamp=0,
        store_host=NO_HOST,
        properties=storable(properties),
        reconsume_times=reconsume_times,
    )


def staged(message: Frame, level: int) -> Frame:
    """The message as it waits in the schedule topic for a delay level; ``real_message`` is the inverse."""
    place = {REAL_TOPIC: message.topic, REAL_QUEUE: str(message.queue_id), DELAY: str(level)}
    properties = {name: value for name, value in message.properties.items() if name != STAGED_POS} | place
    return copied(message, SCHEDULE_TOPIC, level - 1, properties, message.reconsume_times)


def staged_pos(frame: Frame) -> int:
    """Where in the log a message was staged first."""
    text = frame.properties.get(STAGED_POS, "")
    return min(int(text), frame.physical_offset) if text.isdecimal() and len(text) < MAX_DIGITS else frame.physical_offset


def moved(frame: Frame, due_ms: int) -> Frame:
    """A message with a delivery time as it is stored again at the log's end."""
    return _with_staged_pos(due_at(frame, due_ms), staged_pos(frame))


def _with_staged_pos(frame: Frame, pos: int) -> Frame:
    """The message as it waits on at the log's end.  Without room for the property it counts as staged there."""
    properties = frame.properties | {STAGED_POS: str(pos)}
    return replace(frame, properties=properties) if packed_size(properties) <= MAX_PROPERTIES_BYTES else frame


def due_at(frame: Frame, due_ms: int) -> Frame:
    """A message as it waits for a delivery time, which is found by where it stands: behind an id of fixed length."""
    unique = frame.properties.get(UNIQUE_ID, "").encode("ascii", "replace").decode().ljust(UNIQUE_ID_SIZE, "?")[:UNIQUE_ID_SIZE]
    first = {UNIQUE_ID: unique, TIMER_OUT: str(due_ms)}
    return replace(frame, queue_id=0, properties=fitting(first | {**frame.properties, **first}))


@dataclass(frozen=True, slots=True)
class Routed:
    """Where staged messages go: ``messages`` to their topics, ``restaged`` back to the staging queue.

    ``dropped``: offsets in the staging queue of messages whose topic does not exist any more; ``changed``: of those that go on with other
    properties, because theirs cannot be stored again.
    """

    messages: list[Frame]
    restaged: list[Frame]
    dropped: list[int]
    changed: list[int]


def route(topics: Topics, waiting: Sequence[Frame]) -> Routed:
    routed = Routed([], [], [], [])
    for frame in waiting:
        message = real_message(frame)
        topic = topics.get(message.topic) if message is not None else None
        if message is None or topic is None or staged_pos(frame) < topic.created_pos:
            routed.dropped.append(frame.queue_offset)
            continue
        if is_changed(frame):
            routed.changed.append(frame.queue_offset)
        if not topic.takes_what_waited:
            again = replace(frame, properties=fitting(frame.properties))
            routed.restaged.append(_with_staged_pos(again, staged_pos(frame)))
        else:
            # The topic may have fewer queues by now.
            routed.messages.append(replace(message, queue_id=message.queue_id % topic.write_queues))
    return routed


def real_message(frame: Frame) -> Frame | None:
    """The message for its real topic; None when its properties do not name one."""
    topic, queue = frame.properties.get(REAL_TOPIC, ""), frame.properties.get(REAL_QUEUE, "")
    if not topic or not queue.isdecimal() or len(queue) >= MAX_DIGITS:
        return None
    properties = {name: value for name, value in frame.properties.items() if name not in _PLACE}
    if REAL_UNIQUE in frame.properties:
        properties[UNIQUE_ID] = frame.properties[REAL_UNIQUE]
    return copied(frame, topic, int(queue), properties, frame.reconsume_times)


def batches_of(messages: Sequence[Frame]) -> bytes:
    """Batch records of messages for any queues, in order within each queue."""
    ordered = sorted(messages, key=lambda message: (message.topic, message.queue_id))
    groups = groupby(ordered, key=lambda message: (message.topic, message.queue_id, len(message.born_host) > len("255.255.255.255:65535")))
    return b"".join(_batch(topic, queue_id, group) for (topic, queue_id, _), group in groups)


def _batch(topic: str, queue_id: int, messages: Iterable[Frame]) -> bytes:
    batch = FrameBatch(topic, queue_id)
    for message in messages:
        batch.add(encode_frame(message), message.properties)
    return b"".join(batch.parts())
