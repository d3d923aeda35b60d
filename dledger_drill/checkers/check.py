"""All checkers over a history.

Memory does not grow with the drill: operations of a topic are judged and forgotten when it is deleted (an ``admin`` operation
``delete_topic``); what is kept of the whole drill is a few operations a round.  Two more operations of administrators matter:
``alter_topic`` (its queues change) and ``subscribe`` (consumer group ``name`` is to be given everything in ``topic``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from dledger_drill.checkers.consumption import check_consumption
from dledger_drill.checkers.delays import check_delays
from dledger_drill.checkers.delivery import check_delivery
from dledger_drill.checkers.leaks import LeakCheck
from dledger_drill.checkers.model import Limits, Verdict, Violation
from dledger_drill.checkers.offsets import check_offsets
from dledger_drill.checkers.orderly import check_orderly
from dledger_drill.checkers.outages import OutageCheck
from dledger_drill.checkers.reads import check_reads
from dledger_drill.checkers.replicas import LeaderCheck, ReplicaCheck
from dledger_drill.checkers.spark import check_spark
from dledger_drill.checkers.topic import TopicHistory
from dledger_drill.checkers.transactions import check_transactions
from dledger_drill.history.records import ALL, PROBE, Operation, OperationKind, Outcome

__all__ = ["HistoryCheck", "Limits", "check_all"]

K = OperationKind


def check_all(operations: Iterable[Operation], limits: Limits | None = None) -> Verdict:
    """Judge a history whose operations come in the order in which they began."""
    check = HistoryCheck(limits or Limits())
    for operation in operations:
        check.take(operation)
    return check.finish()


class HistoryCheck:
    """The checkers while a history is read.  ``verdict`` has what was found so far; it is whole after ``finish``."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.verdict = limits, Verdict()
        self._topics: dict[str, TopicHistory] = {}
        self._pauses: list[Operation] = []
        self._counts, self._found = Counter[str](), Counter[str]()
        self._leaders, self._replicas = LeaderCheck(), ReplicaCheck(limits)
        self._leaks, self._outages = LeakCheck(limits), OutageCheck(limits)

    def take(self, operation: Operation) -> None:
        self._counts[f"{operation.kind} {operation.outcome}"] += 1
        match operation.kind:
            case K.PAUSE:
                self._pauses.append(operation)
                if ALL in operation.data["processes"]:
                    self._outages.pauses.append(operation)
            case K.FAULT:
                self._outages.faults.append(operation)
            case K.LEADER:
                self._report(self._leaders.take(operation))
            case K.REPLICA:
                self._replicas.take(operation)
            case K.RESOURCE:
                self._leaks.take(operation, leads=self._leaders.leads(operation.data["node"]))
            case K.ADMIN:
                self._administer(operation)
            case _:
                self._of_topic(operation)

    def give_up(self, rounds: Iterable[int]) -> None:
        """Their audit did not come to its end, or was not read: what topics that are not judged yet hold is not known."""
        for topic in self._topics.values():
            topic.forget_audit()
        self.verdict.not_judged.update(rounds)
        self._judge_all()

    def _judge_all(self) -> None:
        for name in list(self._topics):
            self._judge(name)

    def finish(self) -> Verdict:
        self._judge_all()
        self._report(self._replicas.finish())
        self._report(self._leaks.finish())
        self.verdict.outages, not_recovered = self._outages.finish()
        self._report(not_recovered)
        self.verdict.counts = dict(self._counts)
        self.verdict.violations.sort(key=lambda violation: violation.round)
        return self.verdict

    def _administer(self, operation: Operation) -> None:
        action, name = operation.data["action"], operation.data["name"]
        if operation.outcome is Outcome.FAILED:
            return
        if action == "delete_topic":
            self._judge(name)
        elif action == "alter_topic":
            self._topic(name).altered = True
        elif action == "subscribe":
            self._topic(operation.data["topic"]).subscribed.add(name)

    def _of_topic(self, operation: Operation) -> None:
        if operation.kind is K.SEND and operation.process.startswith(PROBE):
            self._outages.take(operation)
        self._topic(operation.data["topic"]).take(operation)

    def _topic(self, name: str) -> TopicHistory:
        if name not in self._topics:
            self._topics[name] = TopicHistory(name)
        return self._topics[name]

    def _judge(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is None:
            return
        self._report(check_delivery(topic))
        self._report(check_consumption(topic))
        self._report(check_spark(topic))
        self._report(check_transactions(topic))
        self._report(check_delays(topic, self._outages.faults, self._outages.gaps, self.limits))
        self._report(check_orderly(topic, self._pauses))
        self._report(check_reads(topic))
        self._report(check_offsets(topic))

    def _report(self, violations: Iterable[Violation]) -> None:
        self.verdict.violations += self._bounded(violations)

    def _bounded(self, violations: Iterable[Violation]) -> Iterator[Violation]:
        for violation in violations:
            self._found[violation.kind] += 1
            if self._found[violation.kind] <= self.limits.reported:
                yield violation
