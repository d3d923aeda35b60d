"""``Links`` of machine.py through the switch.

Owns the switch's process and the numbers of the machines; what it was asked for is in force when a call returns.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dledger_drill.hosts.machine import Links, LinkShape
from dledger_drill.hosts.processes import MachineProcess
from dledger_drill.hosts.switch import PACKET_BYTES
from dledger_wire.errors import DledgerError, InvalidArgumentError

_SWITCH = str(Path(__file__).with_name("switch.py"))
_ANSWER_LIMIT_S = 60.0


class SwitchLinks(Links):
    """The links between the machines that were added."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_ANSWER_LIMIT_S)
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        with theirs:
            self._process = MachineProcess([sys.executable, "-I", "-S", _SWITCH, str(theirs.fileno())], pass_fds=[theirs.fileno()])

    @property
    def pid(self) -> int:
        """Of the switch."""
        return self._process.pid

    def add(self, name: str, number: int, device: int) -> None:
        """Connect a machine; ``device`` is closed here."""
        try:
            self._tell("add", [device], machine=number)
        finally:
            os.close(device)
        self._numbers[name] = number

    def close(self) -> None:
        """End the switch: all devices are gone with it."""
        self._control.close()
        self._process.wait(_ANSWER_LIMIT_S)

    def shape(self, source: str, target: str, shape: LinkShape) -> None:
        values: dict[str, Any] = {"cut": shape.cut, "loss": shape.loss, "reorder": shape.reorder, "bytes_per_s": shape.bytes_per_s}
        values |= {"delay_s": shape.delay_ms / 1000, "jitter_s": shape.jitter_ms / 1000}
        self._tell("shape", source=self._number(source), target=self._number(target), **values)

    def restore(self, source: str, target: str) -> None:
        self._tell("restore", source=self._number(source), target=self._number(target))

    def struck(self, source: str, target: str) -> int:
        return int(self._tell("struck", source=self._number(source), target=self._number(target))["struck"])

    def heal(self) -> None:
        self._tell("heal")

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            raise InvalidArgumentError(f"no machine {name!r} in this network, which has {', '.join(self._numbers)}")
        return self._numbers[name]

    def _tell(self, command: str, descriptors: Sequence[int] = (), **values: Any) -> dict[str, Any]:
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps({"do": command, **values}).encode()], descriptors)
                answer = self._control.recv(PACKET_BYTES)
            except OSError as error:
                raise DledgerError(f"the switch of the private network does not answer: {error}") from error
            if not answer:
                raise DledgerError("the switch of the private network has ended")
            answered: dict[str, Any] = json.loads(answer)
            return answered
