"""The leaders that this node came to know, and why each of them came.

Owns the bounded list, and what ``leaders.json``, which keeps it over a restart, has of it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from broker.leadership.leader_reasons import explained
from broker.support.json_list_file import JsonListFile
from dledger.core.effects import RoleChanged
from dledger.runtime.env import Disk
from dledger_wire.clock import Clock
from dledger_wire.tasks import BackgroundTasks

PATH = "leaders.json"
KEPT_CHANGES = 100
HELD_LATELY_S = 1.0  # a disk that held the node up before the leader was lost may be why
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
    """Of one node.  ``stopped_in_order``: whether its last run was, asked once a leader is known.  ``disk_held_s``: how long it read no
    messages in so many seconds, since it waited for its disk."""

    def __init__(
        self,
        own: str,
        clock: Clock,
        disk: Disk,
        stopped_in_order: Callable[[], bool],
        disk_held_s: Callable[[float], float] = lambda _within_s: 0.0,
    ) -> None:
        self._own, self._clock, self._stopped_in_order, self._disk_held_s = own, clock, stopped_in_order, disk_held_s
        self._changes: deque[LeaderChange] = deque(maxlen=KEPT_CHANGES)
        self._file = JsonListFile(disk, PATH, "changes", self.changes, decode=_change, encode=asdict, write_after_s=WRITE_AFTER_S)

    async def open(self, tasks: BackgroundTasks) -> None:
        """Read what earlier runs kept, and keep what comes from now on."""
        self._changes.extend(await self._file.open(tasks, lost="the history of leaders is reset"))

    async def close(self) -> None:
        """What was not written yet is, when this returns; call it when the tasks have ended."""
        await self._file.close()

    def role_changed(self, event: RoleChanged) -> None:
        """Note the leader, when it is another one or leads another term."""
        last = self._changes[-1] if self._changes else None
        if event.leader is None or (last is not None and (event.term, event.leader) == (last.term, last.leader)):
            return
        held_ms = 1000 * self._disk_held_s(HELD_LATELY_S + event.leaderless_ms / 1000)
        why = explained(event, self._own, last_run_broken=not self._stopped_in_order(), disk_held_ms=held_ms)
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
            text, found.leader, found.term, previous or "none", found.reason, extra={"event": "leader_changed", "cause": why.cause}
        )
        self._file.changed()

    def changes(self, count: int = 0) -> Sequence[LeaderChange]:
        """The newest ones, oldest first; 0: all that are kept."""
        found = list(self._changes)
        return found[-count:] if count else found


def _change(row: dict[str, object]) -> LeaderChange:
    texts = {name: str(row[name]) for name in ("leader", "previous", "kind", "cause", "reason")}
    numbers = {name: int(str(row[name])) for name in ("term", "at_ms", "took_ms")}
    return LeaderChange(**texts, **numbers)  # type: ignore[arg-type]
