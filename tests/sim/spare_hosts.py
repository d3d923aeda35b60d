"""Spare nodes of a simulated cluster: each waits on a machine of its own, and is a node of the group that takes it in from then on."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.config.layer_settings import store_settings_of
from broker.membership.spare_binding import Binding, bound_settings, read_binding
from broker.membership.waiting_spare import WaitingSpare
from broker.node import BrokerNode
from broker.security.setup import ProcessSecurity
from broker.support.process_stats import ProcessStats
from dledger.runtime.env import Environment
from dledger_wire.security import principal
from tests.sim.disk import DiskSettings
from tests.sim.groups import spare_address, spare_id
from tests.sim.host import Host, new_machine
from tests.sim.security import CLUSTER

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster


class SimSpares:
    """All of them.  ``hosts`` by id; one that is bound is among the hosts of the cluster, too, and in its group."""

    def __init__(self, cluster: SimCluster, count: int) -> None:
        self._cluster = cluster
        self.hosts: dict[str, Host] = {}
        for number in range(count):
            name, address = spare_id(number), spare_address(number)
            self.hosts[name] = new_machine(Host, name, address, cluster.loop, cluster.trace, cluster.random, replace(DiskSettings()))
            self.hosts[name].group = ""

    def start(self, name: str) -> None:
        """It runs until it is killed or fails."""
        host = self.hosts[name]
        own = principal.node(CLUSTER, principal.SPARE_GROUP, name)
        security = self._cluster.security.of_member(own, lambda: host.node.security.known_users() if host.node is not None else None)
        process, env = host.new_process(self._cluster.net, security.network)
        self._cluster.trace.note("start", host.ip, f"run {host.runs}")
        self._cluster.loop.spawn(process, self._life(host, env, security), "spare")

    async def _life(self, host: Host, env: Environment, security: ProcessSecurity) -> None:
        """As ``broker.main.run_spare``."""
        try:
            await self._wait_and_serve(host, env, security)
        except Exception as error:
            host.ended = error
            host.problems.append(error)

    async def _wait_and_serve(self, host: Host, env: Environment, security: ProcessSecurity) -> None:
        config = self._cluster.config
        spare = config.spare(host.name)
        assert spare is not None
        binding = await read_binding(env.disk)
        if binding is None:
            waiting = WaitingSpare(config, spare, env, process=ProcessStats, security=security)
            await waiting.open()
            assert waiting.bound is not None
            binding = await waiting.bound
            await waiting.stop()
        await self._serve(host, env, security, binding)

    async def _serve(self, host: Host, env: Environment, security: ProcessSecurity, binding: Binding) -> None:
        cluster, spare = self._cluster, self._cluster.config.spare(host.name)
        assert spare is not None
        group = cluster.groups[binding.group]
        host.group = binding.group
        cluster.hosts[host.name] = host
        if host.name not in group.node_ids:
            group.node_ids.append(host.name)
        settings = bound_settings(cluster.config, spare, binding)
        store = store_settings_of(settings)
        node = host.node = BrokerNode(settings, env, log_config=cluster.log, store_settings=store, security=security)
        group.invariants.watch(host.name, node)
        await cluster.run_node(host, node)

    def kill(self, name: str) -> None:
        """kill -9."""
        self._cluster.end(self.hosts[name], silent=False)
        self.hosts[name].disk.process_died()

    def wipe(self, name: str) -> None:
        """Killed, and nothing is left on its disk: whoever starts there is somebody new."""
        self.kill(name)
        host, cluster = self.hosts[name], self._cluster
        if host.group:
            group = cluster.groups[host.group]
            group.invariants.forget(name)
            group.node_ids.remove(name)
            del cluster.hosts[name]
            host.group = ""
        host.disk.names, host.disk.durable_names = {}, {}
        cluster.trace.note("wipe", host.ip)


async def end_one(cluster: SimCluster, _host: Host, draw: random.Random, lasts_s: float) -> None:
    """A spare node is killed, most of all one that was taken in."""
    spares = list(cluster.spares.hosts.values())
    host = draw.choice([each for each in spares if each.group] or spares)
    cluster.spares.kill(host.name)
    await asyncio.sleep(lasts_s)
    cluster.ensure_running(host.name)
