"""Whether messages that clients send to a parking place say where they belong: delays, timers, half messages of transactions.

Owns the properties that say so, RocketMQ's names, and the check of a batch before it is stored.  What does not say it could only be dropped
later, or would be a transaction that cannot end.  Clients put the place behind all other properties, so a look at the end of a
message's properties is enough for nearly all.

Such a message is stored again later, with properties encoded again from their names and values.  One whose properties would not be the same
then could hold up everything that waits beside it, so it is refused as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from dledger_wire.batches.batch import BatchView
from dledger_wire.errors import CorruptBatchError, InvalidNameError, TopicNotFoundError, TopicPermissionError
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES, UNIQUE_ID_SIZE, decode_properties
from dledger_wire.frames.frames import frame_columns
from dledger_wire.frames.timer import TIMER_OUT
from dledger_wire.names import HALF_TOPIC, MAX_GROUP_CHARS, MAX_TOPIC_CHARS, TIMER_TOPIC, check_group, check_topic, is_system_topic
from dledger_wire.status import Perm

REAL_TOPIC, REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
PREPARED, PRODUCER_GROUP = "TRAN_MSG", "PGROUP"
MAX_QUEUE_DIGITS = 9
_PLACE = rf"{REAL_TOPIC}\x01([^\x01\x02]{{1,{MAX_TOPIC_CHARS}}})\x02{REAL_QUEUE}\x01([0-9]{{1,{MAX_QUEUE_DIGITS}}})\x02?\Z"
_HALF = rf"{PREPARED}\x01true\x02{PRODUCER_GROUP}\x01([^\x01\x02]{{1,{MAX_GROUP_CHARS}}})\x02{_PLACE}"
_AT_THE_END = {False: re.compile(rf"(?:\A|\x02)(){_PLACE}".encode()), True: re.compile(rf"(?:\A|\x02){_HALF}".encode())}
_WELL_FORMED = re.compile(rb"(?:[^\x01\x02]+\x01[^\x01\x02]*\x02)*(?:[^\x01\x02]+\x01[^\x01\x02]*)?")
_TIMED = re.compile(rb"UNIQ_KEY\x01[^\x02\x80-\xff]{%d}\x02%s\x01[0-9]{13}\x02" % (UNIQUE_ID_SIZE, TIMER_OUT.encode()))
_ONCE_IF_TIMED = (b"\x02UNIQ_KEY\x01", b"\x02%s\x01" % TIMER_OUT.encode())
_TAIL_BYTES = MAX_TOPIC_CHARS + MAX_GROUP_CHARS + MAX_QUEUE_DIGITS + 64


def check_staged(
    batch: BatchView, perm_of: Callable[[str], int | None], check_producer_group: Callable[[str], object] = lambda _group: None
) -> None:
    """A batch of a client for a parking place.  CorruptBatchError or TopicNotFoundError that names the first message (``first_bad``) which
    could never be delivered, TopicPermissionError for one whose topic takes none.

    ``perm_of``: the permission of a topic, None without one.  ``check_producer_group`` raises what refuses a transaction of that group.
    """
    columns = frame_columns(np.frombuffer(batch.data, np.uint8), batch.positions)
    of_transaction = batch.topic == HALF_TOPIC
    last: tuple[str, str] | None = None
    at_the_end = _AT_THE_END[of_transaction]
    ends = columns.properties_at + columns.properties_length
    for number, (begin, end) in enumerate(zip(columns.properties_at.tolist(), ends.tolist(), strict=True)):
        properties = bytes(batch.data[begin:end])
        if not _stay_the_same(properties, timed=batch.topic == TIMER_TOPIC):
            raise CorruptBatchError(f"message {number} cannot wait: its properties are not well-formed", first_bad=number)
        found = at_the_end.search(properties, max(0, len(properties) - _TAIL_BYTES))
        if found is not None:
            place = found[2].decode("ascii", "replace"), found[1].decode("ascii", "replace")
        else:
            place = _place_in(decode_properties(properties), of_transaction=of_transaction)
        if place != last:
            _check(place, perm_of, number, of_transaction=of_transaction)
            if of_transaction:
                check_producer_group(place[1])
            last = place


def _stay_the_same(properties: bytes, *, timed: bool) -> bool:
    """Whether properties can be encoded again from their names and values, in the same order."""
    if not _WELL_FORMED.fullmatch(properties) or len(properties) + (not properties.endswith(b"\x02")) > MAX_PROPERTIES_BYTES:
        return False
    if timed and (not _TIMED.match(properties) or properties.count(_ONCE_IF_TIMED[1]) != 1 or _ONCE_IF_TIMED[0] in properties):
        return False
    return properties.isascii() or _is_utf8(properties)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _place_in(properties: dict[str, str], *, of_transaction: bool) -> tuple[str, str]:
    """(topic, producer group) of a message whose properties are in another order; empty: there is none."""
    topic, queue = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE, "")
    is_place = queue.isascii() and queue.isdecimal() and len(queue) <= MAX_QUEUE_DIGITS
    if of_transaction and properties.get(PREPARED) != "true":
        is_place = False
    return (topic if is_place else ""), (properties.get(PRODUCER_GROUP, "") if of_transaction else "")


def _check(place: tuple[str, str], perm_of: Callable[[str], int | None], number: int, *, of_transaction: bool) -> None:
    topic, group = place
    what = f"message {number} cannot wait for its {'transaction' if of_transaction else 'delivery'}"
    try:
        check_topic(topic)
        if of_transaction:
            check_group(group)
    except InvalidNameError as error:
        names = [REAL_TOPIC, REAL_QUEUE, *([PREPARED, PRODUCER_GROUP] if of_transaction else [])]
        text = f"{what}: {error.message} (properties {', '.join(names)} say it)"
        raise CorruptBatchError(text, first_bad=number) from None
    if is_system_topic(topic):
        raise CorruptBatchError(f"{what}: topic {topic} belongs to the system; expected one of users", first_bad=number)
    perm = perm_of(topic)
    if perm is not None and not perm & Perm.WRITE:
        text = f"{what}: topic {topic}: writing is not permitted (perm {perm})"
        raise TopicPermissionError(text, topic=topic, perm=perm, first_bad=number)
    if perm is None:
        raise TopicNotFoundError(f"{what}: topic {topic!r} does not exist", topic=topic, first_bad=number)
