"""An operation as a line of JSON, and back."""

from __future__ import annotations

import json

from dledger_drill.history.records import Operation, OperationKind, Outcome


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
