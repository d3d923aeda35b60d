"""The audit log: what nodes and name servers record of administrative actions and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dledger_client.admin.ask_nodes import known_nodes
from dledger_client.admin.audit import AuditLog, AuditRecord
from dledger_client.admin.calls import ClusterCalls, Subject
from dledger_client.cluster.responses import refusals
from dledger_client.runtime.argument_ranges import MAX_U32, check_kind, check_text, within
from dledger_wire import strict_json
from dledger_wire._pb import security_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.rpc import methods

NODE_TIMEOUT_S = 5.0
_TEXTS = ("at", "user", "address", "action", "resource", "name", "outcome", "group", "node", "reason")


class AuditAdmin(Subject):
    """The audit log; use ``Admin``."""

    async def audit_log(
        self,
        count: int = 100,
        *,
        user: str = "",
        action: str = "",
        denied: bool = False,
        node: str = "",
        after: Mapping[str, int] | None = None,
    ) -> AuditLog:
        """The newest records of administrative actions and refusals, of all nodes and name servers.

        Args:
            count: How many at most.
            user: Only what this user did.  Default: all users.
            action: Only actions with this text in them.  Default: all.
            denied: Only refusals.
            node: Only what this node or name server wrote, by id or address.  Default: all of them.
            after: Only what came after these ``positions`` of an earlier call.  Default: from the newest backwards.

        Raises:
            PermissionDeniedError: The caller does not administer the cluster.
            InvalidArgumentError: There is no such node.
            DledgerError: None of them has records to show: why the first one that was asked has not.

        Examples:
            >>> for record in (await admin.audit_log(20, denied=True)).records:
            ...     print(record.at, record.user, record.address, record.reason)
        """
        within(1, MAX_U32, count=count)
        check_text(user=user, action=action)
        if after is not None:
            check_kind(Mapping, "after", after)
        asked = await _addresses(self._calls)
        if node:
            asked = {address: name for address, name in asked.items() if node in (name, address)}
            if not asked:
                raise InvalidArgumentError(f"there is no node or name server {node!r}")
        positions = dict(after or {})
        request = security_pb2.AuditTailRequest(max_records=count, user=user, action=action, denied=denied)
        found = await asyncio.gather(*(_ask(self._calls, address, request, positions.get(address, 0)) for address in asked))
        failed = [each for each in found if isinstance(each, DledgerError)]
        refused = refusals(failed)
        if len(failed) == len(found) and (refused or not positions):  # a caller that reads on waits for them
            raise (refused or failed)[0]
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
