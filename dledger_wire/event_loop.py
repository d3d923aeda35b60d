"""The event loop of every process: uvloop where it is installed, which halves the time per message, asyncio's own elsewhere; its time."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def loop_s() -> float:
    """The time of the running event loop, in seconds; in the simulator it is simulated."""
    return asyncio.get_running_loop().time()
