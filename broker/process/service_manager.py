"""Notifications to a service manager such as systemd: starting, ready, alive, status, stopping.

Owns when each of these is said (docs/adr/0022-ready-when-it-serves-or-waits-for-others.md).  *Ready* is said as soon as clients may be sent
here, and at the latest ``PATIENCE_S`` after it listens: what it lacks then is up to other hosts, and no unit here can wait for those.
Until then each beat asks for more time, so that a long recovery is not taken for a failed start.  All beats come from the event loop that
serves: when that hangs they cease, and the manager restarts the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dledger_wire.printable import printable

logger = logging.getLogger(__name__)

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")  # for the process that it started, and no other
EVERY_S = 1.0
PATIENCE_S = 20.0
EXTENSION_S = 60
WATCHDOG_BEATS = 4  # in one period of the watchdog: late ones are no reason to end the process


class NotifySocket:
    """The socket of sd_notify at the address of ``NOTIFY_SOCKET``: a path, or ``@name`` in Linux's abstract namespace.

    It never blocks the event loop: what the manager does not take now is sent again later by the caller.
    """

    def __init__(self, address: str) -> None:
        if address[:1] not in ("/", "@"):
            raise ValueError(f"NOTIFY_SOCKET is {address!r}; expected a path or @NAME")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, **lines: str | int) -> None:
        """Say all ``lines`` at once.  OSError when the manager does not take them; BlockingIOError when it does not at the moment."""
        text = "\n".join(f"{name}={printable(str(value))}" for name, value in lines.items())
        self._socket.sendto(text.encode(), self._address)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


@dataclass(frozen=True, slots=True)
class Notice:
    """How a process fares: whether clients may be sent to it, and a line for people."""

    ready: bool
    text: str


class ServiceManager:
    """Of this process; without ``to`` there is none, and nothing is said."""

    def __init__(self, to: NotifySocket | None = None, watchdog_s: float = 0.0, now_s: Callable[[], float] = time.monotonic) -> None:
        self._to, self._watchdog_s, self._now_s = to, watchdog_s, now_s
        self._every_s = min(EVERY_S, watchdog_s / WATCHDOG_BEATS) if watchdog_s else EVERY_S
        self._ready = self._stopping = self._refused = False
        self._listening_s: float | None = None
        self._alive_s = -float("inf")  # when it was said last
        self._text = ""

    @classmethod
    def of_environment(cls, variables: Mapping[str, str]) -> ServiceManager:
        """The one that started this process, which its environment names."""
        address, period, pid = (variables.get(name, "") for name in VARIABLES)
        if not address:
            return cls()
        watchdog_s = int(period) / 1e6 if period.isdecimal() and pid in ("", str(os.getpid())) else 0.0
        if watchdog_s:
            faulthandler.enable()  # the watchdog's SIGABRT leaves in the log where each thread was
        try:
            return cls(NotifySocket(address), watchdog_s)
        except ValueError as error:
            logger.warning("%s", error, extra={"event": "service_manager_not_notified"})
            return cls()

    @asynccontextmanager
    async def notifying(self, look: Callable[[], Notice]) -> AsyncIterator[None]:
        """Meanwhile, say from this event loop how the process fares."""
        if self._to is None:
            yield
            return

        async def notify() -> None:
            while True:
                self.beat(look)
                await asyncio.sleep(self._every_s)

        notifying = asyncio.create_task(notify(), name="tell the service manager")
        try:
            yield
        finally:
            notifying.cancel()

    def listening(self) -> None:
        """It has recovered and listens."""
        self._listening_s = self._now_s()

    def stopping(self, text: str) -> None:
        """A signal ends the process, which takes its time."""
        self._stopping = True
        self._send(STOPPING=1, STATUS=text)

    def beat(self, look: Callable[[], Notice]) -> None:
        """Say what is new, and that the event loop turns."""
        lines: dict[str, str | int] = {}
        now_s = self._now_s()
        if self._watchdog_s and now_s - self._alive_s >= self._watchdog_s / WATCHDOG_BEATS:
            lines["WATCHDOG"] = 1
        notice = Notice(ready=False, text="") if self._stopping else look()
        becomes_ready = not self._ready and not self._stopping and self._may_be_ready(notice, now_s)
        if becomes_ready:
            lines["READY"] = 1
        elif not self._ready:
            lines["EXTEND_TIMEOUT_USEC"] = EXTENSION_S * 1_000_000
        if notice.text not in ("", self._text):
            lines["STATUS"] = notice.text
        if not lines or not self._send(**lines):
            return
        self._ready = self._ready or becomes_ready
        self._text = notice.text
        if "WATCHDOG" in lines:
            self._alive_s = now_s

    def _may_be_ready(self, notice: Notice, now_s: float) -> bool:
        return self._listening_s is not None and (notice.ready or now_s - self._listening_s >= PATIENCE_S)

    def _send(self, **lines: str | int) -> bool:
        if self._to is None:
            return False
        try:
            self._to.send(**lines)
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._refused:
                self._refused = True
                text = "cannot notify the service manager: %s"
                logger.warning(text, error, extra={"event": "service_manager_not_notified"})
            return False
        return True
