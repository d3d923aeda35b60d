"""Quotas: how much users, groups and topics may send and read a second.  Set in every replica group, so that each leader knows them."""

from __future__ import annotations

from dledger_client.admin.calls import Listed, Subject
from dledger_client.admin.quotas import ClusterQuota, QuotaKind, quotas_of
from dledger_client.aio.diagnostics_admin import all_addresses, answers_at
from dledger_client.runtime.argument_ranges import MAX_OFFSET, check_encodable, within
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import UnaryMethod


class QuotaAdmin(Subject):
    """Quotas; use ``Admin``."""

    async def set_quota(
        self,
        kind: QuotaKind,
        name: str,
        *,
        produce_bytes: int | None = None,
        produce_messages: int | None = None,
        fetch_bytes: int | None = None,
        fetch_messages: int | None = None,
        unacknowledged_bytes: int | None = None,
        connections: int | None = None,
    ) -> None:
        """Set how much may be sent and read a second, in place of the quota that the name has.

        Who exceeds it waits; only connections are refused.

        Args:
            kind: ``user``, ``producer-group``, ``consumer-group`` or ``topic``.
            name: Its name; ``*`` for each one of the kind that has no quota of its own.
            produce_bytes: Bytes of messages a second, as they are stored.  Default: not limited.
            produce_messages: Messages a second.  Default: not limited.
            fetch_bytes: Bytes that are read a second.  Default: not limited.
            fetch_messages: Messages that are read a second.  Default: not limited.
            unacknowledged_bytes: Of a user: bytes that may be sent and not acknowledged at a time.  Default: not limited.
            connections: Of a user: connections to one node, beyond which new ones are refused with BUSY.  Default: not limited.

        A name without any limit is exempt from the quota for ``*``.

        Raises:
            InvalidArgumentError: No such kind, a name that nothing of the kind can have, or a limit outside its range.

        Examples:
            >>> await admin.set_quota("topic", "orders", produce_bytes=10 << 20)
        """
        limits = {
            "produce_bytes": produce_bytes,
            "produce_messages": produce_messages,
            "fetch_bytes": fetch_bytes,
            "fetch_messages": fetch_messages,
            "unacknowledged_bytes": unacknowledged_bytes,
            "connections": connections,
        }
        given = {limit: value for limit, value in limits.items() if value is not None}
        within(1, MAX_OFFSET, **given)
        await self._at_all_leaders(methods.SET_QUOTA, kind, name, given)

    async def delete_quota(self, kind: QuotaKind, name: str) -> None:
        """Delete a quota.

        Args:
            kind: ``user``, ``producer-group``, ``consumer-group`` or ``topic``.
            name: As it was set.

        Raises:
            InvalidArgumentError: There is no such quota.

        Examples:
            >>> await admin.delete_quota("topic", "orders")
        """
        if not await self._at_all_leaders(methods.DELETE_QUOTA, kind, name, {}):
            raise InvalidArgumentError(f"there is no quota for {kind} {name!r}")

    async def list_quotas(self) -> Listed[ClusterQuota]:
        """All quotas, with what names use of them and who has to wait.  ``unanswered`` of the list names replica groups without an answer.

        Examples:
            >>> throttled = [use.name for quota in await admin.list_quotas() for use in quota.used if use.waits_s]
        """
        answers = await self._calls.ask_leaders(methods.LIST_QUOTAS, admin_pb2.ListQuotasRequest())
        addresses = await all_addresses(self._calls)
        at_nodes = await answers_at(self._calls, addresses, methods.LIST_QUOTAS, admin_pb2.ListQuotasRequest(any_replica=True))
        return Listed(quotas_of(answers.some(), at_nodes), answers.unanswered)

    async def _at_all_leaders(
        self, method: UnaryMethod[admin_pb2.QuotaRule, admin_pb2.QuotaReply], kind: str, name: str, limits: dict[str, int]
    ) -> bool:
        """Make a change, which may be repeated, in every replica group; whether one of them had the quota."""
        check_encodable(kind=kind, name=name)
        answers = await self._calls.ask_leaders(method, admin_pb2.QuotaRule(kind=kind, name=name, limits=limits))
        for group, silent in sorted(answers.unanswered.items()):
            changed = ", ".join(answers.of_group) or "no replica group"
            text = f"{silent.message}; the quota for {kind} {name} is changed in {changed}, not in {group}: repeat it"
            raise type(silent)(text, **silent.details)
        return any(answer.existed for answer in answers.of_group.values())
