"""``dledger member unsafe-recover`` in simulated clusters: the folder of a stopped node becomes that of the only voter.

Owns the steps on the simulated disk, which are the product's own.  What the nodes of before had stored and committed beyond the survivor's
log is lost on purpose: whoever uses this takes their folders (``SimCluster.take_folder``), or keeps their account apart.
"""

from __future__ import annotations

from broker.config.cluster_file import ClusterConfig
from dledger.core.types import EntryId
from dledger_cli.recovery.only_voter import check_others_wait, look_at_disk, make_only_voter
from dledger_wire.security.network_security import OPEN
from tests.sim.cluster import SimCluster


async def recover_alone(cluster: SimCluster, node_id: str) -> EntryId:
    """Give the command for a node that is killed or stopped; its last entry then.  DledgerError when the command is refused.

    Nodes that are started from now on have a cluster file in which all others of the group have ``spare: true``.
    """
    host = cluster.hosts[node_id]
    cluster.config = let_others_wait(cluster.config, node_id)
    process, env = host.new_process(cluster.net, OPEN)

    async def command() -> EntryId:
        found = await look_at_disk(cluster.config, node_id, env.disk, cluster.log)
        check_others_wait(cluster.config, found)
        return await make_only_voter(found, env.random, env.clock.wall_ms())

    try:
        return await cluster.loop.spawn(process, command(), "unsafe-recover")
    finally:
        cluster.trace.note("recovered", host.ip)
        cluster.kill(node_id)


def let_others_wait(config: ClusterConfig, survivor: str) -> ClusterConfig:
    """The file with ``spare: true`` for every node of the survivor's group but itself."""
    groups = []
    for group in config.groups:
        if survivor in {node.id for node in group.nodes}:
            nodes = [node.model_copy(update={"spare": node.id != survivor}) for node in group.nodes]
            group = group.model_copy(update={"nodes": nodes})
        groups.append(group)
    return config.model_copy(update={"groups": groups})
