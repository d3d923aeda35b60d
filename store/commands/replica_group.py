"""The command that changes the replica group itself: whether it takes messages, how many replicas it is to have, limits of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.status import ACTIVE, DRAINING, REMOVED
from store.commands.command import Command, optional

STATES = (ACTIVE, DRAINING, REMOVED)
MAX_REPLICAS = 9
MAX_REPLACE_MS = 365 * 86_400_000
ALARM_LIMITS = ("diskFreeLimit", "memoryHighWatermark")  # settings of the cluster file that can be set for the group instead
MAX_LIMIT_CHARS = 40


@dataclass(frozen=True, slots=True)
class ReplicaGroupSettings:
    """The state of a replica group and its wishes; ``since_ms``: when the state was set, ``epoch_ms``: when anything of it was set first.

    ``version`` counts the changes.

    ``voters`` 0, ``learners`` None and ``replace_after_ms`` None: nothing was set, the cluster file counts.
    So it does for each setting that is not in ``limits``.
    """

    state: str = ACTIVE
    voters: int = 0
    learners: int | None = None
    replace_after_ms: int | None = None
    since_ms: int = 0
    version: int = 0
    epoch_ms: int = 0
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReplicaGroup(Command[ReplicaGroupSettings]):
    """An empty state, 0 voters and None keep what is there.  ``limits``: name and value; with an empty value the cluster file counts again.

    A group is removed only if nothing happened after ``at_index``, where its master found that nothing is left in it.
    """

    KIND: ClassVar[str] = "replica_group"
    state: str = optional("")
    voters: int = optional(0)
    learners: int | None = None
    replace_after_ms: int | None = None
    at_index: int = optional(0)
    limits: tuple[tuple[str, str], ...] = optional(())

    def check(self) -> None:
        if self.state not in ("", *STATES):
            raise InvalidArgumentError(f"state {self.state!r}: expected {', '.join(STATES)}")
        if self.voters and (self.voters % 2 == 0 or not 0 < self.voters <= MAX_REPLICAS):
            raise InvalidArgumentError(f"voters {self.voters}: expected an odd number from 1 to {MAX_REPLICAS}")
        if not 0 <= (self.learners or 0) <= MAX_REPLICAS:
            raise InvalidArgumentError(f"learners {self.learners}: expected 0 to {MAX_REPLICAS}")
        if not 0 <= (self.replace_after_ms or 0) <= MAX_REPLACE_MS:
            raise InvalidArgumentError(f"replace_after_ms {self.replace_after_ms}: expected 0 to {MAX_REPLACE_MS}")
        for name, value in self.limits:
            if name not in ALARM_LIMITS or len(value) > MAX_LIMIT_CHARS:
                raise InvalidArgumentError(f"{name}: expected {' or '.join(ALARM_LIMITS)}, with at most {MAX_LIMIT_CHARS} characters")
