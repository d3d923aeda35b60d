"""Open transactions, which are replicated, with the producers that can be asked, which leaders know; and ending one by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dledger_client.admin.calls import ClusterCalls, Listed, Sources
from dledger_client.cluster.responses import garbage
from dledger_client.runtime.argument_ranges import check_kind
from dledger_client.transactions.resolver import TransactionOutcome, TransactionState
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import DledgerError
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


_Answer: TypeAlias = transaction_pb2.DescribeTransactionsResponse


async def describe_transactions(
    calls: ClusterCalls, producer_group: str, max_transactions: int, *, partial: bool
) -> Listed[GroupTransactions]:
    """By replica group; of all producer groups when none is named."""
    request = transaction_pb2.DescribeTransactionsRequest(
        producer_group=producer_group, max_transactions=max_transactions, any_replica=calls.spares_leader
    )
    attending = transaction_pb2.DescribeTransactionsRequest(producer_group=producer_group, max_transactions=1, only_attending=True)
    sources, without_producers = Sources(), dict[str, DledgerError]()

    async def ask(group: str) -> tuple[_Answer, _Answer]:
        told = await calls.read(group, methods.DESCRIBE_TRANSACTIONS, request, sources)
        if not calls.spares_leader or sources[group].leader:
            return told, told
        found = await calls.leader_only_or(group, methods.DESCRIBE_TRANSACTIONS, attending, _Answer(), without_producers, partial=partial)
        return told, found

    answers = await calls.of_all(ask)
    found: Listed[GroupTransactions] = Listed([], answers.unanswered | without_producers, sources)
    for replica_group, (answer, at_leader) in (answers.some() if partial else answers.complete()).items():
        rows = [_transaction(each, replica_group) for each in answer.transactions]
        producers = {each.producer_group: each.producers for each in at_leader.attending}
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
    check_kind(OpenTransaction, "transaction", transaction)
    check_kind(TransactionState, "state", state)
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
