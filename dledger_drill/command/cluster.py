"""The cluster that a drill strikes, as its options say, what its faults need that is not there, and the folder of its files.

The folder goes when the drill ends, however it ends, unless it is to be looked into.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dledger_cli.connection import LOGIN, connection
from dledger_cli.context import load_config, nodes_of
from dledger_cli.local.swept_folder import SweptFolder
from dledger_cli.output import note
from dledger_wire.security.variables import PASSWORD_FILE, USER

if TYPE_CHECKING:
    from dledger_drill.cluster.cluster import Cluster
    from dledger_drill.plan.model import DrillOptions, Need


def cluster_in_use(file: str, restart_command: str) -> Callable[[], Cluster]:
    """``--against``: how to make its ``Cluster``."""
    from dledger_drill.cluster.existing import ExistingCluster

    used = connection()
    if used.variable(USER) and not used.variable(PASSWORD_FILE):
        raise typer.BadParameter("requires --password-file, since the workloads run in another process", param_hint="--user")
    nodes = nodes_of(load_config(file))
    login = used.login()
    return lambda: ExistingCluster(nodes, restart_command, login)


def private_cluster(options: DrillOptions, folder: Path) -> Callable[[], Cluster]:
    from dledger_drill.cluster.machines_cluster import MachinesCluster
    from dledger_drill.hosts.capabilities import probe

    connection().given |= dict.fromkeys(LOGIN.values(), "")  # they are of another cluster
    capabilities = probe()
    return lambda: MachinesCluster(folder / "cluster", options, capabilities)


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


class DrillFolder:
    """``keep``: where the person wants it, in a folder that is made; None: below the folder for temporary files.

    ``kept``: it stays after ``close``.
    """

    def __init__(self, keep: Path | None) -> None:
        self.kept = False
        self._swept: SweptFolder | None = None
        if keep is not None:
            self.path = _new(keep)
        else:
            self._swept = SweptFolder("dledger-drill-")
            self.path = self._swept.path

    def close(self) -> None:
        """Remove it, or say where it is."""
        if self.kept:
            note(f"logs and histories: {self.path}")
        if self._swept is not None:
            if self.kept:
                self._swept.keep()
            self._swept.close()
        elif not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)


def _new(keep: Path) -> Path:
    try:
        keep.mkdir(parents=True)
    except FileExistsError:
        raise typer.BadParameter(f"{keep} exists already", param_hint="--keep") from None
    except OSError as error:
        raise typer.BadParameter(f"{keep}: {error.strerror}", param_hint="--keep") from None
    return keep.absolute()
