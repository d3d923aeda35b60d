"""What the recorder counts, how errors become outcomes, and what consumers were not given."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from dledger_client.types import TransactionOutcome
from dledger_drill.history.reader import read_history
from dledger_drill.history.records import OperationKind, Outcome
from dledger_drill.history.writer import HistoryWriter
from dledger_drill.workloads.bodies import body_of, consecutive_runs, of_queues
from dledger_drill.workloads.recorder import Recorder, Undelivered, outcome_of
from dledger_drill.workloads.transactional import outcome_of_end
from dledger_wire.errors import (
    BusyError,
    DeadlineExceededError,
    DledgerError,
    NotSentError,
    OutcomeUnknownError,
    ProducerFencedError,
    UnreachableError,
)
from tests.unit.drill.checkers.operations import deliver
from tests.waiting import LIMIT_S


@pytest.mark.parametrize("error", [OutcomeUnknownError, UnreachableError, DeadlineExceededError])
def test_errors_that_leave_it_open(error: type[DledgerError]) -> None:
    assert outcome_of(error("x")) is Outcome.UNKNOWN


@pytest.mark.parametrize("error", [NotSentError, BusyError, ProducerFencedError])
def test_errors_that_say_nothing_was_stored(error: type[DledgerError]) -> None:
    assert outcome_of(error("x")) is Outcome.FAILED


@pytest.mark.parametrize(
    ("end", "told", "outcome"),
    [
        ("commit", TransactionOutcome.COMMITTED, Outcome.OK),
        ("rollback", TransactionOutcome.ROLLED_BACK, Outcome.OK),
        ("commit", TransactionOutcome.ROLLED_BACK, Outcome.FAILED),
        ("rollback", TransactionOutcome.COMMITTED, Outcome.FAILED),
        ("commit", TransactionOutcome.PARKED, Outcome.UNKNOWN),
        ("rollback", TransactionOutcome.ENDED, Outcome.UNKNOWN),
    ],
)
def test_a_transaction_ended_as_the_cluster_says(end: str, told: TransactionOutcome, outcome: Outcome) -> None:
    assert outcome_of_end(end, told) is outcome


def test_each_consumer_group_has_to_be_given_each_value_in_whatever_order() -> None:
    undelivered = Undelivered()
    undelivered.subscribe("t", "a")
    undelivered.subscribe("t", "b")
    undelivered.expect("t", "p/1")
    undelivered.expect("other", "p/2")
    assert undelivered.count == 2
    undelivered.delivered("t", "a", "p/1")
    undelivered.delivered("t", "a", "p/3")  # before its acknowledgement
    undelivered.expect("t", "p/3")
    assert undelivered.examples() == ["p/1 (b)", "p/3 (b)"]


async def _wait_while_delivering(undelivered: Undelivered) -> None:
    waiting = asyncio.create_task(undelivered.wait_for_none(LIMIT_S))
    for value in ("p/1", "p/2"):
        await asyncio.sleep(0)
        assert not waiting.done()
        undelivered.delivered("t", "a", value)
    await asyncio.wait_for(waiting, 10)


def test_waiting_ends_with_the_last_delivery() -> None:
    undelivered = Undelivered()
    undelivered.subscribe("t", "a")
    undelivered.expect("t", "p/1")
    undelivered.expect("t", "p/2")
    asyncio.run(_wait_while_delivering(undelivered))


def test_waiting_ends_when_nothing_is_delivered_any_more() -> None:
    undelivered = Undelivered()
    undelivered.subscribe("t", "a")
    undelivered.expect("t", "p/1")
    with pytest.raises(TimeoutError):
        asyncio.run(undelivered.wait_for_none(0.01))


def test_a_report_has_what_happened_since_the_one_before(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "h.jsonl") as writer:
        recorder = Recorder(writer)
        recorder.round = 4
        data = {"topic": "t", "value": "p/1", "key": None, "idempotent": True, "group": "g1", "queue": 0, "offset": 0}
        recorder.record("p", OperationKind.SEND, time.monotonic_ns() - 5_000_000, Outcome.OK, data)
        recorder.record("p", OperationKind.SEND, time.monotonic_ns(), Outcome.UNKNOWN, data | {"value": "p/2"}, of_round=3)
        report = recorder.report()
        assert (report["acknowledged"], report["round"]) == ({"g1": 1}, 4)
        assert recorder.report()["acknowledged"] == {}
    assert [each.round for each in read_history(tmp_path / "h.jsonl")] == [4, 3]


def test_rows_become_runs_of_consecutive_offsets() -> None:
    rows = [("g0", 1, 5, "e"), ("g0", 1, 3, "c"), ("g0", 1, 4, "d"), ("g0", 1, 8, "h"), ("g1", 0, 0, "a"), ("g1", 0, 0, "a")]
    queues = of_queues([(*place, bytearray(body_of(value))) for *place, value in rows])
    assert consecutive_runs(queues["g0", 1]) == [(3, ["c", "d", "e"]), (8, ["h"])]
    assert consecutive_runs(queues["g1", 0]) == [(0, ["a"]), (0, ["a"])]


def test_what_was_sent_back_has_to_be_given_again(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "h.jsonl") as writer:
        recorder = Recorder(writer)
        recorder.undelivered.subscribe("t", "c")
        recorder.undelivered.expect("t", "p/1")
        recorder.write([deliver("p/1", 4, 5, 0, sent_back=True)])
        assert recorder.undelivered.examples() == ["p/1 (c)"]
        recorder.write([deliver("p/1", 6, 7, 77, redelivered=True)])
        assert recorder.undelivered.count == 0
