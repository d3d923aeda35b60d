"""Worlds in which the network contract runs: each gives a network, fresh addresses, and something that runs a coroutine to its end.

The simulator adds its own world to ``WORLDS``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from dledger_wire.grpc_network import GrpcNetwork
from dledger_wire.mixed_network import MixedNetwork
from dledger_wire.rpc import Network
from dledger_wire.tcp_network import TcpNetwork


class World(Protocol):
    name: str

    def run(self, scenario: Callable[[World], Awaitable[None]]) -> None:
        """Run the scenario on this world's event loop; raises what it raises."""
        ...

    def network(self) -> Network:
        """The network as one process sees it; each call is another process."""
        ...

    def address(self) -> str:
        """An address nobody listens on."""
        ...


class SocketWorld:
    """Real sockets on loopback."""

    name = "grpc"
    make: Callable[[], Network] = GrpcNetwork

    def run(self, scenario: Callable[[World], Awaitable[None]]) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(scenario(self), 20)

        asyncio.run(bounded())

    def network(self) -> Network:
        return type(self).make()

    def address(self) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"


class TcpWorld(SocketWorld):
    name = "tcp"
    make = TcpNetwork


class MixedWorld(SocketWorld):
    name = "mixed"
    make = MixedNetwork


WORLDS: list[Callable[[], World]] = [SocketWorld, TcpWorld, MixedWorld]
