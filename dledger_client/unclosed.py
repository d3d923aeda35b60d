"""Clients that were not closed: a warning, and a flush of synchronous producers when the process ends.

Owns that flush.  The event loop of synchronous producers runs in a daemon thread, which stops without notice, so everything they hold is
flushed before, for at most each producer's send timeout; one log line counts what could not be stored.  It runs twice: before thread pools
end (a new connection may need one to resolve a name), and after all threads of the application, which may send until then.  Ending
a wait with Ctrl-C, also that of a close, adds no second wait.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import warnings
import weakref

from dledger_client.producer.core import ProducerCore
from dledger_client.producer.delivery_report import DeliveryReport
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.forked import run_in_children

GRACE_S = 1.0  # beyond the send timeout: the producers give up by themselves

_producers: weakref.WeakSet[ProducerCore] = weakref.WeakSet()
_broken_off: weakref.WeakSet[ProducerCore] = weakref.WeakSet()  # no caller waits for what these hold
_registered: list[int] = []
_logger = logging.getLogger(__name__)


def watch(producer: ProducerCore) -> None:
    """Flush a synchronous producer when the process ends, unless it is closed before."""
    _producers.add(producer)
    run_in_children(_forget_inherited)
    if not _registered:  # late, so that it runs before what the network registered for itself
        _registered.append(1)
        atexit.register(_at_exit)
        before_pools_end = getattr(threading, "_register_atexit", None)
        if before_pools_end is not None:
            with contextlib.suppress(RuntimeError):  # it is too late for that
                before_pools_end(_flush_open)


def break_off(producer: ProducerCore) -> None:
    """The wait for a close was interrupted: the end of the process does not wait for it either."""
    _broken_off.add(producer)


def warn(owner: object, more: str = "") -> None:
    """The ResourceWarning of a client that was not closed (python -X dev shows it)."""
    warnings.warn(f"unclosed {owner!r}{more}; close it, or use it in a with block", ResourceWarning, stacklevel=3, source=owner)


def _at_exit() -> None:
    producers = _flush_open()
    if producers:
        groups = ", ".join(sorted({repr(producer.options.group) for producer in producers}))
        text = f"{len(producers)} unclosed dledger producers (group {groups}) were flushed at the end of the process; close them"
        warnings.warn(text, ResourceWarning, stacklevel=1)
    for producer in producers:
        producer.disown()


def _flush_open() -> list[ProducerCore]:
    """Flush open producers; one log line for what was not stored.  Returns the producers."""
    producers = [producer for producer in _producers if not producer.closed]
    if not producers:
        return []
    limit_s = max(producer.options.send_timeout_ms for producer in producers) / 1000 + GRACE_S
    held: list[tuple[DeliveryReport, int]] = []
    try:
        LoopThread.shared().run(_drain(producers, held), limit_s)
    except KeyboardInterrupt:  # one is enough: the second flush does not wait either
        for producer in producers:
            break_off(producer)
    except (TimeoutError, RuntimeError) as error:
        _logger.debug("the flush at the end of the process was cut short: %r", error)
    left = [producer for producer in producers if producer in _broken_off]
    lost, why = _not_stored(held, "the wait was broken off" if left else "no answer in time")
    if lost:
        _logger.error("%d messages of producers that were not closed were not stored before the process ended: %s", lost, why)
    for producer in left:
        _producers.discard(producer)
        producer.disown()
    return producers


async def _drain(producers: list[ProducerCore], held: list[tuple[DeliveryReport, int]]) -> None:
    held += [each for producer in producers for each in producer.held()]
    await asyncio.gather(*[producer.flush() for producer in producers if producer not in _broken_off])


def _not_stored(held: list[tuple[DeliveryReport, int]], why_open: str) -> tuple[int, str]:
    """How many of these messages are not known to be stored, and why the first is not.  ``why_open``: of those without a result."""
    lost, why = 0, ""
    for report, count in held:
        errors = [report.error_of(number) for number in range(count)] if report.settled else [TimeoutError(why_open)] * count
        failed = [error for error in errors if error is not None]
        lost, why = lost + len(failed), why or (str(failed[0]) if failed else "")
    return lost, why


def _forget_inherited() -> None:
    """In a forked child: the parent sends what its producers hold; the child's copies take nothing."""
    for producer in list(_producers):
        producer.disown()
