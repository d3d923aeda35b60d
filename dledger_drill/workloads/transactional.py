"""Transactions: committed, rolled back, or left open until the broker asks."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from dledger_client.aio import TransactionProducer
from dledger_client.types import Message, ReceivedMessage, TransactionOutcome, TransactionState
from dledger_drill.history.records import OperationKind, Outcome
from dledger_drill.workloads.base import Surroundings, Workload
from dledger_drill.workloads.bodies import body_of, value_of
from dledger_drill.workloads.recorder import outcome_of
from dledger_wire.errors import DledgerError

LEFT_OPEN = 0.1
ROLLED_BACK = 0.3
_ENDS = {"commit": TransactionState.COMMIT, "rollback": TransactionState.ROLLBACK}
_BY_ANSWER = {
    TransactionOutcome.COMMITTED: ("commit", "rollback"),
    TransactionOutcome.ROLLED_BACK: ("rollback", "commit"),
}


@dataclass(slots=True)
class _Planned:
    """A transaction that has no end yet, or whose end was not confirmed: what a check is answered."""

    end: str
    invoked_ns: int
    round: int
    data: dict[str, Any]
    prepared: bool = False
    recorded: bool = False


def outcome_of_end(end: str, answered: TransactionOutcome) -> Outcome:
    """What the cluster answered when an end was asked for: OK when it is that one, FAILED when it is the other one."""
    done, refused = _BY_ANSWER.get(answered, ("", ""))
    return Outcome.OK if end == done else Outcome.FAILED if end == refused else Outcome.UNKNOWN


class Transactional(Workload):
    """One transaction after the other.  Which end each is to have is drawn before it begins, and every check gets this answer."""

    stays = True

    def __init__(self, around: Surroundings, process: str) -> None:
        super().__init__(around)
        self.process = process
        self.topic = self.spec.topic("transactional")
        self._draw = random.Random(f"{self.spec.seed}/{process}")
        self._number = self.spec.first_number
        self._planned: dict[str, _Planned] = {}

    async def run(self) -> None:
        """The producer stays until the process ends: it is asked about what was left open, while consumers are drained."""
        async with TransactionProducer(
            self.spec.bootstrap, f"{self.spec.prefix}-transactions", self._check, check_topics=[self.topic], **self.spec.security
        ) as producer:
            producer.start()
            await self.paced(self.spec.rate("transactional"), lambda: self._one(producer))
            await self._closing.wait()
        for planned in self._planned.values():
            if not planned.recorded:
                self._record(planned, Outcome.UNKNOWN)

    async def _one(self, producer: TransactionProducer) -> None:
        value, planned, by_check = self._plan()
        try:
            transaction = await producer.prepare(Message(self.topic, body_of(value)))
        except DledgerError as error:
            self._record(planned, outcome_of(error))
            if not error.outcome_unknown:
                del self._planned[value]
            return
        planned.prepared = True
        planned.data |= {"group": transaction.half.replica_group, "queue": transaction.half.queue_id}
        if by_check:
            if planned.end == "commit":
                self.recorder.undelivered.expect(self.topic, value)
            return
        try:
            answered = await transaction.end(_ENDS[planned.end])
        except DledgerError:
            answered = TransactionOutcome.OPEN
        outcome = outcome_of_end(planned.end, answered)
        if answered is TransactionOutcome.OPEN:  # stored and without a confirmed end: a check gives it this end
            planned.data["by"] = "check"
            self._record(planned, outcome)
            if planned.end == "commit":
                self.recorder.undelivered.expect(self.topic, value)
            return
        self._record(planned, outcome)
        del self._planned[value]
        if planned.end == "commit" and outcome is Outcome.OK:
            self.recorder.undelivered.expect(self.topic, value)

    def _plan(self) -> tuple[str, _Planned, bool]:
        self._number += 1
        value = f"{self.process}/{self._number}"
        end = "rollback" if self._draw.random() < ROLLED_BACK else "commit"
        by_check = self._draw.random() < LEFT_OPEN
        data: dict[str, Any] = {"topic": self.topic, "value": value, "end": end, "by": "check" if by_check else "client"}
        planned = self._planned[value] = _Planned(end, time.monotonic_ns(), self.recorder.round, data)
        return value, planned, by_check

    def _check(self, message: ReceivedMessage) -> TransactionState:
        """Any transaction of this process whose half is stored; one without a plan is of an earlier process, whose history is closed."""
        value = value_of(message.body)
        planned = self._planned.get(value)
        if planned is None:
            return TransactionState.UNKNOWN
        if planned.prepared and planned.data["by"] == "check" and not planned.recorded:
            self._record(planned, Outcome.OK)
        return _ENDS[planned.end]

    def _record(self, planned: _Planned, outcome: Outcome) -> None:
        planned.recorded = True
        self.recorder.record(self.process, OperationKind.TRANSACTION, planned.invoked_ns, outcome, planned.data, of_round=planned.round)
