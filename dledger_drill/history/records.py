"""One operation of a history, and its line of JSON.

``docs/reference/drill-history.md`` describes the kinds and their data for readers of other languages.
"""

from __future__ import annotations

import json
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


def encode(operation: Operation) -> bytes:
    """The operation's line, with its line end."""
    fields = {
        "process": operation.process,
        "kind": operation.kind,
        "invoked_ns": operation.invoked_ns,
        "returned_ns": operation.returned_ns,
        "outcome": operation.outcome,
        "round": operation.round,
        "data": operation.data,
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def decode(line: bytes) -> Operation:
    """The operation of a line.  Raises ValueError, KeyError or TypeError if it is not one; fields of newer versions are left out."""
    fields = json.loads(line)
    returned = fields["returned_ns"]
    return Operation(
        process=fields["process"],
        kind=OperationKind(fields["kind"]),
        invoked_ns=int(fields["invoked_ns"]),
        returned_ns=None if returned is None else int(returned),
        outcome=Outcome(fields["outcome"]),
        round=int(fields["round"]),
        data=fields["data"],
    )
