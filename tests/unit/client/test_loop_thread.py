"""The event loop of the synchronous clients when its process ends, and when it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger_client.runtime.loop_thread import LoopThread
from dledger_client.sync.base import SyncHandle

ROOT = Path(__file__).resolve().parents[3]
UNSEEN_S = 5.0

PROGRAM = """
import asyncio, atexit

def last():  # registered before the import, so it runs behind everything of the clients
    thread = LoopThread._shared
    assert thread is not None and thread._parked.is_set(), "the loop still runs"
    beats = len(seen)
    assert beats, "the loop never ran"
    try:
        thread.call(lambda: None)
    except RuntimeError as error:
        print(error)

atexit.register(last)
seen = []
from dledger_client.runtime.loop_thread import LoopThread

async def beat():
    while True:
        seen.append(1)
        await asyncio.sleep(0.001)

async def begin():
    asyncio.get_running_loop().create_task(beat(), name="beat")
    await asyncio.sleep(0.01)

def early():  # a handler that an application registers after its first client: clients can be used in it
    print(LoopThread.shared().call(lambda: "still there"))

LoopThread.shared().run(begin())
atexit.register(early)
"""


def test_the_loop_stands_still_before_the_interpreter_goes() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["still there", "the process is ending: clients can no longer be used"]


INTERRUPTED = """
import os, signal, threading, time
from dledger_client.runtime import loop_thread

make = loop_thread.new_event_loop

def interrupted():
    loop = make()
    print(threading.current_thread().name)
    os.kill(os.getpid(), signal.SIGINT)
    return loop

signal.signal(signal.SIGINT, signal.default_int_handler)
loop_thread.new_event_loop = interrupted
try:
    loop_thread.LoopThread.shared()
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_does_not_come_while_the_loop_is_made() -> None:
    """In the middle of it uvloop wrote to stderr: deallocating an open event loop."""
    done = subprocess.run([sys.executable, "-u", "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, ["dledger-client", "interrupted"], "")


class Handle(SyncHandle[Any]):
    def __init__(self) -> None:
        self._thread = LoopThread.shared()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whatever started the tests: in the background of a shell they would ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_a_piece_is_read_comes_out_as_such() -> None:
    """The generator needs some moments to end then, and was closed in them: RuntimeError took the place of KeyboardInterrupt."""
    ended: list[bool] = []

    async def pieces() -> AsyncGenerator[int]:
        try:
            yield 1
            while True:  # Python does not see a signal that comes just before a thread begins to wait for a lock, until the next one
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(UNSEEN_S):
                        await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            ended.append(True)

    found = Handle()._iterate(pieces())
    assert next(found) == 1
    with pytest.raises(KeyboardInterrupt):
        next(found)
    assert ended == [True]
