"""A push consumer's listener: what it receives, and what it may return.

Owns the reading of results, and the log lines of calls that run for long.

Only COMMIT counts as consumed; RECONSUME_LATER, SUSPEND, None, any other value and any exception redeliver
the messages.  Whatever a listener raises, returns, sets in its context or does to its list of messages affects that call alone.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import reprlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dledger_client.consumer.call_notes import CallNote, CallNotes
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.message_fields import MAX_DELAY_LEVEL
from dledger_client.runtime.user_callbacks import FAULTS, is_own_end
from dledger_wire.errors import InvalidArgumentError

MAX_SETTING = (1 << 31) - 1
NO_NOTES = CallNotes()
_FAILED = "listener failed on %s/%d at offset %d"

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


Listener = Callable[[list[ReceivedMessage], ConsumeContext], Any]


def check_listener(listener: Listener, *, on_a_loop: bool = True) -> Listener:
    """``listener``; InvalidArgumentError when it cannot be called as one: its messages would all become dead letters.

    ``on_a_loop``: by the asyncio client, which takes coroutine functions as well.
    """
    if not callable(listener):
        raise InvalidArgumentError(f"listener {listener!r}: expected a function of messages and their context")
    if not on_a_loop and any(map(inspect.iscoroutinefunction, (listener, getattr(listener, "__call__", None)))):  # noqa: B004
        name = getattr(listener, "__qualname__", repr(listener))
        raise InvalidArgumentError(f"listener {name} is a coroutine function; the PushConsumer of dledger_client.aio takes those")
    return listener


class ListenerCalls:
    """Calls of one consumer's listener: each returns how many of its messages, from the first on, are consumed.

    A wrong result is one in every call as a rule: it is logged the first time, the tenth, the hundredth, and so on.
    """

    def __init__(self, listener: Listener, notes: CallNotes = NO_NOTES) -> None:
        self._listener, self._notes = listener, notes
        self._name = getattr(listener, "__qualname__", type(listener).__name__)
        self._mistakes: Counter[str] = Counter()  # by what is wrong
        self.running = RunningCalls()

    def call(self, messages: list[ReceivedMessage], context: ConsumeContext) -> int:
        """In this thread."""
        noting = self._notes.of_call(messages)
        if noting is None:
            return self._call(messages, context, None)
        with noting as note:
            return _noted(self._call(messages, context, note), messages, note)

    def _call(self, messages: list[ReceivedMessage], context: ConsumeContext, note: CallNote | None) -> int:
        number = self.running.begin(context)
        try:
            consumed = self._consumed(self._listener(list(messages), context), messages, context)
        except BaseException as error:  # noqa: BLE001 - a worker thread has no caller to pass it on to
            consumed = _failed(error, messages, context, note)
        finally:
            self.running.end(number)
        self._check_settings(context)
        return consumed

    async def call_async(self, messages: list[ReceivedMessage], context: ConsumeContext) -> int:
        """On the event loop; the listener may be a coroutine function."""
        noting = self._notes.of_call(messages)
        if noting is None:
            return await self._call_async(messages, context, None)
        with noting as note:
            return _noted(await self._call_async(messages, context, note), messages, note)

    async def _call_async(self, messages: list[ReceivedMessage], context: ConsumeContext, note: CallNote | None) -> int:
        number = self.running.begin(context)
        try:
            result = self._listener(list(messages), context)
            if inspect.isawaitable(result):
                waiting: Awaitable[Any] = result
                result = await waiting
            consumed = self._consumed(result, messages, context)
        except FAULTS as error:
            if is_own_end(error):
                raise
            consumed = _failed(error, messages, context, note)
        finally:
            self.running.end(number)
        self._check_settings(context)
        return consumed

    def _consumed(self, result: object, messages: list[ReceivedMessage], context: ConsumeContext) -> int:
        if result is Action.COMMIT:
            if not isinstance(context.ack_index, int):
                raise TypeError(f"ack_index {context.ack_index!r}: expected a number of a message")
            return len(messages) if context.ack_index < 0 else min(len(messages), context.ack_index + 1)
        if not isinstance(result, Action):
            expected = "Action.COMMIT or Action.RECONSUME_LATER: the messages will be redelivered"
            self._mistaken("result", f"returned {reprlib.repr(result)}; expected {expected}", context)
        return 0

    def _check_settings(self, context: ConsumeContext) -> None:
        """Reset settings of the context that are out of range."""
        level, pause = context.delay_level, context.suspend_ms
        if not isinstance(level, int) or not -1 <= level <= MAX_DELAY_LEVEL:
            self._mistaken("level", f"set delay_level {level!r}; expected -1, 0 or a level up to {MAX_DELAY_LEVEL}", context)
            level = 0
        context.delay_level = int(level)
        if not isinstance(pause, int | float) or not 0 <= pause <= MAX_SETTING:
            self._mistaken("pause", f"set suspend_ms {pause!r}; expected milliseconds", context)
            context.suspend_ms = 0

    def _mistaken(self, what: str, text: str, context: ConsumeContext) -> None:
        self._mistakes[what] += 1
        count = self._mistakes[what]
        if str(count).strip("0") == "1":
            again = f" ({count} times so far)" if count > 1 else ""
            _logger.warning("listener %s of topic %s %s%s", self._name, context.topic, text, again)


def _failed(error: BaseException, messages: list[ReceivedMessage], context: ConsumeContext, note: CallNote | None) -> int:
    _logger.error(_FAILED, context.topic, context.queue_id, messages[0].queue_offset, exc_info=error)
    if note is not None:
        note.failed(error)
    return 0


def _noted(consumed: int, messages: list[ReceivedMessage], note: CallNote) -> int:
    if consumed < len(messages):
        note.redelivered(len(messages) - consumed)
    return consumed


LONG_MS = 60_000


class RunningCalls:
    """``begin`` and ``end`` may be called from any thread; ``look`` sees a call from the first look on that finds it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._contexts: dict[int, ConsumeContext] = {}
        self._seen_ms: dict[int, int] = {}
        self._logged_ms: dict[int, int] = {}  # how old a call was when the log said it last

    def begin(self, context: ConsumeContext) -> int:
        number = next(self._numbers)
        self._contexts[number] = context
        return number

    def end(self, number: int) -> None:
        self._contexts.pop(number, None)

    def look(self, now_ms: int, group: str) -> int:
        """How long the oldest call runs, in milliseconds; 0 without one.  Calls of a minute are logged, and again when twice as old."""
        running = dict(self._contexts)
        self._seen_ms = {number: self._seen_ms.get(number, now_ms) for number in running}
        self._logged_ms = {number: logged_ms for number, logged_ms in self._logged_ms.items() if number in running}
        for number, context in running.items():
            age_ms = now_ms - self._seen_ms[number]
            if age_ms >= max(LONG_MS, 2 * self._logged_ms.get(number, 0)):
                self._logged_ms[number] = age_ms
                text = "consumer group %s: a listener call of %s queue %d at %s runs for %d s; its messages are not taken away from it"
                _logger.warning(text, group, context.topic, context.queue_id, context.replica_group, age_ms // 1000)
        return max((now_ms - seen_ms for seen_ms in self._seen_ms.values()), default=0)
