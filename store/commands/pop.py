"""Commands of messages that are consumed one by one: leased, acknowledged, given back, moved to the dead letters.

The master decides which messages a lease is for; where the command stands in the log is decided which of them were still free
(``store/state/pop.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_group
from store.commands.command import Command, OffsetRun, optional

Receipts = tuple[int, int, int]  # offsets [first, end) and the lease that they were received with

MAX_INVISIBLE_MS = 12 * 3_600_000


@dataclass(frozen=True, slots=True)
class Granted:
    """What a lease is for: rising offsets, how often each was delivered with this one, and until when it is invisible."""

    lease: int
    until_ms: int
    offsets: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseMessages(Command[Granted]):
    """Leases messages of a queue for a group.

    ``begin``: the first message that nothing was decided about yet; every one from there to ``end`` is done unless it is named here.
    ``new`` of these are leased, ``waiting`` are left for a later lease.  ``again``: earlier ones that are free now; ``skipped``: the same,
    but done at once.  ``damaged``, new or earlier: not to be looked at for a while.  ``low``: the queue has nothing before it.
    ``message_groups``: a number for the message group of each one of ``new`` and ``waiting``, in the order of their offsets.
    """

    KIND: ClassVar[str] = "pop_lease"
    group: str
    topic: str
    queue_id: int
    invisible_ms: int
    begin: int
    end: int
    new: tuple[OffsetRun, ...] = optional(())
    again: tuple[OffsetRun, ...] = optional(())
    waiting: tuple[OffsetRun, ...] = optional(())
    skipped: tuple[OffsetRun, ...] = optional(())
    damaged: tuple[OffsetRun, ...] = optional(())
    low: int = optional(0)
    message_groups: tuple[int, ...] = optional(())

    def check(self) -> None:
        check_group(self.group)
        _check_invisible(self.invisible_ms)
        _check_runs(self.new + self.waiting, self.begin, self.end)
        _check_runs(self.again + self.skipped, 0, self.begin)
        _check_runs(self.damaged, 0, self.end)
        looked_at = sum(end - first for first, end in self.new + self.waiting)
        if self.begin > self.end or (self.message_groups and len(self.message_groups) != looked_at):
            raise InvalidArgumentError(f"a lease of messages {self.begin} to {self.end} with {len(self.message_groups)} message groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleMessages(Command[tuple[bool, ...]]):
    """What a consumer makes of messages; the result says of each, in their order, whether its lease was the current one."""

    group: str
    topic: str
    queue_id: int
    receipts: tuple[Receipts, ...]

    def check(self) -> None:
        check_group(self.group)
        for first, end, lease in self.receipts:
            if not (0 <= first < end and lease > 0):
                raise InvalidArgumentError(f"receipts of messages {first} to {end} with lease {lease}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeMessages(SettleMessages):
    """The group is done with these messages."""

    KIND: ClassVar[str] = "pop_acknowledge"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisible(SettleMessages):
    """Messages are free again ``invisible_ms`` from now; ``uncounted``: as if this delivery had not been."""

    KIND: ClassVar[str] = "pop_change_invisible"
    invisible_ms: int
    uncounted: bool = optional(default=False)

    def check(self) -> None:
        SettleMessages.check(self)
        _check_invisible(self.invisible_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkDeadLetters(SettleMessages):
    """As ``AcknowledgeMessages``, in one log entry with the copies that are the group's dead letters."""

    KIND: ClassVar[str] = "pop_dead"


def _check_invisible(invisible_ms: int) -> None:
    if not 0 <= invisible_ms <= MAX_INVISIBLE_MS:
        raise InvalidArgumentError(f"invisible for {invisible_ms} ms; expected 0 to {MAX_INVISIBLE_MS}")


def _check_runs(runs: tuple[OffsetRun, ...], low: int, high: int) -> None:
    for first, end in runs:
        if not low <= first < end <= high:
            raise InvalidArgumentError(f"messages {first} to {end} are not within {low} to {high}")
