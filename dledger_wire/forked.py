"""What a forked child does with the handles of its parent's event loop and connections.

Owns the replacement: the child lets go of them, so that a connection ends when the parent closes it, but their numbers stay taken, so that
nothing the parent's objects still do in the child (at its exit, say) hits a file or socket of the child's own.
"""

from __future__ import annotations

import contextlib
import os


def close_in_child(handle: int) -> None:
    """Let go of an inherited handle."""
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, handle, inheritable=False)
        os.close(nothing)
