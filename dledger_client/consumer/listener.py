"""What a push consumer's listener is given and what it may answer.

Owns the reading of answers: only a clear COMMIT counts as consumed; RECONSUME_LATER, SUSPEND, None, anything unknown and any exception mean
that the messages come again.  Nothing a listener raises, answers, sets in its context or does to its list of messages reaches further.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dledger_client.deprecation import RenamedAttribute
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.runtime.user_callbacks import FAULTS, is_own_end

MOST_WISHED = (1 << 31) - 1
_FAILED = "a listener failed on %s/%d at %d"

_logger = logging.getLogger(__name__)


class Action(Enum):
    """What a listener returns. RECONSUME_LATER and SUSPEND mean the same; SUSPEND is the usual word in orderly listeners.

    Attributes:
        COMMIT: The messages are consumed.
        RECONSUME_LATER: Deliver the messages again later.
        SUSPEND: Deliver the messages again later.
    """

    COMMIT = "commit"
    RECONSUME_LATER = "reconsume later"
    SUSPEND = "suspend"


@dataclass(slots=True)
class ConsumeContext:
    """Where the messages of a listener call come from, and what the listener may set.

    Attributes:
        topic: The topic.
        replica_group: The replica group that stores the queue.
        queue_id: The queue.
        epoch: Orderly: grows with every owner of the queue, so that another system can refuse writes of an older owner.
        attempts: How often these messages were given to a listener here before.
        ack_index: Set by the listener: index of the last consumed message when it returns COMMIT; -1: all.
        delay_level: Set by the listener: delay before redelivery; 0: grows with the attempts, -1: dead-letter topic at once.
        suspend_ms: Set by the listener: milliseconds before an orderly queue continues; 0: the consumer's setting.

    Examples:
        >>> def listener(messages, context):
        ...     context.ack_index = len(messages) - 2
        ...     return Action.COMMIT
    """

    topic: str
    replica_group: str
    queue_id: int
    epoch: int = 0
    attempts: int = 0
    ack_index: int = -1
    delay_level: int = 0
    suspend_ms: int = 0
    group = RenamedAttribute("replica_group")


Listener = Callable[[list[ReceivedMessage], ConsumeContext], Any]


def consumed_count(answer: object, messages: list[ReceivedMessage], context: ConsumeContext) -> int:
    """How many of the messages, from the first on, are consumed."""
    if answer is Action.COMMIT:
        if not isinstance(context.ack_index, int):
            raise TypeError(f"ack_index {context.ack_index!r}: expected a number of a message")
        return len(messages) if context.ack_index < 0 else min(len(messages), context.ack_index + 1)
    if answer is not None and not isinstance(answer, Action):
        _logger.warning("a listener answered %r; expected Action.COMMIT or Action.RECONSUME_LATER: the messages come again", answer)
    return 0


def call(listener: Listener, messages: list[ReceivedMessage], context: ConsumeContext) -> int:
    """Give messages to a listener in the calling thread; how many it consumed."""
    try:
        consumed = consumed_count(listener(list(messages), context), messages, context)
    except BaseException:  # in a worker thread nothing of it is meant for anybody else
        _logger.exception(_FAILED, context.topic, context.queue_id, messages[0].queue_offset)
        consumed = 0
    _check_wishes(context)
    return consumed


async def call_async(listener: Listener, messages: list[ReceivedMessage], context: ConsumeContext) -> int:
    """The same on the event loop, for listeners that may be coroutines."""
    try:
        answer = listener(list(messages), context)
        if inspect.isawaitable(answer):
            waiting: Awaitable[Any] = answer
            answer = await waiting
        consumed = consumed_count(answer, messages, context)
    except FAULTS as error:
        if is_own_end(error):
            raise
        _logger.exception(_FAILED, context.topic, context.queue_id, messages[0].queue_offset)
        consumed = 0
    _check_wishes(context)
    return consumed


def _check_wishes(context: ConsumeContext) -> None:
    """A wish that cannot be followed is none."""
    level, pause = context.delay_level, context.suspend_ms
    if not isinstance(level, int) or not -1 <= level <= MOST_WISHED:
        _logger.warning("a listener set delay_level %r; expected -1, 0 or a level", level)
        context.delay_level = 0
    if not isinstance(pause, int | float) or not 0 <= pause <= MOST_WISHED:
        _logger.warning("a listener set suspend_ms %r; expected milliseconds", pause)
        context.suspend_ms = 0
