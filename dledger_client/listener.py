"""What a push consumer's listener is given and what it may answer.

Owns the reading of answers: only a clear COMMIT counts as consumed; RECONSUME_LATER, SUSPEND, None, anything unknown and any exception mean
that the messages come again.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dledger_client.received import ReceivedMessage

_logger = logging.getLogger(__name__)


class Action(Enum):
    """What became of messages.  SUSPEND is the orderly listener's word for RECONSUME_LATER; both mean the same."""

    COMMIT = "commit"
    RECONSUME_LATER = "reconsume later"
    SUSPEND = "suspend"


@dataclass(slots=True)
class ConsumeContext:
    """Where the messages come from, and what the listener may wish.

    ``epoch`` (orderly): grows with every owner of the queue, so that a system the listener writes to can refuse an older owner.
    ``attempts``: how often these messages were given to a listener here before.  To be set by the listener: ``ack_index``, the last message
    that is consumed when COMMIT is returned (default: all); ``delay_level`` of those that come again (0: by attempts, -1: dead letters at
    once); ``suspend_ms`` before an orderly queue goes on.
    """

    topic: str
    group: str
    queue_id: int
    epoch: int = 0
    attempts: int = 0
    ack_index: int = -1
    delay_level: int = 0
    suspend_ms: int = 0


Listener = Callable[[list[ReceivedMessage], ConsumeContext], Any]


def consumed_count(answer: object, messages: list[ReceivedMessage], context: ConsumeContext) -> int:
    """How many of the messages, from the first on, are consumed."""
    if answer is Action.COMMIT:
        return len(messages) if context.ack_index < 0 else min(len(messages), context.ack_index + 1)
    if answer is not None and not isinstance(answer, Action):
        _logger.warning("a listener answered %r; expected Action.COMMIT or Action.RECONSUME_LATER: the messages come again", answer)
    return 0


def call(listener: Listener, messages: list[ReceivedMessage], context: ConsumeContext) -> int:
    """Give messages to a listener in the calling thread; how many it consumed."""
    try:
        return consumed_count(listener(messages, context), messages, context)
    except (Exception, SystemExit):
        _logger.exception("a listener failed on %s/%d at %d", context.topic, context.queue_id, messages[0].queue_offset)
        return 0


async def call_async(listener: Listener, messages: list[ReceivedMessage], context: ConsumeContext) -> int:
    """The same on the event loop, for listeners that may be coroutines."""
    try:
        answer = listener(messages, context)
        if inspect.isawaitable(answer):
            waiting: Awaitable[Any] = answer
            answer = await waiting
        return consumed_count(answer, messages, context)
    except Exception:
        _logger.exception("a listener failed on %s/%d at %d", context.topic, context.queue_id, messages[0].queue_offset)
        return 0
