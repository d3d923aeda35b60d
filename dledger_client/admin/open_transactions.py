"""Transactions as masters see them: which are open, who attends to be asked, how many were parked.

Owns the call and its answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client.cluster.metadata import Router
from dledger_client.cluster.responses import parse
from dledger_wire._pb import transaction_pb2
from dledger_wire.rpc import methods


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A half message without an end; ``checked_ms`` 0: nobody was asked about it yet."""

    transaction_id: str
    producer_group: str
    topic: str
    queue_id: int
    group: str
    half_offset: int
    stored_ms: int
    check_times: int
    checked_ms: int


@dataclass(frozen=True, slots=True)
class GroupTransactions:
    """Of one replica group: ``open`` counts all, ``transactions`` has the oldest; ``attending`` producers by their group."""

    group: str
    open: int
    parked: int
    transactions: list[OpenTransaction]
    attending: dict[str, int]


async def describe_transactions(router: Router, producer_group: str, most: int, deadline_ms: int) -> list[GroupTransactions]:
    """What is open in each replica group, of one producer group or (none named) of all."""
    request = transaction_pb2.DescribeTransactionsRequest(producer_group=producer_group, max_transactions=most).SerializeToString()
    found = []
    for group in sorted(await router.ensure_groups(deadline_ms)):
        answer = await router.call_leader(group, methods.DESCRIBE_TRANSACTIONS.path, request, deadline_ms=deadline_ms)
        reply = parse(transaction_pb2.DescribeTransactionsResponse, answer, group)
        rows = [
            OpenTransaction(
                each.transaction_id,
                each.producer_group,
                each.topic,
                each.queue_id,
                group,
                each.half_offset,
                each.stored_ms,
                each.check_times,
                each.checked_ms,
            )
            for each in reply.transactions
        ]
        attending = {each.producer_group: each.producers for each in reply.attending}
        found.append(GroupTransactions(group, reply.open, reply.parked, rows, attending))
    return found
