"""``Links`` between nodes that share one machine's network, without root and without changing that network.

Every ordered pair of nodes has a loopback address of its own (127.1.FROM.TO) where node FROM dials node TO; what arrives there is
carried to TO's real port.  A direction that is cut drops nothing and reports nothing: connections stay open, and bytes wait until it is
healed.  Clients use the real addresses, so they cannot be cut off.  For private clusters without network namespaces, ``dledger bench
failover --fault partition`` and the cluster tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dledger_drill.hosts.machine import Links, LinkShape
from dledger_wire.errors import InvalidArgumentError

PIECE_BYTES = 256 << 10
_CALL_LIMIT_S = 30


class _Flow:
    """One direction, which carries while it is set."""

    def __init__(self) -> None:
        self.carries = asyncio.Event()
        self.carries.set()
        self.struck = 0

    async def wait(self) -> None:
        if not self.carries.is_set():
            self.struck += 1
            await self.carries.wait()


class _Cable:
    """Where one node dials another."""

    def __init__(self, ip: str, target_host: str, there: _Flow, back: _Flow) -> None:
        self.ip, self.target_host = ip, target_host
        self.there, self.back = there, back
        self.server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> None:
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._carry(reader, writer, port)

        self.server = await asyncio.start_server(carry, self.ip, port)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        await self.there.wait()
        await self.back.wait()  # a connection takes both to be made
        try:
            far_reader, far_writer = await asyncio.open_connection(self.target_host, port)
        except OSError:
            writer.close()
            return
        try:
            pumps = [_pump(reader, far_writer, self.there), _pump(far_reader, writer, self.back)]
            _, pending = await asyncio.wait([asyncio.ensure_future(pump) for pump in pumps], return_when=asyncio.FIRST_COMPLETED)
            for pump in pending:
                pump.cancel()
        finally:
            writer.close()
            far_writer.close()

    async def close(self) -> None:
        if self.server is not None:
            self.server.close()
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: _Flow) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE_BYTES):
            await flow.wait()
            writer.write(data)
            await writer.drain()
    await flow.wait()  # a direction that is cut does not carry the end of a connection either


class Cables(Links):
    """Between the nodes ``addresses`` names (id -> real address)."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = dict(addresses)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cables", daemon=True)
        self._thread.start()
        self._cables: dict[tuple[str, str], _Cable] = {}
        self._flows: dict[tuple[str, str], _Flow] = {}
        self._do(self._make())

    async def _make(self) -> None:
        numbers = {node_id: number for number, node_id in enumerate(self._addresses, 1)}
        pairs = [(one, other) for one in numbers for other in numbers if one != other]
        for pair in pairs:
            self._flows[pair] = _Flow()
        for one, other in pairs:
            host, _, port = self._addresses[other].rpartition(":")
            ip = f"127.1.{numbers[one]}.{numbers[other]}"
            cable = self._cables[one, other] = _Cable(ip, host, self._flows[one, other], self._flows[other, one])
            await cable.listen(int(port))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_LIMIT_S)

    def address(self, one: str, other: str) -> str:
        """Where ``one`` dials ``other``."""
        return f"{self._cables[one, other].ip}:{self._addresses[other].rpartition(':')[2]}"

    def dialled(self, groups: Iterable[Sequence[str]]) -> dict[str, dict[str, str]]:
        """Node -> where it dials each other node of its group."""
        return {one: {other: self.address(one, other) for other in nodes if other != one} for nodes in groups for one in nodes}

    def shape(self, source: str, target: str, shape: LinkShape) -> None:
        """What ``source`` sends reaches ``target`` no more, whichever of them made the connection."""
        if shape != LinkShape(cut=True):
            raise InvalidArgumentError(f"a link from {source} to {target} that loses, delays or limits takes network namespaces")
        if (source, target) not in self._flows:
            raise InvalidArgumentError(f"no link from {source!r} to {target!r} to cut: that takes network namespaces")
        self._loop.call_soon_threadsafe(self._flows[source, target].carries.clear)

    def restore(self, source: str, target: str) -> None:
        self._loop.call_soon_threadsafe(self._flows[source, target].carries.set)

    def heal(self) -> None:
        for flow in self._flows.values():
            self._loop.call_soon_threadsafe(flow.carries.set)

    def struck(self, source: str, target: str) -> int:
        return self._flows[source, target].struck

    def close(self) -> None:
        if self._loop.is_closed():
            return
        for cable in self._cables.values():
            self._do(cable.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
