"""Half messages as they are stored, and what becomes of them: the message that consumers see, or the copy for an operator.

Owns the properties of a transaction, RocketMQ's names.  ``dledger_client/producer/half_messages.py`` writes them.
"""

from __future__ import annotations

from dataclasses import replace

from dledger_wire.frames.frame import Frame
from dledger_wire.names import CHECK_MAX_TIME_TOPIC
from dledger_wire.status import TRANSACTION_MASK, SysFlag
from store.append.redelivery import copied, real_message
from store.append.staged_check import PREPARED, PRODUCER_GROUP, REAL_QUEUE, REAL_TOPIC

CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"


def producer_group(half: Frame) -> str:
    return half.properties.get(PRODUCER_GROUP, "")


def transaction_id(half: Frame) -> str:
    return half.properties.get("UNIQ_KEY", "")


def first_check_ms(half: Frame, timeout_ms: int) -> int:
    """When to ask the producer about an open one: after the message's own immunity time, or the broker's timeout."""
    seconds = half.properties.get(IMMUNITY, "")
    return half.store_timestamp + (int(seconds) * 1000 if seconds.isdecimal() and len(seconds) < 10 else timeout_ms)


def published(half: Frame, write_queues: int) -> Frame | None:
    """The message as consumers get it; None when it does not say where it belongs."""
    message = real_message(half)
    if message is None:
        return None
    properties = {name: value for name, value in message.properties.items() if name not in (PREPARED, IMMUNITY)}
    return replace(
        message,
        queue_id=message.queue_id % write_queues,  # the topic may have fewer queues by now
        properties=properties,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT,
        prepared_offset=half.physical_offset,
    )


def given_up(half: Frame, check_times: int) -> Frame:
    """The copy that is put where operators look; it still says where it belongs."""
    properties = half.properties | {CHECK_TIMES: str(check_times)}
    return copied(half, CHECK_MAX_TIME_TOPIC, 0, properties, half.reconsume_times)


__all__ = ["REAL_QUEUE", "REAL_TOPIC", "first_check_ms", "given_up", "producer_group", "published", "transaction_id"]
