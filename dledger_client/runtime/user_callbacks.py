"""Where clients call the application's own code: listeners, selectors, strategies, callbacks.

Owns the rule what of it is caught: whatever such code raises is a failure of that one call, and never ends a task or a thread of the
client.  A CancelledError counts too (a listener that waited for a cancelled task raises it), unless it is the client's own task that is
being cancelled.
"""

from __future__ import annotations

import asyncio
import threading

FAULTS = (Exception, asyncio.CancelledError, SystemExit)


def faults() -> tuple[type[BaseException], ...]:
    """FAULTS, and KeyboardInterrupt in other threads than the main one: Ctrl-C does not arrive there, so it is the code's own."""
    return FAULTS if threading.current_thread() is threading.main_thread() else (*FAULTS, KeyboardInterrupt)


def is_own_end(error: BaseException) -> bool:
    """Whether ``error``, one of FAULTS, is the running task's own cancellation, which is to go on."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
