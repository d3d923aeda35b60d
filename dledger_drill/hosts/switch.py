"""An Ethernet switch between machines, as a process of its own: ``python -I -S switch.py FD``, where FD is a Unix socket to its owner.

Owns the frames: it reads them from TAP devices, one a machine, and writes each to the device that it is addressed to; what a link between
two machines does to them (nothing, unless set) is decided for each direction by itself.  Frames are as large as the kernel makes
them (up to 64 KiB, not cut into segments), so that few of them carry much.  The devices vanish with this process.

For speed and for a quick start it uses nothing but the standard library.  The owner sends one JSON object a packet and gets one back:
``add`` (with the device's descriptor), ``shape``, ``restore``, ``heal``, ``struck``.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import random
import select
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

FRAME_BYTES = 10 + 14 + 65536  # what the kernel says of a segment's checksum and cuts (struct virtio_net_hdr), Ethernet header, packet
PACKET_BYTES = 65536  # of the owner's commands
_BATCH = 32  # frames of a device before the others have their turn
_TARGET_KIND, _TARGET_NUMBER = 10, 15  # first and last byte of the address a frame goes to, see devices.hardware_address
_OURS = 0x02
_HELD_BACK_S = 0.02  # how much later a reordered frame comes than those behind it
_NICENESS = -10
_QUEUE_S, _QUEUE_BYTES = 0.25, 128 << 10  # a link of limited rate drops what would wait longer, and more than this


@dataclass(slots=True)
class Link:
    """One direction between two machines."""

    cut: bool = False
    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float | None = None
    free_at: float = 0.0  # when all that was sent before has gone through at the limited rate
    last_at: float = 0.0  # when the last frame arrives that came in its turn

    def arrival(self, now: float, size: int) -> float | None:
        """When a frame that is sent now arrives; None: never."""
        if self.cut or (self.loss and random.random() < self.loss):
            return None
        sent = now
        if self.bytes_per_s is not None:
            waits = max(self.free_at - now, 0.0)
            if waits > max(_QUEUE_S, _QUEUE_BYTES / self.bytes_per_s):
                return None
            self.free_at = sent = now + waits + size / self.bytes_per_s
        arrives = sent + self.delay_s + (random.uniform(-self.jitter_s, self.jitter_s) if self.jitter_s else 0.0)
        if self.reorder and random.random() < self.reorder:
            return arrives + _HELD_BACK_S
        self.last_at = max(self.last_at, arrives)
        return self.last_at


class Switch:
    """Forwards until the owner's end of ``control`` is closed."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)
        self._devices: dict[int, int] = {}  # number of a machine -> descriptor of its device
        self._numbers: dict[int, int] = {}  # the reverse
        self._links: dict[tuple[int, int], Link] = {}  # those that do not simply carry
        self._struck: dict[tuple[int, int], int] = {}  # frames that they dropped or held back so far
        self._waiting: list[tuple[float, int, Link, int, bytes]] = []  # by time of arrival: order, link, target, frame
        self._order = itertools.count()
        self._frame = memoryview(bytearray(FRAME_BYTES))

    def run(self) -> None:
        control = self._control.fileno()
        while True:
            for fd, _ in self._poll.poll(self._until_next()):
                if fd != control:
                    self._forward(fd)
                elif not self._obey():
                    return
            if self._waiting:
                self._deliver(time.monotonic())

    def _until_next(self) -> float | None:
        return max(self._waiting[0][0] - time.monotonic(), 0.0) if self._waiting else None

    def _forward(self, source_fd: int) -> None:
        frame, devices, links = self._frame, self._devices, self._links
        source = self._numbers[source_fd]
        buffers = [frame]
        for _ in range(_BATCH):
            try:
                size = os.readv(source_fd, buffers)
            except OSError:  # nothing more, or a device that is not up
                return
            target = frame[_TARGET_NUMBER]
            if frame[_TARGET_KIND] != _OURS or target not in devices:
                continue  # the machines know each other's addresses: what is sent to all is of no use
            link = links.get((source, target))
            if link is None:
                self._write(target, frame[:size])
            else:
                self._delay(link, source, target, frame[:size])

    def _delay(self, link: Link, source: int, target: int, frame: memoryview) -> None:
        now = time.monotonic()
        arrives = link.arrival(now, len(frame))
        if arrives is None or arrives > now:
            self._struck[source, target] = self._struck.get((source, target), 0) + 1
        if arrives is not None:
            heapq.heappush(self._waiting, (arrives, next(self._order), link, target, bytes(frame)))

    def _deliver(self, until: float) -> None:
        while self._waiting and self._waiting[0][0] <= until:
            _, _, link, target, frame = heapq.heappop(self._waiting)
            if not link.cut:
                self._write(target, frame)

    def _write(self, target: int, frame: memoryview | bytes) -> None:
        with contextlib.suppress(OSError):  # as on a wire: a frame that the machine has no room for is lost
            os.write(self._devices[target], frame)

    def _obey(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1)
        if not packet:
            return False
        command = json.loads(packet)
        name, answer = command.pop("do"), {}
        if name == "add":
            self._add(command["machine"], descriptors[0])
        elif name == "heal":
            self._heal()
        elif name == "restore":
            # What is on its way comes when it would have, or stays lost if the link was cut.
            self._links.pop((command["source"], command["target"]), None)
        elif name == "struck":
            answer = {"struck": self._struck.get((command["source"], command["target"]), 0)}
        else:
            self._shape(**command)
        self._control.send(json.dumps(answer).encode())  # from here on it is in force
        return True

    def _add(self, machine: int, fd: int) -> None:
        os.set_blocking(fd, False)
        self._devices[machine], self._numbers[fd] = fd, machine
        self._poll.register(fd, select.EPOLLIN)

    def _shape(self, source: int, target: int, **values: Any) -> None:
        """The same ``Link``: what is on its way stays on it, and is lost when it is cut."""
        link = self._links.setdefault((source, target), Link())
        for name, value in values.items():
            setattr(link, name, value)

    def _heal(self) -> None:
        self._deliver(float("inf"))  # before the cuts are taken back: what was on the way when a link was cut stays lost
        self._links.clear()


def take_high_priority() -> None:
    """A switch that waits for a processor would be a slow network without a fault."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)


if __name__ == "__main__":
    take_high_priority()
    Switch(socket.socket(fileno=int(sys.argv[1]))).run()
