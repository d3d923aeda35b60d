"""Refuses processes whose threads were replaced by gevent or eventlet.

The synchronous clients hand their work to an event loop in a thread of the operating system.  A green thread in its place never gives way
to the others, so the first call would wait for ever, beyond every deadline.
"""

from __future__ import annotations

import sys

WHY = "clients of dledger need threads of the operating system"
WORKERS = "run workers with threads (gunicorn -k gthread, celery -P threads)"
NEEDED = ("threading", "queue", "select")  # modules that clients and their event loop work with


def check_threads() -> None:
    """RuntimeError when this process has green threads."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and (replaced := [name for name in NEEDED if gevent.is_module_patched(name)]):
        patch = "monkey.patch_all(thread=False, queue=False, select=False)"
        raise RuntimeError(f"gevent has replaced {', '.join(replaced)} in this process; {WHY}: patch with {patch}, or {WORKERS}")
    if eventlet is not None and any(map(eventlet.is_monkey_patched, ("thread", "select"))):
        raise RuntimeError(f"eventlet has replaced threading in this process; {WHY}: leave out eventlet.monkey_patch(), or {WORKERS}")
