"""Open transactions as the leaders see them, and ending one by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dledger_client.admin.calls import ClusterCalls, Listed
from dledger_client.cluster.responses import garbage
from dledger_client.deprecation import RenamedAttribute
from dledger_client.transactions.resolver import TransactionOutcome, TransactionState
from dledger_wire._pb import transaction_pb2
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A half message that is neither committed nor rolled back.

    Attributes:
        transaction_id: The transaction.
        producer_group: The producer group that began it.
        topic: The topic it writes to.
        queue_id: The queue it writes to.
        replica_group: The replica group that stores it.
        half_offset: Its offset among the half messages.
        stored_ms: When it was stored, milliseconds since 1970.
        check_times: How often producers were asked for its state.
        checked_ms: When they were asked last, milliseconds since 1970; 0 when they were not asked yet.
    """

    transaction_id: str
    producer_group: str
    topic: str
    queue_id: int
    replica_group: str
    half_offset: int
    stored_ms: int
    check_times: int
    checked_ms: int
    group = RenamedAttribute("replica_group")


@dataclass(frozen=True, slots=True)
class GroupTransactions:
    """The transactions of one replica group.

    Attributes:
        replica_group: The replica group.
        open: How many are open, of all producer groups.
        parked: How many were moved to TRANS_CHECK_MAX_TIME_TOPIC because no producer knew their state.
        transactions: The oldest open ones.
        producers: Producer group -> how many of its producers are connected and can be asked.
    """

    replica_group: str
    open: int
    parked: int
    transactions: list[OpenTransaction]
    producers: Mapping[str, int]
    group = RenamedAttribute("replica_group")
    attending = RenamedAttribute("producers")


async def describe_transactions(
    calls: ClusterCalls, producer_group: str, max_transactions: int, *, partial: bool
) -> Listed[GroupTransactions]:
    """By replica group; of all producer groups when none is named."""
    request = transaction_pb2.DescribeTransactionsRequest(producer_group=producer_group, max_transactions=max_transactions)
    answers = await calls.ask_leaders(methods.DESCRIBE_TRANSACTIONS, request)
    found: Listed[GroupTransactions] = Listed([], answers.unanswered)
    for replica_group, answer in (answers.some() if partial else answers.complete()).items():
        rows = [_transaction(each, replica_group) for each in answer.transactions]
        producers = {each.producer_group: each.producers for each in answer.attending}
        found.append(GroupTransactions(replica_group, answer.open, answer.parked, rows, producers))
    return found


def _transaction(found: transaction_pb2.OpenTransaction, replica_group: str) -> OpenTransaction:
    return OpenTransaction(
        transaction_id=found.transaction_id,
        producer_group=found.producer_group,
        topic=found.topic,
        queue_id=found.queue_id,
        replica_group=replica_group,
        half_offset=found.half_offset,
        stored_ms=found.stored_ms,
        check_times=found.check_times,
        checked_ms=found.checked_ms,
    )


async def resolve_transaction(calls: ClusterCalls, transaction: OpenTransaction, state: TransactionState) -> TransactionOutcome:
    """End ``transaction``; the outcome that it has then, which a producer may have decided before."""
    end = transaction_pb2.TransactionEnd(
        half_offset=transaction.half_offset, transaction_id=transaction.transaction_id, resolution=state.value
    )
    request = transaction_pb2.EndTransactionsRequest(producer_group=transaction.producer_group, ends=[end])
    answer = await calls.ask_leader(transaction.replica_group, methods.END_TRANSACTIONS, request)
    if len(answer.results) != 1:
        raise garbage(transaction.replica_group, f"{len(answer.results)} results for one transaction")
    result = answer.results[0]
    if result.HasField("error"):
        raise from_detail(result.error)
    return TransactionOutcome(result.outcome)
