"""Queue selectors like RocketMQ's, for the ``queue_key`` of a send."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dledger_wire.clock import Random, system_random
from dledger_wire.java_hash import cached_java_hash

# How many queues the topic has -> the index of the one to take.
QueueSelector: TypeAlias = Callable[[int], int]


def by_hash(argument: object) -> QueueSelector:
    """A queue selector like RocketMQ's SelectMessageQueueByHash: equal arguments choose equal queues.

    Args:
        argument: What is hashed, as text.

    Returns:
        A selector for the ``queue_key`` of a send.

    Examples:
        >>> result = producer.send(Message("orders", b"one"), by_hash("customer-7"))
    """
    digest = abs(cached_java_hash(str(argument)))
    return lambda count: digest % count


def by_random(random: Random | None = None) -> QueueSelector:
    """A queue selector like RocketMQ's SelectMessageQueueByRandom: any queue.

    Args:
        random: Source of randomness. Default: the system's.

    Returns:
        A selector for the ``queue_key`` of a send.

    Examples:
        >>> result = producer.send(Message("orders", b"one"), by_random())
    """
    source = random if random is not None else system_random()
    return lambda count: source.randrange(0, count)
