"""What the workload of transactions notes and waits for, with a producer that gives the answers of a test."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dledger_client.aio import TransactionProducer
from dledger_client.types import TransactionOutcome, TransactionState
from dledger_drill.history.reader import read_history
from dledger_drill.history.records import Operation, Outcome
from dledger_drill.history.writer import HistoryWriter
from dledger_drill.workloads import transactional
from dledger_drill.workloads.base import Surroundings
from dledger_drill.workloads.bodies import body_of
from dledger_drill.workloads.recorder import Recorder
from dledger_drill.workloads.spec import LoadSpec
from dledger_drill.workloads.transactional import Transactional
from dledger_wire.errors import OutcomeUnknownError

VALUE = "transactional-0/1"


class Producer:
    """Prepares; ``told`` is the answer of each end, None: there is none."""

    half = SimpleNamespace(replica_group="g0", queue_id=0)

    def __init__(self, told: TransactionOutcome | None) -> None:
        self._told = told

    async def prepare(self, _message: object) -> Producer:
        return self

    async def end(self, _state: TransactionState) -> TransactionOutcome:
        if self._told is None:
            raise OutcomeUnknownError("no answer")
        return self._told


def one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, told: TransactionOutcome | None, *, rolled_back: float = 0.0
) -> tuple[Operation, int, TransactionState]:
    """Its operation, how much consumers still have to be given, and what a check is answered."""
    monkeypatch.setattr(transactional, "LEFT_OPEN", 0.0)
    monkeypatch.setattr(transactional, "ROLLED_BACK", rolled_back)
    with HistoryWriter(folder / "h.jsonl") as writer:
        recorder = Recorder(writer)
        workload = Transactional(Surroundings(LoadSpec("", ("g0",)), recorder), "transactional-0")
        recorder.undelivered.subscribe(workload.topic, "c")
        asyncio.run(workload._one(cast(TransactionProducer, Producer(told))))
        answer = workload._check(cast(Any, SimpleNamespace(body=body_of(VALUE))))
    (operation,) = read_history(folder / "h.jsonl")
    return operation, recorder.undelivered.count, answer


@pytest.mark.parametrize("told", [None, TransactionOutcome.OPEN])
def test_a_commit_that_was_not_confirmed_is_left_to_the_check(
    told: TransactionOutcome | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation, undelivered, answer = one(tmp_path, monkeypatch, told)
    assert (operation.outcome, operation.data["by"], operation.data["group"]) == (Outcome.UNKNOWN, "check", "g0")
    assert (undelivered, answer) == (1, TransactionState.COMMIT)


def test_nobody_waits_for_a_rollback_that_was_not_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, undelivered, answer = one(tmp_path, monkeypatch, None, rolled_back=1.0)
    assert (operation.data["by"], undelivered, answer) == ("check", 0, TransactionState.ROLLBACK)


def test_a_confirmed_commit_is_the_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, undelivered, _ = one(tmp_path, monkeypatch, TransactionOutcome.COMMITTED)
    assert (operation.outcome, operation.data["by"], undelivered) == (Outcome.OK, "client", 1)
