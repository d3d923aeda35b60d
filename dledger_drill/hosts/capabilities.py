"""What this machine lets a drill do, found by doing each once."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from dledger_drill.hosts import loop_disk, preload
from dledger_drill.hosts.network import Network
from dledger_drill.hosts.processes import MachineProcess
from dledger_drill.plan.model import Need
from dledger_wire.errors import DledgerError

_PORT = 5000
_TRY_LIMIT_S = 30.0
_GREETING = b"drill"
# Runs on the other machine: it answers the first datagram, so one came through in both directions.
_ANSWER = f"""
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    end.bind((sys.argv[1], {_PORT}))
    end.sendto(*end.recvfrom(100))
"""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``why_not``: what is not possible, and why."""

    why_not: Mapping[Need, str] = field(default_factory=dict)

    @property
    def network(self) -> bool:
        return Need.NAMESPACES not in self.why_not

    @property
    def loop_disks(self) -> bool:
        return Need.LOOP_DISKS not in self.why_not

    @property
    def shim(self) -> bool:
        return Need.PRELOAD not in self.why_not


@cache
def probe() -> Capabilities:
    """For the main thread, before the first process is started: loop disks give this process its own mounts."""
    tried: dict[Need, Callable[[], str]] = {
        Need.LOOP_DISKS: loop_disk.missing,
        Need.PRELOAD: preload.missing,
        Need.NAMESPACES: _missing_network,
    }
    found = {need: _reason(missing) for need, missing in tried.items()}
    return Capabilities({need: reason for need, reason in found.items() if reason})


def _reason(missing: Callable[[], str]) -> str:
    try:
        return missing()
    except (DledgerError, OSError, subprocess.SubprocessError) as error:
        return f"it was tried: {error}"


def _missing_network() -> str:
    """Carry a datagram to a second machine and back."""
    try:
        with Network() as network, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            ip = network.add("tried")
            process = MachineProcess([sys.executable, "-I", "-S", "-c", _ANSWER, ip], namespace=network.namespace("tried"))
            try:
                return "" if _is_answered(end, ip) else "the private network carries nothing"
            finally:
                process.kill()
    except DledgerError as error:
        return str(error)


def _is_answered(end: socket.socket, ip: str) -> bool:
    """Ask until the other side listens: before that, datagrams come to nothing."""
    pause_s, asked = 0.05, 0
    while asked * pause_s < _TRY_LIMIT_S:
        end.sendto(_GREETING, (ip, _PORT))
        asked += 1
        if select.select([end], [], [], pause_s)[0]:
            return end.recv(100) == _GREETING
    return False
