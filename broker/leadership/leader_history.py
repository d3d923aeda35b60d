"""The leaders that this node came to know, and why each of them came.

Owns the bounded list, and ``leaders.json``, which keeps it over a restart.  Nothing is decided by it: a node that cannot write or read the
file works as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from broker.leadership.leader_reasons import explained
from dledger.core.effects import RoleChanged
from dledger.runtime.env import Disk
from dledger_wire import strict_json
from dledger_wire.clock import Clock
from dledger_wire.tasks import BackgroundTasks

PATH = "leaders.json"
KEPT_CHANGES = 100
MAX_BYTES = 1 << 20
WRITE_AFTER_S = 1.0  # a new leader has more urgent things to sync

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """``took_ms``: since the leader before was last heard here, or since this node's start."""

    term: int
    leader: str
    previous: str
    at_ms: int
    took_ms: int
    kind: str
    cause: str
    reason: str


class LeaderHistory:
    """Of one node.  ``stopped_in_order``: whether its last run was, asked once a leader is known."""

    def __init__(self, own: str, clock: Clock, disk: Disk, stopped_in_order: Callable[[], bool]) -> None:
        self._own, self._clock, self._disk, self._stopped_in_order = own, clock, disk, stopped_in_order
        self._changes: deque[LeaderChange] = deque(maxlen=KEPT_CHANGES)
        self._changed = asyncio.Event()

    async def open(self, tasks: BackgroundTasks) -> None:
        """Read what earlier runs kept, and keep what comes from now on."""
        try:
            self._changes.extend(await _read(self._disk))
        except (OSError, ValueError, KeyError, TypeError) as error:
            _logger.warning(
                "%s cannot be read, the history of leaders begins anew: %s",
                self._disk.local_path(PATH),
                error,
                extra={"event": "file_begins_anew"},
            )
        tasks.spawn(self._keep(), "keep the history of leaders")

    async def close(self) -> None:
        """What was not written yet is, when this returns; call it when the tasks have ended."""
        if self._changed.is_set():
            await self._write()

    def role_changed(self, event: RoleChanged) -> None:
        """Note the leader, when it is another one or leads another term."""
        last = self._changes[-1] if self._changes else None
        if event.leader is None or (last is not None and (event.term, event.leader) == (last.term, last.leader)):
            return
        why = explained(event, self._own, last_run_broken=not self._stopped_in_order())
        before = event.loss.leader if event.loss is not None else None
        previous = before or (last.leader if last is not None else "")
        found = LeaderChange(
            term=event.term,
            leader=event.leader,
            previous=previous,
            at_ms=self._clock.wall_ms(),
            took_ms=event.leaderless_ms,
            kind=why.kind,
            cause=why.cause,
            reason=why.reason,
        )
        self._changes.append(found)
        text = "%s leads in term %d; before it: %s. %s"
        _logger.info(
            text, found.leader, found.term, previous or "nobody", found.reason, extra={"event": "leader_changed", "cause": why.cause}
        )
        self._changed.set()

    def changes(self, count: int = 0) -> Sequence[LeaderChange]:
        """The newest ones, oldest first; 0: all that are kept."""
        found = list(self._changes)
        return found[-count:] if count else found

    async def _keep(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(WRITE_AFTER_S)
            await self._write()

    async def _write(self) -> None:
        self._changed.clear()
        data = json.dumps({"changes": [asdict(change) for change in self._changes]}).encode()
        try:
            await self._disk.write_atomic(PATH, data + b"\n")
        except OSError as error:
            _logger.info("%s cannot be written now: %s", self._disk.local_path(PATH), error)  # written with the next change


async def _read(disk: Disk) -> list[LeaderChange]:
    if not await disk.exists(PATH):
        return []
    file = await disk.open(PATH)
    try:
        data = await file.pread(0, MAX_BYTES)
    finally:
        await file.close()
    return [_change(row) for row in strict_json.parse(data)["changes"][-KEPT_CHANGES:]]


def _change(row: dict[str, object]) -> LeaderChange:
    texts = {name: str(row[name]) for name in ("leader", "previous", "kind", "cause", "reason")}
    numbers = {name: int(str(row[name])) for name in ("term", "at_ms", "took_ms")}
    return LeaderChange(**texts, **numbers)  # type: ignore[arg-type]
