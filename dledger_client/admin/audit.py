"""The audit log of the cluster: what every node and name server wrote of administrative actions and refusals, merged by time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dledger_client.admin.ask_nodes import known_nodes
from dledger_client.admin.calls import ClusterCalls
from dledger_client.runtime.argument_ranges import MAX_U32, check_kind, check_text, within
from dledger_wire import strict_json
from dledger_wire._pb import security_pb2
from dledger_wire.errors import AuthenticationFailedError, DledgerError, InvalidArgumentError, PermissionDeniedError
from dledger_wire.rpc import methods

NODE_TIMEOUT_S = 5.0
_TEXTS = ("at", "user", "address", "action", "resource", "name", "outcome", "group", "node", "reason")


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record of the audit log of a node or a name server.

    Attributes:
        at: When, as ISO time in UTC.
        user: Who; ``dledger://...`` for a node or a name server, empty for a client without credentials.
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


async def audit_log(
    calls: ClusterCalls, count: int, user: str, action: str, node: str, after: Mapping[str, int] | None, *, denied: bool
) -> AuditLog:
    """What all of them have, or one."""
    within(1, MAX_U32, count=count)
    check_text(user=user, action=action)
    if after is not None:
        check_kind(Mapping, "after", after)
    asked = await _addresses(calls)
    if node:
        asked = {address: name for address, name in asked.items() if node in (name, address)}
        if not asked:
            raise InvalidArgumentError(f"there is no node or name server {node!r}")
    positions = dict(after or {})
    request = security_pb2.AuditTailRequest(max_records=count, user=user, action=action, denied=denied)
    found = await asyncio.gather(*(_ask(calls, address, request, positions.get(address, 0)) for address in asked))
    failed = [each for each in found if isinstance(each, DledgerError)]
    refusals = [each for each in failed if isinstance(each, AuthenticationFailedError | PermissionDeniedError)]
    if len(failed) == len(found) and (refusals or not positions):  # who reads on waits for them
        raise (refusals or failed)[0]
    records: list[AuditRecord] = []
    unanswered = {}
    for (address, name), outcome in zip(asked.items(), found, strict=True):
        if isinstance(outcome, DledgerError):
            unanswered[name] = str(outcome.details.get("reason") or outcome.message)
            continue
        try:
            read = [_record(strict_json.parse(text)) for text in outcome.records]
        except (ValueError, TypeError, AttributeError, KeyError):
            unanswered[name] = "what it answered are no records"
            continue
        if read:
            positions[address] = read[-1].seq
        records += read
    records.sort(key=lambda record: (record.at, record.node, record.seq))
    return AuditLog(tuple(records[-count:]), unanswered, positions)


async def _addresses(calls: ClusterCalls) -> dict[str, str]:
    """Of nodes and name servers, with their ids where they are known."""
    nodes = known_nodes(await calls.replica_groups())
    found = {address: node_id for group in nodes.values() for node_id, address in group.items()}
    servers = await calls.router.name_server_addresses()
    return found | {address: address for address in servers if address not in found}


async def _ask(
    calls: ClusterCalls, address: str, request: security_pb2.AuditTailRequest, after: int
) -> security_pb2.AuditTailReply | DledgerError:
    own = security_pb2.AuditTailRequest()
    own.CopyFrom(request)
    own.after = after
    try:
        return await methods.AUDIT_TAIL.call(calls.router.channel(address), own, timeout_s=min(NODE_TIMEOUT_S, calls.timeout_ms / 1000))
    except DledgerError as error:
        return error


def _record(row: Mapping[str, Any]) -> AuditRecord:
    fields: dict[str, Any] = {name: str(row.get(name, "")) for name in _TEXTS}
    fields |= {name: int(row.get(name, 0)) for name in ("term", "index", "seq", "count")}
    fields |= {name: row[name] for name in ("before", "after") if isinstance(row.get(name), dict)}
    return AuditRecord(allowed=bool(row.get("allowed")), **fields)
