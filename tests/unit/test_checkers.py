"""Every checker against a clean history and against one planted anomaly of each kind: a checker that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random

import pytest

from tests.checkers.append_log import Append, AppendId, LogHistory, Outcome, Poll, check
from tests.checkers.queues import (
    ConditionalAppend,
    OffsetCall,
    check_conditional_appends,
    check_group_offsets,
    check_redelivery,
    check_total_queue,
)
from tests.checkers.register import Operation, Verdict, check_registers


def message(sequence: int, producer: str = "p") -> AppendId:
    return AppendId(producer, sequence)


def clean_history() -> LogHistory:
    content = [(number, message(number)) for number in range(6)]
    return LogHistory(
        appends=[Append(message(n), n * 10.0, n * 10.0 + 5, Outcome.ACKED, n) for n in range(5)]
        + [Append(message(5), 50.0, 55.0, Outcome.UNKNOWN), Append(message(9), 60.0, 65.0, Outcome.FAILED)],
        polls=[Poll("c", "n1", 30.0, tuple(content[:2])), Poll("c", "n2", 70.0, tuple(content[2:6]))],
        drained={name: list(content) for name in ("n0", "n1", "n2")},
    )


def lose_the_middle(history: LogHistory) -> None:
    history.polls.clear()
    for replica in history.drained:
        history.drained[replica] = [(0, message(0)), (1, message(2)), (2, message(3))]


def one_replica_short(history: LogHistory) -> None:
    history.drained["n1"].pop()


def invent(history: LogHistory) -> None:
    for messages in history.drained.values():
        messages.append((6, message(77)))


def resurrect(history: LogHistory) -> None:
    for messages in history.drained.values():
        messages.append((6, message(9)))


def store_twice(history: LogHistory) -> None:
    for messages in history.drained.values():
        messages.append((6, message(4)))


def swap_sequences(history: LogHistory) -> None:
    history.appends.extend(Append(message(n, "q"), 70.0, 90.0, Outcome.UNKNOWN) for n in (0, 1))
    for messages in history.drained.values():
        messages.extend([(6, message(1, "q")), (7, message(0, "q"))])


def later_gets_a_lower_offset(history: LogHistory) -> None:
    history.appends[1] = replace(history.appends[1], invoked=100.0, returned=101.0)


def leave_a_gap(history: LogHistory) -> None:
    for messages in history.drained.values():
        messages[5] = (6, message(5))
    history.polls.clear()


def poll_backwards(history: LogHistory) -> None:
    history.polls.append(Poll("c", "n0", 80.0, ((3, message(3)),)))


def poll_over_a_message(history: LogHistory) -> None:
    history.polls[1] = Poll("c", "n2", 70.0, ((3, message(3)),))


def read_what_did_not_stay(history: LogHistory) -> None:
    history.polls.append(Poll("d", "n2", 71.0, ((6, message(5)),)))


def two_payloads_at_one_offset(history: LogHistory) -> None:
    history.polls.append(Poll("d", "n2", 71.0, ((4, message(5)),)))


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lose_the_middle, "lost"),
        (one_replica_short, "replicas differ"),
        (invent, "unexpected"),
        (resurrect, "resurrected"),
        (store_twice, "duplicate"),
        (swap_sequences, "order"),
        (later_gets_a_lower_offset, "external order"),
        (leave_a_gap, "gap"),
        (poll_backwards, "non-monotonic poll"),
        (poll_over_a_message, "poll skip"),
        (read_what_did_not_stay, "precommitted read"),
        (two_payloads_at_one_offset, "inconsistent offset"),
    ],
)
def test_each_planted_anomaly_of_a_log_is_named(plant: Callable[[LogHistory], None], kind: str) -> None:
    history = clean_history()
    assert check(history) == []
    plant(history)
    assert kind in {anomaly.kind for anomaly in check(history)}


def test_an_unknown_append_may_be_there_or_not() -> None:
    history = clean_history()
    for messages in history.drained.values():
        messages.pop()
    history.polls[1] = replace(history.polls[1], messages=history.polls[1].messages[:-1])
    assert check(history) == []


def test_total_queue_names_loss_invention_and_duplicates() -> None:
    assert check_total_queue("abcd", "abc", "abcd", duplicates_allowed=False) == []
    assert check_total_queue("abcd", "abc", "ab", duplicates_allowed=False)[0].kind == "lost"
    assert check_total_queue("ab", "ab", "abx", duplicates_allowed=False)[0].kind == "unexpected"
    assert check_total_queue("ab", "ab", "abb", duplicates_allowed=False)[0].kind == "duplicate"
    assert check_total_queue("ab", "ab", "abb", duplicates_allowed=True) == []


def conditional(value: str, end: int, at: float, outcome: Outcome = Outcome.ACKED, seen: int = -1) -> ConditionalAppend:
    return ConditionalAppend(value, end, at, at + 1, outcome, seen)


def test_conditional_appends_form_one_chain() -> None:
    good = [conditional("a", 0, 0), conditional("b", 1, 2), conditional("x", 0, 4, Outcome.FAILED, 2)]
    assert check_conditional_appends(good, ["a", "b"]) == []
    assert check_conditional_appends([*good, conditional("c", 1, 5)], ["a", "b"])[0].kind == "chain"
    assert check_conditional_appends([conditional("x", 0, 0, Outcome.FAILED)], ["x"])[0].kind == "resurrected"
    stale = conditional("y", 0, 6, Outcome.FAILED, 1)
    assert check_conditional_appends([*good, stale], ["a", "b"])[0].kind == "stale end"


def test_redelivery_below_the_committed_offset_is_found() -> None:
    assert check_redelivery([(1.0, 3)], [(0.5, 0), (2.0, 3)]) == []
    assert check_redelivery([(1.0, 3)], [(2.0, 2)])[0].kind == "redelivered"


def write(value: int, invoked: float, returned: float = inf) -> Operation:
    return Operation("k", "write", value, invoked, returned)


def read(value: int | None, invoked: float, returned: float) -> Operation:
    return Operation("k", "read", value, invoked, returned)


@pytest.mark.parametrize(
    ("operations", "verdict"),
    [
        ([write(1, 0, 1), read(1, 2, 3)], Verdict.LINEARIZABLE),
        ([write(1, 0, 1), read(None, 2, 3)], Verdict.NOT_LINEARIZABLE),
        ([write(1, 0, 5), read(None, 1, 2), read(1, 3, 4)], Verdict.LINEARIZABLE),
        ([write(1, 0, 5), read(1, 1, 2), read(None, 3, 4)], Verdict.NOT_LINEARIZABLE),
        ([write(1, 0), read(None, 1, 2), read(1, 3, 4)], Verdict.LINEARIZABLE),
        ([write(1, 0), read(1, 1, 2), read(None, 3, 4)], Verdict.NOT_LINEARIZABLE),
        ([Operation("k", "cas", 2, 2, 3, expected=1), write(1, 0, 1), read(2, 4, 5)], Verdict.LINEARIZABLE),
        ([Operation("k", "cas", 2, 2, 3, expected=1, ok=False), write(1, 0, 1)], Verdict.NOT_LINEARIZABLE),
        ([Operation("a", "write", 1, 0, 1), Operation("b", "read", 1, 2, 3)], Verdict.NOT_LINEARIZABLE),
    ],
)
def test_register_histories(operations: list[Operation], verdict: Verdict) -> None:
    assert check_registers(operations) is verdict


def test_a_search_over_its_budget_is_undecided_never_ok() -> None:
    operations = [write(n, 0, 100) for n in range(12)] + [read(99, 101, 102)]
    assert check_registers(operations, budget=50) is Verdict.UNDECIDED


def random_register_history(random: Random, length: int) -> list[Operation]:
    """Operations that take effect at increasing points inside their own, overlapping, spans: linearizable by construction."""
    state: int | None = None
    operations = []
    for point in range(length):
        invoked, returned = point - 3 * random.random(), point + 3 * random.random()
        if random.random() < 0.5:
            state = random.randrange(5)
            operations.append(Operation("k", "write", state, invoked, returned))
        else:
            operations.append(Operation("k", "read", state, invoked, returned))
    return operations


def test_random_histories_of_a_real_register_pass_and_a_read_of_nothing_ever_written_does_not() -> None:
    random = Random(7)
    for _ in range(50):
        operations = random_register_history(random, 25)
        assert check_registers(operations) is Verdict.LINEARIZABLE
        assert check_registers([*operations, Operation("k", "read", 99, 40.0, 41.0)]) is Verdict.NOT_LINEARIZABLE


def _offset_call(is_commit: bool, offset: int, invoked: float, returned: float, outcome: Outcome = Outcome.ACKED) -> OffsetCall:
    return OffsetCall(is_commit, offset, invoked, returned, outcome)


def test_group_offsets_that_a_rising_register_could_give_pass() -> None:
    calls = [
        _offset_call(True, 5, 0, 1),
        _offset_call(False, 5, 2, 3),
        _offset_call(True, 9, 2, 8, Outcome.UNKNOWN),
        _offset_call(False, 5, 3, 4),
        _offset_call(False, 9, 5, 6),
    ]
    assert not check_group_offsets(calls)


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ([_offset_call(True, 5, 0, 1), _offset_call(False, 0, 2, 3)], "stale offset"),
        ([_offset_call(True, 5, 0, 9, Outcome.UNKNOWN), _offset_call(False, 5, 1, 2), _offset_call(False, 0, 3, 4)], "stale offset"),
        ([_offset_call(True, 5, 3, 4), _offset_call(False, 5, 1, 2)], "unexpected"),
        ([_offset_call(True, 5, 0, 1, Outcome.FAILED), _offset_call(False, 5, 2, 3)], "unexpected"),
    ],
)
def test_group_offsets_that_no_register_gives_are_found(calls: list[OffsetCall], kind: str) -> None:
    assert kind in [anomaly.kind for anomaly in check_group_offsets(calls)]
