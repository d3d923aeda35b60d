"""Signals that end a command which has to clean up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, end the block as Ctrl-C does.  ``nohup`` is respected."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
