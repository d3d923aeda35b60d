"""What a node, a name server and a spare node have of the machine that they run on; the simulator has another one.

Owns how it is made of the cluster file: security first, since network and audit log depend on it, then network, files and clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from broker.config.cluster_file import ClusterConfig
from broker.config.memory_shares import MemoryShares
from broker.process.audit_file import file_audit
from broker.process.loop_watch import LoopWatch
from broker.process.process_reader import memory_bytes
from broker.security.setup import ProcessSecurity, process_security
from broker.support.process_stats import ProcessStats
from dledger.runtime.env import Environment
from dledger.runtime.real_env import real_environment
from dledger_wire.security.principal import Principal
from dledger_wire.tcp.mixed_network import MixedNetwork
from store.durability.snapshots import CONFIG_FOLDER
from store.key_index.index_file import INDEX_FOLDER
from store.queues.queue_files import QUEUE_FOLDER
from store.state.security import SecurityState

# What is derived from the log: many small files, and large ones written whole.
BESIDE_FOLDERS = (QUEUE_FOLDER, CONFIG_FOLDER, INDEX_FOLDER)


@dataclass(frozen=True, slots=True)
class Machine:
    """``env`` has files, clocks and ``network``; ``watch`` sees when the event loop stands still."""

    security: ProcessSecurity
    network: MixedNetwork
    env: Environment
    watch: LoopWatch

    def stats(self) -> ProcessStats:
        """What the process reports about itself."""
        return replace(self.watch.stats(), connections=self.network.arrivals.by_kind())


def machine_of(cluster: ClusterConfig, own: Principal, folder: str, users: Callable[[], SecurityState | None] = lambda: None) -> Machine:
    """For the process that is ``own``, on its event loop.  ConfigError for files that cannot be used.

    Args:
        cluster: The cluster file.
        own: The process's identity to the others.
        folder: Its data folder, with its log of audits and its sockets.
        users: Gives users and rules, once there are any.
    """
    security = process_security(cluster, own, users, file_audit(folder))
    shares = MemoryShares.of(cluster, memory_bytes())
    limits = replace(security.network.limits, unsent=shares.unsent)
    network = MixedNetwork(replace(security.network, limits=limits), shares.received, shares.grpc, socket_folder=folder)
    return Machine(security, network, real_environment(folder, network, beside_folders=BESIDE_FOLDERS), LoopWatch())
