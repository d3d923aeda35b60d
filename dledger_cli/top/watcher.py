"""Asks a cluster again and again for what ``dledger top`` shows.

Owns the calls and their times: nodes at each look; in tasks of their own, since they answer late while a replica group has no leader,
consumer groups, and what the nodes report of changes of leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dledger_cli.context import STATUS_DEADLINE_S
from dledger_cli.top.history import History
from dledger_cli.top.model import LeaderChange, View
from dledger_wire.errors import DledgerError

if TYPE_CHECKING:
    from dledger_client.aio import Admin

SLOWER_S = 2.0  # between two questions for consumer groups
CHANGES_S = 10.0  # at most between two questions for changes of leader
SOON_S = 0.5


class Watcher:
    """Of one cluster, for the time of an ``async with``.  ``nodes``: replica group -> node id -> address."""

    def __init__(self, admin: Admin, cluster: str, nodes: Mapping[str, Mapping[str, str]], consumers_every_s: float = SLOWER_S) -> None:
        self._admin = admin
        self._consumers_every_s = consumers_every_s
        self._nodes = nodes
        self._history = History(cluster)
        self._consumers_seen = asyncio.Event()
        self._change_seen = asyncio.Event()
        self._asked_about: dict[str, int] = {}  # replica group -> term of the newest change
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._see_consumers(), name="consumer groups of top"),
            asyncio.create_task(self._see_changes(), name="changes of leader of top"),
        ]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def look(self) -> View:
        """The cluster now.  No node is waited for longer than two seconds."""
        groups = await self._admin.cluster_status(nodes=self._nodes, timeout_ms=int(STATUS_DEADLINE_S * 1000))
        view = self._history.look(groups, time.monotonic(), int(time.time() * 1000))
        newest = view.changes[0] if view.changes else None
        if newest is not None and newest.term != self._asked_about.get(newest.replica_group):
            self._asked_about[newest.replica_group] = newest.term
            self._change_seen.set()
        return view

    async def consumers_asked(self, times: int) -> None:
        """Wait until the consumer groups were asked for, or did not answer, so many times more."""
        asking = self._tasks[0]
        for _ in range(times):
            self._consumers_seen.clear()
            seen = asyncio.ensure_future(self._consumers_seen.wait())
            try:
                await asyncio.wait((seen, asking), return_when=asyncio.FIRST_COMPLETED)
            finally:
                seen.cancel()
            if asking.done():
                asking.result()

    async def _see_consumers(self) -> None:
        while True:
            began = time.monotonic()
            try:
                found = await self._admin.describe_groups(partial=True)
                self._history.see_consumers(found, time.monotonic())
                silent = sorted(found.unanswered)
                self._history.consumers_trouble = f"without replica group {', '.join(silent)}, which did not answer" if silent else ""
            except DledgerError as error:
                self._history.consumers_trouble = f"not of now: {error.message}"
            self._consumers_seen.set()
            await asyncio.sleep(max(0.1, began + self._consumers_every_s - time.monotonic()))

    async def _see_changes(self) -> None:
        """What the nodes report: before the first look, and why a change came that a look has seen.

        A caller without that right still has what the looks see.
        """
        while True:
            self._change_seen.clear()  # before they are asked: a change that comes meanwhile is asked about at once
            try:
                reported = await self._admin.leader_history()
            except DledgerError:
                reported = []
            self._history.remember(
                LeaderChange(change.at_ms, change.replica_group, change.previous, change.leader, change.term, change.took_ms, change.reason)
                for change in reported
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHANGES_S):  # wait_for may lose a cancellation that comes with the event
                    await self._change_seen.wait()
            await asyncio.sleep(SOON_S)
