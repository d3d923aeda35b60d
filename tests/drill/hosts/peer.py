"""A process on a machine of a private network that sends numbered datagrams and tells what it was sent, with the time each took.

Run as a program it is that process (standard library only); ``Peer`` is the test's end of it.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from typing import Any

PORT = 7000
BUFFER_BYTES = 16 << 20
PACKET_BYTES = 4 << 20
_SO_RCVBUFFORCE = 33


def serve(control: socket.socket, ip: str) -> None:
    received: list[tuple[int, float]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
        end.bind((ip, PORT))
        while True:
            ready = select.select([end, control], [], [])[0]
            if end in ready:
                number, sent = end.recv(PACKET_BYTES).split()[:2]
                received.append((int(number), time.monotonic() - float(sent)))
                continue  # what has arrived is counted before a question is answered
            packet = control.recv(PACKET_BYTES)
            if not packet:
                return
            order = json.loads(packet)
            for number in order.get("numbers", []):
                text = b"%d %.6f " % (number, time.monotonic())
                end.sendto(text.ljust(order["size"], b"x"), (order["ip"], PORT))
                time.sleep(order["pause_s"])
            control.send(json.dumps(received).encode())


class Peer:
    """On the machine ``name`` of ``network``."""

    def __init__(self, network: Any, name: str) -> None:
        from dledger_drill.hosts.processes import MachineProcess  # the program itself has no such module

        self.ip = network.add(name)
        self._ends = 0
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._control, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        with theirs:
            command = [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), self.ip]
            self.process = MachineProcess(command, namespace=network.namespace(name), pass_fds=[theirs.fileno()])
        self.received()  # it listens

    def send(self, other: Peer, numbers: list[int], *, size: int = 100, pause_s: float = 0.0) -> None:
        self._ask({"numbers": numbers, "ip": other.ip, "size": size, "pause_s": pause_s})

    def next_end(self) -> int:
        """The number of a datagram that says that nothing comes after it: below 0, and never the same twice."""
        self._ends += 1
        return -self._ends

    def received(self) -> list[tuple[int, float]]:
        """Number and seconds of each datagram so far, in the order of their arrival."""
        return [(number, seconds) for number, seconds in self._ask({})]

    def _ask(self, order: dict[str, Any]) -> Any:
        self._control.send(json.dumps(order).encode())
        return json.loads(self._control.recv(PACKET_BYTES))

    def close(self) -> None:
        self._control.close()
        self.process.kill()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
