"""What acknowledgements are worth once an unsafe recovery has begun another lineage of a group.

Owns the account: an acknowledgement stands for the lineage that gave it, and for each one after it that began with a log that had the
message.  One that some other lineage gave, or of what a recovery left behind, counts as an unknown outcome; one that no lineage can have
given stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.checkers.append_log import Append, LogHistory, Outcome
from tests.sim.groups import SimGroup


class Worth:
    """Of the acknowledgements of one topic in one group; without archives there is one lineage, and each counts."""

    def __init__(self, group: SimGroup, topic: str) -> None:
        self._group, self._topic = group, topic
        self._given: dict[tuple[int, int, bytes], int] = {}

    def acknowledged(self, queue_id: int, offset: int, body: bytes) -> None:
        """Just now."""
        newest = len(self._group.lineages) - 1
        having = (at for at in range(newest, -1, -1) if self._has(at, queue_id, offset, body))
        self._given[queue_id, offset, body] = next(having, newest)

    def _has(self, lineage: int, queue_id: int, offset: int, body: bytes) -> bool:
        archive = self._group.lineages[lineage].archive
        return archive is not None and archive.has(self._topic, queue_id, offset, body)

    def judge(self, queue_id: int, history: LogHistory, bodies: Sequence[bytes]) -> None:
        """Leave what binds the newest lineage.  ``bodies``: of the appends of the history."""
        history.appends[:] = [self._judged(queue_id, each, body) for each, body in zip(history.appends, bodies, strict=True)]

    def _judged(self, queue_id: int, append: Append, body: bytes) -> Append:
        if append.outcome is not Outcome.ACKED:
            return append
        given = self._given[queue_id, append.offset, body]
        later = range(given + 1, len(self._group.lineages))
        binds = all(self._has(lineage, queue_id, append.offset, body) for lineage in later)
        return append if binds else replace(append, outcome=Outcome.UNKNOWN, offset=-1)
