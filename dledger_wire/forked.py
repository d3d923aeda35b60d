"""What a forked child does with the handles of its parent's event loop and connections.

Owns the replacement: the child lets go of them, so that a connection ends when the parent closes it, but their numbers stay taken, so that
nothing the parent's objects still do in the child (at its exit, say) hits a file or socket of the child's own.  Modules register what they
do in children when they first hold something that a fork would share, not when they are imported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

_registered: set[Callable[[], None]] = set()


def run_in_children(function: Callable[[], None]) -> None:
    """Run ``function`` in every process that is forked from now on, once, however often it is registered."""
    if function not in _registered:
        _registered.add(function)
        os.register_at_fork(after_in_child=function)


def close_in_child(handle: int) -> None:
    """Let go of an inherited handle."""
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, handle, inheritable=False)
        os.close(nothing)
