"""Where clients call the application's own code: listeners, selectors, strategies, callbacks.

Owns the rule what of it is caught: whatever such code raises is a failure of that one call, and never ends a task or a thread of the
client.  A CancelledError counts too (a listener that waited for a cancelled task raises it), unless it is the client's own task that is
being cancelled.
"""

from __future__ import annotations

import asyncio

FAULTS = (Exception, asyncio.CancelledError, SystemExit)


def is_own_end(error: BaseException) -> bool:
    """Whether ``error``, one of FAULTS, is the running task's own cancellation, which is to go on."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
