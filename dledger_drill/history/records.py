"""One operation of a history.  ``docs/reference/drill-history.md`` describes the kinds and their data for readers of other languages."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

ALL = "*"  # in a pause: all processes of clients stood still
PROBE = "probe-"  # a probe's process is this and its replica group


class Outcome(StrEnum):
    """FAILED: certainly not executed.  UNKNOWN: no answer, or one that leaves it open."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class OperationKind(StrEnum):
    SEND = "send"
    DELAYED = "delayed"
    TRANSACTION = "transaction"
    DELIVER = "deliver"
    READ = "read"
    COMMIT_OFFSET = "commit_offset"
    FETCH_OFFSET = "fetch_offset"
    ADMIN = "admin"
    SPARK = "spark"
    STORED = "stored"
    REPLICA = "replica"
    PAUSE = "pause"
    FAULT = "fault"
    LEADER = "leader"
    RESOURCE = "resource"


@dataclass(frozen=True, slots=True)
class Operation:
    """What one process did, from its call to the answer.

    Times are nanoseconds of the machine's monotonic clock, the same for all processes; ``returned_ns`` None: there was no answer.
    ``round`` 0 is before the first.  ``data`` depends on the kind and holds JSON values only.
    """

    process: str
    kind: OperationKind
    invoked_ns: int
    returned_ns: int | None
    outcome: Outcome
    round: int
    data: dict[str, Any] = field(default_factory=dict)
