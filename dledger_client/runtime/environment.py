"""What a client takes from its machine: network, clock, randomness, address, worker threads.

Owns the defaults, and the one way to replace them.  The simulator and tests make clients inside ``use_environment``; constructors of
clients have no parameters for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Unpack

from dledger_client.cluster.channels import Bootstrap, parse_bootstrap
from dledger_client.cluster.router import Router
from dledger_client.runtime.allocator import KEEP_LARGE_BLOCKS, keep_large_blocks
from dledger_client.runtime.security import SecuritySettings, check_known, inside, network_security
from dledger_wire.clock import Clock, Random, SystemClock, system_random
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.rpc.transport import Network
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.tcp.resolver import RESOLVER

if TYPE_CHECKING:
    from dledger_wire.frames.message_id import UniqueIds

# Runs a blocking function outside of the event loop.
RunInThread: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]

ELSEWHERE = "192.0.2.1"  # RFC 5737: for documentation; only the way there counts


_replaced: ContextVar[ClientEnvironment | None] = ContextVar("dledger_client_environment", default=None)


@dataclass(frozen=True, slots=True)
class ClientEnvironment:
    """Everything a client takes from outside.  ``address`` and ``process_id`` are stamped into messages and client ids."""

    network: Network
    clock: Clock
    random: Random
    address: str
    process_id: int
    run_in_thread: RunInThread = asyncio.to_thread

    def unique_ids(self) -> UniqueIds:
        from dledger_wire.frames.message_id import UniqueIds  # with numpy, for producers alone

        return UniqueIds(self.clock, self.random, address=pack_host(self.address)[:4], process_id=self.process_id)

    def open_router(self, bootstrap: Bootstrap) -> Router:
        """Routes of a new client."""
        return Router(bootstrap, self.network, self.clock, self.random)

    def in_use(self) -> AbstractContextManager[None]:
        """Clients made inside of this context live in this environment."""
        return inside(_replaced, self)


def environment_for(bootstrap: Bootstrap, **security: Unpack[SecuritySettings]) -> ClientEnvironment:
    """The environment of a client that is made here and now.  ConfigError for files of ``security`` that cannot be used."""
    check_known(security)
    replaced = _replaced.get()
    if replaced is not None:
        return replaced
    return ClientEnvironment(
        _own_network(network_security(security)), SystemClock(), system_random(), f"{own_address(bootstrap)}:0", os.getpid()
    )


@contextlib.contextmanager
def use_environment(
    network: Network | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
    *,
    address: str = "127.0.0.1:0",
    process_id: int = 1,
    run_in_thread: RunInThread = asyncio.to_thread,
) -> Iterator[ClientEnvironment]:
    """Clients made inside of this context, by either face, live in this environment.  For tests and the simulator.

    Examples:
        >>> with use_environment(network, clock, random):
        ...     producer = Producer("10.0.0.1:10911", group="tests")
    """
    made = ClientEnvironment(
        network or _own_network(network_security({})), clock or SystemClock(), random or system_random(), address, process_id, run_in_thread
    )
    with made.in_use():
        yield made


def _own_network(security: NetworkSecurity) -> Network:
    """This machine's network, of this process: connections are made by the loop that uses them, so a forked child makes its own."""
    from dledger_wire.tcp.network import TcpNetwork

    if os.environ.get(KEEP_LARGE_BLOCKS) == "1":
        keep_large_blocks()
    return TcpNetwork(security)


def own_address(bootstrap: Bootstrap) -> str:
    """The IPv4 address this machine reaches the cluster from; nothing is sent to find out.

    A name that is not known within moments blocks nothing: then it is the address from which this machine reaches others at all.
    """
    host, _, port = parse_bootstrap(bootstrap)[0].rpartition(":")
    for place in (*RESOLVER.addresses_at_once(host.strip("[]")), ELSEWHERE):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((place, int(port)))
            return str(probe.getsockname()[0])
    return "127.0.0.1"
