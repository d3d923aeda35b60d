"""Name servers of a simulated cluster: processes of their own on machines of their own, started, killed, wiped and started again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from broker.config.cluster_file import ClusterConfig
from broker.nameserver.node import NameServerNode
from dledger_wire.security import principal
from tests.sim.disk import DiskSettings
from tests.sim.disk_content import Loss
from tests.sim.groups import name_server_address, name_server_id
from tests.sim.host import Machine, new_machine
from tests.sim.loop import SimLoop
from tests.sim.network import SimNetwork
from tests.sim.quorum import QuorumBoard, SimQuorum
from tests.sim.security import CLUSTER, SimSecurity
from tests.sim.trace import Trace


@dataclass(slots=True, eq=False)
class NameServerHost(Machine):
    """The machine of a name server."""

    node: NameServerNode | None = None


class SimNameServers:
    """All of them.  ``hosts`` by id; empty: the cluster has none of its own."""

    def __init__(self, loop: SimLoop, net: SimNetwork, trace: Trace, security: SimSecurity, count: int, draw: random.Random) -> None:
        self._loop, self._net, self._trace, self._security = loop, net, trace, security
        self.hosts: dict[str, NameServerHost] = {}
        if not count:
            return  # nothing is drawn
        for number in range(count):
            name_id, address = name_server_id(number), name_server_address(number)
            self.hosts[name_id] = new_machine(NameServerHost, name_id, address, loop, trace, draw, DiskSettings())
        self.board = QuorumBoard(loop, net, random.Random(draw.getrandbits(64)), {name: host.ip for name, host in self.hosts.items()})

    @property
    def addresses(self) -> list[str]:
        return [host.address for host in self.hosts.values()]

    def start(self, name_id: str, config: ClusterConfig) -> None:
        host = self.hosts[name_id]
        security = self._security.of_member(principal.name_server(CLUSTER, name_id), lambda: node.known_users())
        process, env = host.new_process(self._net, security.network)
        quorum = SimQuorum(self.board, name_id, process)
        node = host.node = NameServerNode(config.name_server(name_id), env, quorum, security=security)
        self._trace.note("start", host.ip, f"run {host.runs}")
        self._loop.spawn(process, self._run(host, node), "name server")

    async def _run(self, host: NameServerHost, node: NameServerNode) -> None:
        try:
            await node.open()
            reason = await node.failed
        except Exception as error:
            reason = error
        host.ended = reason
        host.problems.append(reason)
        self._trace.note("ended", host.ip, type(reason).__name__)

    def ensure_running(self, name_id: str, config: ClusterConfig) -> None:
        host = self.hosts[name_id]
        if host.ended is not None:
            self.kill(name_id)
        if host.process is None:
            self.start(name_id, config)

    def kill(self, name_id: str) -> None:
        """kill -9."""
        self._end(self.hosts[name_id], silent=False)
        self.hosts[name_id].disk.process_died()

    def power_off(self, name_id: str, loss: Loss) -> None:
        host = self.hosts[name_id]
        self._end(host, silent=True)
        host.disk.power_failure(loss)
        host.boots += 1

    def wipe(self, name_id: str) -> None:
        """Killed, and nothing is left of what it had on its disk."""
        self.kill(name_id)
        host = self.hosts[name_id]
        host.disk.names, host.disk.durable_names = {}, {}
        self._trace.note("wipe", host.ip)

    def _end(self, host: NameServerHost, *, silent: bool) -> None:
        if host.process is None:
            return
        self._trace.note("kill", host.ip)
        self.board.ends.pop(host.name, None)
        self._loop.kill(host.process, host.node)
        self._net.process_died(host.process, silent=silent)
        host.process = host.node = None
