"""What a fault is, and what it is given of the cluster."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger_drill.hosts.machine import Machine, Process
from dledger_drill.hosts.shared_links import SharedLinks
from dledger_drill.hosts.shared_machines import SharedMachines
from dledger_drill.plan.model import FaultChoice, Need


class Target(Protocol):
    """The cluster that a fault strikes (``cluster.cluster``)."""

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """Replica group -> ids of its nodes at present."""

    @property
    def machines(self) -> SharedMachines[Machine]:
        """Of nodes and name servers, by id."""

    @property
    def name_servers(self) -> Sequence[str]: ...

    @property
    def links(self) -> SharedLinks: ...

    def leader(self, group: str, timeout_s: float = 30.0) -> str:
        """The leader; DeadlineExceededError while there is none."""

    def leader_or_last(self, group: str) -> str:
        """The leader; while there is none, the last one that was seen."""

    @property
    def workloads(self) -> Process | None:
        """The process that makes load, while it runs."""

    def restart_node(self, name: str) -> None:
        """Stop a node in order and start it again; DledgerError when it is the same process as before."""

    def wait_healthy(self, timeout_s: float = 60.0) -> None: ...

    def transfer_leader(self, group: str, to: str) -> None: ...

    def replace_member(self, group: str, node: str) -> None:
        """Remove a member, and add it again with an empty disk; returns when it has caught up."""

    def rotate_certificates(self) -> None: ...


@dataclass(slots=True)
class Strike:
    """A fault that has begun.  ``heal`` takes it back and may be called twice; nodes that ended are started.

    ``without_effect``: asked before ``heal``: why nothing came of it; empty: it did what it says, as far as that can be seen from here.
    ``pauses_clients``: it is the load that stands still, so that what clients did not see meanwhile is no fault of the cluster.
    """

    nodes: list[str]
    heal: Callable[[], None]
    note: str = ""
    without_effect: Callable[[], str] = lambda: ""
    pauses_clients: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry of the catalogue.

    Args:
        hold_s: Shortest and longest time it lasts.
        harmless: May be done to a cluster in use.
        takes_long: It waits for nodes while it strikes.  A round with it alone has failed when it does not come to its end.
    """

    name: str
    family: str
    help: str
    hold_s: tuple[float, float]
    strike: Callable[[Target, FaultChoice, random.Random], Strike]
    needs: frozenset[Need] = frozenset()
    harmless: bool = False
    takes_long: bool = False
