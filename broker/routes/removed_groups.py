"""The replica groups that were removed, kept over restarts of a name service in ``removed.json``.

Owns what is in the file.  Nodes of a removed group are gone and cannot report that, so a name service that forgot would wait for them.
One that cannot read or write the file works as well, with what the other name servers remember.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.routes.anti_entropy import tombstone
from broker.routes.route_table import RouteTable
from broker.support.json_list_file import JsonListFile
from dledger.runtime.env import Disk
from dledger_wire._pb import routes_pb2
from dledger_wire.names import is_node_name
from dledger_wire.status import REMOVED
from dledger_wire.tasks import BackgroundTasks

PATH = "removed.json"


class RemovedGroups:
    """Of one name service: ``open`` it, then ``keep`` those of its table."""

    def __init__(self, disk: Disk, cluster: str) -> None:
        self._cluster = cluster
        self._registrations: Sequence[routes_pb2.Registration] = ()
        self._table = RouteTable()
        self._file = JsonListFile(disk, PATH, "removed", self._rows, decode=lambda row: _registrations(row, cluster), encode=_row)

    async def open(self, tasks: BackgroundTasks) -> None:
        """Read what earlier runs kept."""
        lost = "the list of removed replica groups is collected again"
        self._registrations = await self._file.open(tasks, lost=lost)

    def keep(self, table: RouteTable) -> None:
        """Let the table know what was kept, and keep what it comes to know."""
        for registration in self._registrations:
            table.register(registration, 0)
        self._table, table.removals_changed = table, self._file.changed

    async def close(self) -> None:
        """What was not written yet is, when this returns; call it when the tasks have ended."""
        await self._file.close()

    def _rows(self) -> list[routes_pb2.Registration]:
        return [tombstone(group, self._cluster) for group in self._table.groups if group.removed]


def _row(registration: routes_pb2.Registration) -> dict[str, object]:
    return {
        "name": registration.group,
        "epoch_ms": registration.group_epoch,
        "term": registration.term,
        "version": registration.state_version,
        "voters": registration.wanted_voters,
        "learners": registration.wanted_learners,
        "node": registration.node_id,
    }


def _registrations(row: dict[str, object], cluster: str) -> routes_pb2.Registration:
    name, node = str(row["name"]), str(row["node"])
    if not is_node_name(name) or not is_node_name(node):
        raise ValueError(f"{name[:70]!r}, {node[:70]!r}: expected names")
    numbers = (int(str(row[field])) for field in ("epoch_ms", "term", "version", "voters", "learners"))
    epoch, term, version, voters, learners = numbers
    return routes_pb2.Registration(
        cluster=cluster,
        group=name,
        node_id=node,
        term=term,
        state=REMOVED,
        state_version=version,
        group_epoch=epoch,
        wanted_voters=voters,
        wanted_learners=learners,
    )
