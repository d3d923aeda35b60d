"""Clients that nobody closed: what they hold is sent when the process ends, and it is told that they were left open.

Owns the end of the process for synchronous producers.  Their loop runs in a daemon thread, which just stops there; so before that
everything they hold is flushed, each message for as long as its producer tries it at most, and what could not be stored is counted in one
log line.  It runs twice: before thread pools end (a new connection may need one to look up a name), and behind all threads of the
application, which may have sent until then.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import warnings
import weakref

from dledger_client.producer.accumulator import ProducerEngine
from dledger_client.producer.delivery_report import DeliveryReport
from dledger_client.runtime.loop_thread import LoopThread

GRACE_S = 1.0  # beyond the time that the producers try: they end by themselves

_engines: weakref.WeakSet[ProducerEngine] = weakref.WeakSet()
_registered: list[int] = []
_logger = logging.getLogger(__name__)


def watch(engine: ProducerEngine) -> None:
    """The engine of a synchronous producer: flushed when the process ends, unless it is closed before."""
    _engines.add(engine)
    if not _registered:  # late, so that it runs before what the network registered for itself
        _registered.append(1)
        atexit.register(_at_exit)
        before_pools_end = getattr(threading, "_register_atexit", None)
        if before_pools_end is not None:
            with contextlib.suppress(RuntimeError):  # it is too late for that
                before_pools_end(_flush_open)


def warn(owner: object, more: str = "") -> None:
    """The ResourceWarning of a client that was not closed (python -X dev shows it)."""
    warnings.warn(f"unclosed {owner!r}{more}; close it, or use it in a with block", ResourceWarning, stacklevel=3, source=owner)


def _at_exit() -> None:
    engines = _flush_open()
    if engines:
        groups = ", ".join(sorted({repr(engine.options.group) for engine in engines}))
        text = f"{len(engines)} unclosed dledger producers (group {groups}) were flushed at the end of the process; close them"
        warnings.warn(text, ResourceWarning, stacklevel=1)
    for engine in engines:
        engine.closed = True


def _flush_open() -> list[ProducerEngine]:
    """Send what open producers hold; one log line for what was not stored.  Returns the producers."""
    engines = [engine for engine in _engines if not engine.closed]
    if not engines:
        return []
    limit_s = max(engine.options.send_timeout_ms for engine in engines) / 1000 + GRACE_S
    held: list[tuple[DeliveryReport, int]] = []
    try:
        LoopThread.shared().run(_drain(engines, held), limit_s)
    except (TimeoutError, KeyboardInterrupt, RuntimeError) as error:
        _logger.debug("the flush at the end of the process was cut short: %r", error)
    lost, why = _not_stored(held)
    if lost:
        _logger.error("%d messages of producers that were not closed were not stored before the process ended: %s", lost, why)
    return engines


async def _drain(engines: list[ProducerEngine], held: list[tuple[DeliveryReport, int]]) -> None:
    held += [each for engine in engines for each in engine.held()]
    await asyncio.gather(*[engine.flush() for engine in engines])


def _not_stored(held: list[tuple[DeliveryReport, int]]) -> tuple[int, str]:
    """How many of these messages are not known to be stored, and why the first is not."""
    lost, why = 0, ""
    for outcome, count in held:
        errors = [outcome.error_of(number) for number in range(count)] if outcome.settled else [TimeoutError("no answer in time")] * count
        failed = [error for error in errors if error is not None]
        lost, why = lost + len(failed), why or (str(failed[0]) if failed else "")
    return lost, why


def forget_inherited() -> None:
    """In a forked child: what the parent still sends is the parent's; here nobody would."""
    for engine in list(_engines):
        engine.forked()
