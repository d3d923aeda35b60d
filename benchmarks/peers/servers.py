"""What the three nodes of every system have in common: processes that are started, looked at, killed and ended by their ids."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from benchmarks.processes import cpu_s

START_LIMIT_S = 90.0


class Servers(Protocol):
    """A running system of three nodes."""

    @property
    def bootstrap(self) -> str:
        """Addresses for clients."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def cpu_s(self) -> float:
        """Processor seconds of all nodes so far."""

    def kill_leader(self, named: str) -> tuple[str, float]:
        """kill -9 the node that the client named as leader; returns when it is gone, with the node's name and the moment of the kill."""

    def start_again(self, node: str) -> None: ...


class Processes:
    """One process for each node, all with a port that they listen on."""

    def __init__(
        self, commands: Mapping[str, list[str]], addresses: Mapping[str, str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._commands, self._addresses, self._folder = commands, addresses, folder
        self._environment = os.environ | environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.bootstrap = ",".join(addresses.values())

    def __enter__(self) -> Self:
        try:
            for node in self._commands:
                self._start(node)
            for node in self._commands:
                self._wait(node)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _start(self, node: str) -> None:
        with open(self._folder / f"{node}.log", "ab") as log:
            self._running[node] = subprocess.Popen(self._commands[node], stdout=log, stderr=log, env=self._environment)

    def _wait(self, node: str) -> None:
        host, _, port = self._addresses[node].rpartition(":")
        until = time.monotonic() + START_LIMIT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return
            if self._running[node].poll() is not None or time.monotonic() > until:
                words = (self._folder / f"{node}.log").read_text(errors="replace").strip().splitlines()[-1:]
                raise RuntimeError(f"{node} does not listen on {host}:{port}: {' '.join(words)}")
            time.sleep(0.1)

    def cpu_s(self) -> float:
        return cpu_s(process.pid for process in self._running.values())

    def kill_leader(self, named: str) -> tuple[str, float]:
        process, since = self._running.pop(named), time.monotonic()
        process.kill()
        process.wait()
        return named, since

    def start_again(self, node: str) -> None:
        self._start(node)
        self._wait(node)

    def _end(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()
