"""Worlds in which the network contract runs: each gives a network, fresh addresses, and something that runs a coroutine to its end.

The simulator adds its own world to ``WORLDS``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from dledger_cli.local.ports import free_ports
from dledger_wire.rpc.transport import Channel, Network
from dledger_wire.tcp.mixed_network import MixedNetwork
from dledger_wire.tcp.network import TcpNetwork
from tests.contract import secured
from tests.grpc_network import GrpcNetwork
from tests.sim.loop import Process, SimLoop
from tests.sim.network import SimNetwork
from tests.sim.trace import Trace


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
        (port,) = free_ports(1)
        return f"127.0.0.1:{port}"


class TcpWorld(SocketWorld):
    name = "tcp"
    make = TcpNetwork


class MixedWorld(SocketWorld):
    name = "mixed"
    make = MixedNetwork


class SecuredTcpWorld(SocketWorld):
    """TLS and authentication on every connection."""

    name = "tcp-secured"

    @staticmethod
    def make() -> Network:
        return TcpNetwork(secured.everything())


class StockGrpcWorld(SocketWorld):
    """A stock gRPC client at a node's port."""

    name = "grpc-to-mixed"

    class make(MixedNetwork):
        def connect(self, address: str) -> Channel:  # type: ignore[override]
            return GrpcNetwork().connect(address)


class SimWorld:
    """Every process is a host of its own, in virtual time; ``shuffle`` interleaves them at random."""

    name = "sim"

    def __init__(self, *, shuffle: bool = False) -> None:
        self.loop = SimLoop(shuffle=random.Random(1) if shuffle else None)
        self.net = SimNetwork(self.loop, random.Random(2), Trace(self.loop))
        self._processes = 0
        self._ports = 0

    def run(self, scenario: Callable[[World], Awaitable[None]]) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(scenario(self), 120)

        self.loop.run_until_complete(bounded())
        self.loop.close()

    def network(self) -> Network:
        self._processes += 1
        return self.net.of(Process("host", self._processes))

    def address(self) -> str:
        self._ports += 1
        return f"host:{self._ports}"


class ShuffledSimWorld(SimWorld):
    name = "sim-shuffled"

    def __init__(self) -> None:
        super().__init__(shuffle=True)


WORLDS: list[Callable[[], World]] = [SocketWorld, TcpWorld, SecuredTcpWorld, MixedWorld, StockGrpcWorld, SimWorld, ShuffledSimWorld]
