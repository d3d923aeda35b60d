"""Quotas: operators set, delete and list them; what names use of them is each node's own."""

from __future__ import annotations

import math

from broker.context import ServiceContext
from broker.quotas.quotas import Limited
from broker.support.limits import in_slices
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.quotas import DeleteQuota, Limit, PutQuota, Quota, Subject

TIMEOUT_S = 5.0


class QuotaService:
    """Changes are made at the master."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def register(self, server: Server) -> None:
        methods.SET_QUOTA.serve(server, self.set)
        methods.DELETE_QUOTA.serve(server, self.delete)
        methods.LIST_QUOTAS.serve(server, self.list_quotas)

    async def set(self, request: admin_pb2.QuotaRule, _caller: CallContext) -> admin_pb2.QuotaReply:
        """Safe to repeat."""
        return admin_pb2.QuotaReply(existed=await self._context.command(PutQuota(quota=quota_of(request)), TIMEOUT_S))

    async def delete(self, request: admin_pb2.QuotaRule, _caller: CallContext) -> admin_pb2.QuotaReply:
        """Safe to repeat."""
        command = DeleteQuota(subject=request.kind, name=request.name)
        return admin_pb2.QuotaReply(existed=await self._context.command(command, TIMEOUT_S))

    async def list_quotas(self, request: admin_pb2.ListQuotasRequest, _caller: CallContext) -> admin_pb2.QuotaList:
        if not request.any_replica:
            self._context.require_master()
            await self._context.raft.read_barrier(TIMEOUT_S)
        own, quotas = self._context.settings, self._context.quotas
        reply = admin_pb2.QuotaList(group=own.group.name, node=own.node.id)
        async for rule in in_slices(self._context.store.quotas.rules()):
            limits = {limit.value: value for limit, value in rule.limits.items()}
            reply.rules.add(kind=rule.subject.value, name=rule.name, limits=limits)
        async for limited in in_slices(quotas.used_lately()):
            use = _use(limited, quotas.now_s())
            if limited.most_unacknowledged < math.inf and (sent := quotas.unacknowledged.get(limited.name)) is not None:
                use.used[Limit.UNACKNOWLEDGED_BYTES.value] = sent.size_bytes
            reply.used.append(use)
        return reply


def quota_of(rule: admin_pb2.QuotaRule) -> Quota:
    """InvalidArgumentError for words that are none of ours."""
    try:
        return Quota(Subject(rule.kind), rule.name, {Limit(limit): value for limit, value in rule.limits.items()})
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def _use(limited: Limited, now_s: float) -> admin_pb2.QuotaUse:
    return admin_pb2.QuotaUse(
        kind=limited.subject.value,
        name=limited.name,
        rule_name=limited.rule.name,
        used={limit.value: bucket.used_a_second(now_s) for limit, bucket in limited.buckets.items()},
        shares=limited.shares,
        waits_s=limited.debt_s(now_s),
        throttled_s=limited.throttled_s,
        throttled_requests=limited.throttled_requests,
    )
