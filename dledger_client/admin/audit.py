"""What ``Admin`` returns of the audit log: records of administrative actions and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record of the audit log of a node or a name server.

    Attributes:
        at: When, as ISO time in UTC.
        user: The user's name; ``dledger://...`` for a node or a name server, empty for a client without credentials.
        address: Where the request came from, ``host:port``.
        action: What was asked for, such as ``create topic`` or ``connect``.
        resource: ``topic``, ``group``, ``producer`` or ``cluster``.
        name: Name of the resource.
        allowed: Whether it was allowed; an action that was allowed may have failed, see ``outcome``.
        outcome: ``OK``, or the code of the error.
        group: Replica group of the node; empty for a name server.
        node: Id of the node or name server.
        term: Raft term.
        index: Index of the last entry applied then.
        seq: Number of the record at its node.
        reason: Why it was refused: ``denied``, ``wrong_credentials``, ``no_credentials``, ``no_such_user``, ``other_cluster`` or
            ``anothers_name``; empty otherwise.
        count: How many refusals it sums up; 0 when it is about one.
        before: What there was before a change; None when nothing was or nothing is shown.
        after: What there was after it.
    """

    at: str
    user: str
    address: str
    action: str
    resource: str
    name: str
    allowed: bool
    outcome: str
    group: str
    node: str
    term: int = 0
    index: int = 0
    seq: int = 0
    reason: str = ""
    count: int = 0
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AuditLog:
    """Records of the audit log.

    Attributes:
        records: Oldest first.
        unanswered: Nodes and name servers that did not answer, by id or address, and why: their records are missing.
        positions: Where each node's and name server's log was read to, by address, for the next call.
    """

    records: tuple[AuditRecord, ...]
    unanswered: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
