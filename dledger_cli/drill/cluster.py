"""The cluster that a drill strikes, as its options say, and what its faults need that is not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dledger_cli.context import load_config, nodes_of
from dledger_wire.security.variables import CA, CERT, KEY, PASSWORD_FILE, USER

if TYPE_CHECKING:
    from dledger_drill.cluster.cluster import Cluster
    from dledger_drill.plan.model import DrillOptions, Need

OF_ANOTHER_CLUSTER = (CA, CERT, KEY, USER, PASSWORD_FILE)


def cluster_in_use(file: str, restart_command: str) -> Callable[[], Cluster]:
    """``--against``: how to make its ``Cluster``."""
    from dledger_drill.cluster.existing import ExistingCluster

    if os.environ.get(USER) and not os.environ.get(PASSWORD_FILE):
        raise typer.BadParameter("expected --password-file: the workloads are a process of their own", param_hint="--user")
    nodes = nodes_of(load_config(file))
    return lambda: ExistingCluster(nodes, restart_command)


def private_cluster(options: DrillOptions, folder: Path) -> Callable[[], Cluster]:
    from dledger_drill.cluster.private import PrivateCluster
    from dledger_drill.hosts.capabilities import probe

    for variable in OF_ANOTHER_CLUSTER:
        os.environ.pop(variable, None)
    capabilities = probe()
    return lambda: PrivateCluster(folder / "cluster", options, capabilities)


def missing(against: str, restart_command: str, *, nodes: int, tls: bool) -> Mapping[Need, str]:
    """What faults need and is not there, and why."""
    from dledger_drill.hosts.capabilities import probe
    from dledger_drill.plan.model import Need

    if against:
        return {} if restart_command else {Need.RESTART: "takes --restart-command"}
    found = dict(probe().why_not)
    if nodes < 5:
        found[Need.FIVE_NODES] = "takes --nodes 5"
    if not tls:
        found[Need.TLS] = "takes --tls"
    return found
