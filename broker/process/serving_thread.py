"""A thread that serves from an event loop of its own, so that neither the loop of the process nor that one holds up the other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Protocol

STOP_S = 5.0


class Served(Protocol):
    """Both are called in the thread, on its loop."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class ServingThread:
    """``start`` it once, ``stop`` it once, on the loop of the process."""

    def __init__(self, served: Served, name: str) -> None:
        self._served = served
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._own: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._unwanted = threading.Event()  # stopped before the thread had a loop

    async def start(self) -> None:
        """Return once it serves; raises why it cannot."""
        self._thread.start()
        try:
            await self._started
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Serve no more.  The thread outlives this when it takes longer than ``STOP_S`` to end."""
        self._unwanted.set()
        if self._own is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._own.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join, STOP_S)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except Exception as error:
            if self._own is not None:
                raise
            self._report(error)  # there is no loop: no file can be opened

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._own = asyncio.get_running_loop()
        if self._unwanted.is_set():
            return
        try:
            await self._served.start()
        except Exception as error:  # noqa: BLE001 - raised where ``start`` waits
            self._report(error)
            return
        self._report(None)
        await self._stop.wait()
        await self._served.stop()

    def _report(self, error: Exception | None) -> None:
        """Let ``start`` go on, if it waits still."""
        with contextlib.suppress(RuntimeError):  # the process's loop is closed
            self._started.get_loop().call_soon_threadsafe(self._resolve, error)

    def _resolve(self, error: Exception | None) -> None:
        if self._started.done():
            return
        if error is not None:
            self._started.set_exception(error)
        else:
            self._started.set_result(None)
