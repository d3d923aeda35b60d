"""What a client takes from its machine when nothing is injected: network, clock, randomness, its own address.

Owns the defaults.  In the simulator everything is injected and nothing in here is used.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from dledger_client.cluster.metadata import Bootstrap, parse_bootstrap
from dledger_wire.clock import Clock, Random, SystemClock, system_random
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.rpc.transport import Network


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything a client takes from outside."""

    network: Network
    clock: Clock
    random: Random
    address: str  # this client's, as it is stamped into messages
    process_id: int

    def unique_ids(self) -> UniqueIds:
        return UniqueIds(self.clock, self.random, address=pack_host(self.address)[:4], process_id=self.process_id)


def surroundings(bootstrap: Bootstrap, network: Network | None, clock: Clock | None, random: Random | None) -> Surroundings:
    """What was given, and this machine's for the rest."""
    if network is not None:
        return Surroundings(network, clock or SystemClock(), random or system_random(), "127.0.0.1:0", 1)
    return Surroundings(_own_network(), clock or SystemClock(), random or system_random(), f"{own_address(bootstrap)}:0", os.getpid())


def _own_network() -> Network:
    """This machine's network, of this process: connections are made by the loop that uses them, so a forked child makes its own."""
    from dledger_wire.tcp.network import TcpNetwork

    return TcpNetwork()


def own_address(bootstrap: Bootstrap) -> str:
    """The IPv4 address this machine would speak to the cluster from; nothing is sent to find out."""
    host, _, port = parse_bootstrap(bootstrap)[0].rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host.strip("[]"), int(port)))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
