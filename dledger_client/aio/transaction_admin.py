"""Open transactions, which are replicated, with the producers that can be asked, which leaders know; and ending one by hand."""

from __future__ import annotations

from typing import TypeAlias

from dledger_client.admin.calls import Listed, Sources, Subject
from dledger_client.admin.open_transactions import GroupTransactions, OpenTransaction
from dledger_client.cluster.responses import object_of
from dledger_client.runtime.argument_ranges import MAX_U32, check_kind, within
from dledger_client.transactions.resolver import TransactionOutcome, TransactionResolver, TransactionState
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods

_Answer: TypeAlias = transaction_pb2.DescribeTransactionsResponse


class TransactionAdmin(Subject):
    """Transactions that are open; use ``Admin``."""

    async def transactions(
        self, producer_group: str = "", *, max_transactions: int = 100, partial: bool = False
    ) -> Listed[GroupTransactions]:
        """Transactions that are neither committed nor rolled back, by replica group.

        Args:
            producer_group: The producer group; empty for all.
            max_transactions: How many of the oldest to return of each replica group.
            partial: Leave out replica groups that do not answer; ``unanswered`` of the list says which.

        Examples:
            >>> open_now = sum(group.open for group in await admin.transactions())
        """
        within(0, MAX_U32, max_transactions=max_transactions)
        request = transaction_pb2.DescribeTransactionsRequest(
            producer_group=producer_group, max_transactions=max_transactions, any_replica=self._calls.spares_leader
        )
        attending = transaction_pb2.DescribeTransactionsRequest(producer_group=producer_group, max_transactions=1, only_attending=True)
        sources, without_producers = Sources(), dict[str, DledgerError]()

        async def ask(group: str) -> tuple[_Answer, _Answer]:
            answer = await self._calls.read(group, methods.DESCRIBE_TRANSACTIONS, request, sources)
            if not self._calls.spares_leader or sources[group].leader:
                return answer, answer
            found = await self._calls.leader_only_or(
                group, methods.DESCRIBE_TRANSACTIONS, attending, _Answer(), without_producers, partial=partial
            )
            return answer, found

        answers = await self._calls.of_all(ask)
        found: Listed[GroupTransactions] = Listed([], answers.unanswered | without_producers, sources)
        for replica_group, (answer, at_leader) in (answers.some() if partial else answers.complete()).items():
            rows = [object_of(OpenTransaction, each, replica_group=replica_group) for each in answer.transactions]
            producers = {each.producer_group: each.producers for each in at_leader.attending}
            found.append(GroupTransactions(replica_group, answer.open, answer.parked, rows, producers))
        return found

    async def resolve_transaction(self, transaction: OpenTransaction, state: TransactionState) -> TransactionOutcome:
        """Commit an open transaction or roll it back, in place of its producer; returns its outcome.

        The producer may have ended it before; then nothing changes.

        Args:
            transaction: One of those that ``transactions`` returned.
            state: COMMIT or ROLLBACK.

        Raises:
            InvalidArgumentError: The transaction does not belong to its producer group.

        Examples:
            >>> await admin.resolve_transaction(transaction, TransactionState.ROLLBACK)
        """
        check_kind(OpenTransaction, "transaction", transaction)
        check_kind(TransactionState, "state", state)
        ends = TransactionResolver(self._calls.router, transaction.replica_group, transaction.producer_group)
        try:
            return await ends.end(transaction.half_offset, transaction.transaction_id, state, self._calls.timeout_ms)
        finally:
            await ends.stop()
