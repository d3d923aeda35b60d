"""Network partitions between the nodes of a private cluster, without changing the machine's network.

Every ordered pair of nodes has a loopback address of its own (127.1.FROM.TO) where node FROM dials node TO; what arrives there is
carried to TO's real port.  A cut cable drops nothing and reports nothing: connections stay open, and bytes wait until it is restored.
Clients use the real addresses.  Used by ``dledger bench failover --fault partition`` and the cluster tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Mapping
from typing import Any

PIECE_BYTES = 256 << 10


class _Cable:
    """One direction of dialling: ``flows`` is set while it carries."""

    def __init__(self, ip: str, target_host: str) -> None:
        self.ip, self.target_host = ip, target_host
        self.flows = asyncio.Event()
        self.flows.set()
        self.servers: dict[int, asyncio.Server] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> None:
        if port in self.servers:
            return

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._carry(reader, writer, port)

        self.servers[port] = await asyncio.start_server(carry, self.ip, port)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        await self.flows.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(self.target_host, port)
        except OSError:
            writer.close()
            return
        try:
            both = [asyncio.ensure_future(self._pump(reader, far_writer)), asyncio.ensure_future(self._pump(far_reader, writer))]
            _, pending = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for pump in pending:
                pump.cancel()
        finally:
            writer.close()
            far_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                await self.flows.wait()
                writer.write(data)
                await writer.drain()
        await self.flows.wait()  # a cut cable does not carry the end of a connection either

    async def close(self) -> None:
        for server in self.servers.values():
            server.close()
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


class Wires:
    """The cables between the nodes ``addresses`` names (id -> real address)."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = dict(addresses)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        numbers = {node_id: number for number, node_id in enumerate(addresses, 1)}
        self._cables = {
            (one, other): self._do(_made(f"127.1.{numbers[one]}.{numbers[other]}", addresses[other].rpartition(":")[0]))
            for one in addresses
            for other in addresses
            if one != other
        }
        for (_, other), cable in self._cables.items():
            self._do(cable.listen(int(addresses[other].rpartition(":")[2])))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def address(self, one: str, other: str) -> str:
        """Where ``one`` dials ``other``."""
        return f"{self._cables[one, other].ip}:{self._addresses[other].rpartition(':')[2]}"

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        """``one`` reaches ``other`` no more (and the other way round)."""
        for cable in self._between(one, other, both_ways=both_ways):
            self._loop.call_soon_threadsafe(cable.flows.clear)

    def mend(self, one: str, other: str, *, both_ways: bool = True) -> None:
        for cable in self._between(one, other, both_ways=both_ways):
            self._loop.call_soon_threadsafe(cable.flows.set)

    def isolate(self, node_id: str) -> None:
        """The node reaches no other node, and none reaches it."""
        for other in self._others(node_id):
            self.cut(node_id, other)

    def mend_all(self) -> None:
        for cable in self._cables.values():
            self._loop.call_soon_threadsafe(cable.flows.set)

    def _others(self, node_id: str) -> Iterable[str]:
        return [other for other in self._addresses if other != node_id]

    def _between(self, one: str, other: str, *, both_ways: bool) -> list[_Cable]:
        return [self._cables[pair] for pair in [(one, other), (other, one)][: 1 + both_ways]]

    def close(self) -> None:
        for cable in self._cables.values():
            self._do(cable.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _made(ip: str, target_host: str) -> _Cable:
    return _Cable(ip, target_host)
