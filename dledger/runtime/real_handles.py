"""Opening files while the process or the machine is out of file descriptors.

Owns the waiting: descriptors are released when connections close, so "too many open files" is retried, and becomes an error only after a
minute.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

PATIENCE_S = 60.0
PAUSE_S = 0.02
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)

_logger = logging.getLogger(__name__)


def open_handle(path: str, flags: int, mode: int = 0o777) -> int:
    """``os.open``, as soon as there is a handle."""
    return with_handle(lambda: os.open(path, flags, mode))


def with_handle(use: Callable[[], _T]) -> _T:
    """What ``use`` returns, tried again while it fails for want of a handle.  On a thread of the disk's."""
    end_s = time.monotonic() + PATIENCE_S
    logged = False
    while True:
        try:
            return use()
        except OSError as error:
            if error.errno not in _NONE_LEFT or time.monotonic() > end_s:
                raise
            if not logged:
                _logger.warning("out of file descriptors; waiting for one (raise the open files limit)", extra={"event": "no_file_handles"})
                logged = True
            time.sleep(PAUSE_S)
