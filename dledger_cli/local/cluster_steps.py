"""Replica groups of a local data folder: processes of a new group started, those of a removed one stopped, the folder's cluster file kept.

The file names every node that may run here, so that ``down`` finds it: a new group is written before its nodes start, and a removed one
is taken out after its nodes have stopped.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from broker.config.cluster_file import ClusterConfig
from dledger_cli.context import run
from dledger_cli.local.cluster_edit import moved, replace_file, with_groups, without_group
from dledger_cli.local.folder_lock import one_at_a_time
from dledger_cli.local.processes import LocalCluster
from dledger_cli.output import note
from dledger_client.aio import Admin
from dledger_wire.errors import DeadlineExceededError, DledgerError

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.config.cluster_file import GroupConfig
    from dledger_cli.local.local_process import LocalProcess

POLL_S = 0.2
STOP_S = 30.0
CALL_MS = 2000


def local_file(data: str, cluster: str) -> Path | None:
    """The cluster file of the data folder, if it belongs to that cluster; None when nothing runs here."""
    file = Path(data or "data") / "cluster.yaml"
    if not file.is_file():
        return None
    return file if ClusterConfig.load(str(file)).cluster == cluster else None


class GroupStarter:
    """Adds the replica groups of one cluster file, ``text`` as it would stand in ``source``: here, or it says what to start where."""

    def __init__(self, wanted: ClusterConfig, text: str, source: Path, data: str, timeout_s: float) -> None:
        self._wanted, self._text, self._timeout_s = wanted, moved(text, source), timeout_s
        self._file = local_file(data, wanted.cluster)
        if data and self._file is None:
            raise DledgerError(f"{data} is no data folder of cluster {wanted.cluster}; expected the folder of dledger up")
        self._old = yaml.safe_load(self._file.read_text(encoding="utf-8"))["groups"] if self._file else []

    def write(self, *, without: Collection[str]) -> None:
        """Write the cluster file, with all other groups that it had, since their nodes may run; those of groups ``without`` are stopped
        first: they were removed."""
        if self._file is None:
            return
        with one_at_a_time(self._file.parent):
            now = ClusterConfig.load(str(self._file))
            _stop(LocalCluster(now, self._file.parent), [group for group in now.groups if group.name in without])
            self._old = [group for group in self._old if group["name"] not in without]
            replace_file(self._file, with_groups(self._text, self._old))

    def add(self, group: GroupConfig) -> None:
        """Start the group's nodes, or say how, and wait for its leader.  A group whose nodes cannot be started is not left in the folder's
        cluster file, unless it was there before."""
        if self._file is not None:
            local = LocalCluster(ClusterConfig.load(str(self._file)), self._file.parent)
            before = local.running()
            try:
                with one_at_a_time(self._file.parent):
                    started = local.start([node.id for node in group.nodes])
                self._wait(group, local, started)
            except DeadlineExceededError:
                raise  # they run, and may have a leader yet
            except DledgerError:
                self._take_back(local, group, before)
                raise
            return
        for node in group.nodes:
            note(f"on {node.host_label}: dledger node --config FILE --id {node.id} --data DIR")
        note(f"waiting for a leader of replica group {group.name} ({self._timeout_s:g} s) ...")
        self._wait(group, None, {})

    def _take_back(self, local: LocalCluster, failed: GroupConfig, before: Collection[str]) -> None:
        """The group that ``failed``, unless it stood in the file or ran ``before``, and those whose turn has not come."""
        old, running = {group["name"] for group in self._old}, local.running()
        for group in self._wanted.groups:
            runs = before if group is failed else running
            if group.name not in old and not any(node.id in runs for node in group.nodes):
                forget_local_group(str(local.data), self._wanted.cluster, group.name)
                note(f"replica group {group.name} is not in the cluster file any more: {local.file}")

    def _wait(self, group: GroupConfig, local: LocalCluster | None, started: dict[str, LocalProcess]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not run(_has_leader(group)):
            if local is not None and (ended := local.ended(started)):
                raise DledgerError(ended)
            if time.monotonic() > deadline:
                text = f"replica group {group.name} has no leader after {self._timeout_s:g} s; repeat the command when its nodes run"
                raise DeadlineExceededError(text)
            time.sleep(POLL_S)
        note(f"replica group {group.name} has a leader")


async def _has_leader(group: GroupConfig) -> bool:
    nodes = {group.name: {node.id: node.address for node in group.nodes}}
    async with Admin([node.address for node in group.nodes], timeout_ms=CALL_MS) as admin:
        (found,) = await admin.cluster_status(nodes=nodes, timeout_ms=CALL_MS)
    return found.leader is not None and found.takes_messages


def forget_local_group(data: str, cluster: str, name: str) -> None:
    """Stop the local nodes of a removed group, and take it out of the data folder's cluster file."""
    file = local_file(data, cluster)
    if file is None:
        return
    with one_at_a_time(file.parent):
        config = ClusterConfig.load(str(file))
        _stop(LocalCluster(config, file.parent), [group for group in config.groups if group.name == name])
        replace_file(file, without_group(file.read_text(encoding="utf-8"), name))


def _stop(local: LocalCluster, groups: list[GroupConfig]) -> None:
    for group in groups:
        for node in group.nodes:
            if not local.signal(node.id, signal.SIGTERM):
                continue
            if not local.wait_stopped(node.id, STOP_S):
                raise DeadlineExceededError(f"{node.id} did not stop within {STOP_S:g} s")
            note(f"{node.id} stopped")
