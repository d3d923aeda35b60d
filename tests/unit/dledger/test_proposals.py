"""Joining of payloads, and which answer every waiting future gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest

from dledger.core.types import EntryId
from dledger.measures import RaftMeasures
from dledger.replica.proposals import Proposals
from dledger.replica.room import Window
from dledger_wire.errors import BusyError, MessageTooLargeError, NotLeaderError, OutcomeUnknownError


class Sized:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def seal(self, pos: int, index: int, term: int) -> Sequence[bytes]:
        return (bytes(self.size_bytes),)


class Rig:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.proposals = Proposals(
            join_bytes=100, entry_bytes=200, payload_bytes=300, limit_bytes=1000, max_rounds=2, window=Window(1000), measures=RaftMeasures()
        )

    def add(self, size: int) -> asyncio.Future[EntryId]:
        future: asyncio.Future[EntryId] = self.loop.create_future()
        self.proposals.add(Sized(size), future)
        return future


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.loop.close()


def term(value: int) -> Callable[[int], int]:
    return lambda _index: value


def test_with_nothing_in_flight_a_payload_is_due_at_once(rig: Rig) -> None:
    assert not rig.proposals.due(in_flight=False)
    rig.add(1)
    assert rig.proposals.due(in_flight=False)


def test_with_a_round_in_flight_payloads_wait_until_they_are_worth_an_entry(rig: Rig) -> None:
    rig.add(99)
    assert not rig.proposals.due(in_flight=True)
    rig.add(1)
    assert rig.proposals.due(in_flight=True)


def test_a_full_window_holds_even_large_payloads_back(rig: Rig) -> None:
    for index in (1, 2):
        rig.add(10)
        rig.proposals.take(1, EntryId(index, 1))
    rig.add(200)
    assert not rig.proposals.due(in_flight=True)
    rig.proposals.applied(1, term(1))
    assert rig.proposals.due(in_flight=True)


def test_an_entry_takes_whole_payloads_up_to_its_limit_and_one_larger_payload_alone(rig: Rig) -> None:
    for size in (120, 80, 1, 300):
        rig.add(size)
    assert rig.proposals.peek() == (2, 200)
    rig.proposals.take(2, EntryId(1, 1))
    assert rig.proposals.peek() == (1, 1)
    rig.proposals.take(1, EntryId(2, 1))
    assert rig.proposals.peek() == (1, 300)


def test_a_payload_that_never_fits_is_refused_and_so_is_too_much_waiting(rig: Rig) -> None:
    with pytest.raises(MessageTooLargeError):
        rig.add(301)
    for _ in range(10):
        rig.add(100)
    with pytest.raises(BusyError):
        rig.add(1)
    assert rig.proposals.pending_bytes == 1000


def test_a_payload_whose_caller_gave_up_is_not_written(rig: Rig) -> None:
    rig.add(10).cancel()
    rig.add(20)
    assert rig.proposals.peek() == (1, 20)
    assert rig.proposals.pending_bytes == 20


def test_a_payload_whose_caller_gave_up_is_not_written_between_others_either(rig: Rig) -> None:
    first, given_up, last = rig.add(10), rig.add(20), rig.add(30)
    given_up.cancel()
    assert rig.proposals.peek() == (2, 40)
    assert (rig.proposals.pending_bytes, rig.proposals.left) == (40, 0), "the one before it still waits"
    rig.proposals.take(2, EntryId(7, 3))
    assert rig.proposals.left == 3
    rig.proposals.applied(7, term(3))
    assert first.result() == last.result() == EntryId(7, 3)


def test_all_payloads_of_an_applied_entry_get_its_id(rig: Rig) -> None:
    futures = [rig.add(10), rig.add(20), rig.add(30)]
    rig.proposals.take(2, EntryId(7, 3))
    rig.proposals.take(1, EntryId(8, 3))
    rig.proposals.applied(7, term(3))
    assert [future.done() for future in futures] == [True, True, False]
    assert futures[0].result() == futures[1].result() == EntryId(7, 3)
    assert rig.proposals.waiting == 1


def test_an_entry_whose_place_another_term_took_was_not_stored(rig: Rig) -> None:
    future = rig.add(10)
    rig.proposals.take(1, EntryId(7, 3))
    rig.proposals.cut(7)
    rig.proposals.applied(9, term(4))
    assert isinstance(future.exception(), NotLeaderError)


def test_an_entry_cut_here_and_committed_after_all_was_stored(rig: Rig) -> None:
    future = rig.add(10)
    rig.proposals.take(1, EntryId(7, 3))
    rig.proposals.cut(5)
    rig.proposals.applied(6, term(4))
    assert not future.done()
    rig.proposals.applied(7, term(3))
    assert future.result() == EntryId(7, 3)


def test_after_a_cut_a_new_leadership_may_use_the_index_again(rig: Rig) -> None:
    old = rig.add(10)
    rig.proposals.take(1, EntryId(7, 3))
    rig.proposals.cut(7)
    new = rig.add(10)
    rig.proposals.take(1, EntryId(7, 5))
    rig.proposals.applied(7, term(5))
    assert new.result() == EntryId(7, 5)
    assert isinstance(old.exception(), NotLeaderError)


def test_what_is_in_the_log_has_an_unknown_outcome_and_what_waits_does_not(rig: Rig) -> None:
    in_log, cut, waiting = rig.add(10), rig.add(10), rig.add(10)
    rig.proposals.take(1, EntryId(7, 3))
    rig.proposals.take(1, EntryId(8, 3))
    rig.proposals.cut(8)
    rig.proposals.fail_pending(lambda: NotLeaderError("nobody"))
    rig.proposals.fail_rounds("stopped")
    assert isinstance(in_log.exception(), OutcomeUnknownError)
    assert isinstance(cut.exception(), OutcomeUnknownError)
    assert isinstance(waiting.exception(), NotLeaderError)
    assert rig.proposals.waiting == 0
    assert rig.proposals.pending_bytes == 0


def test_only_rounds_of_terms_that_ended_fail(rig: Rig) -> None:
    old, new = rig.add(10), rig.add(10)
    rig.proposals.take(1, EntryId(7, 3))
    rig.proposals.take(1, EntryId(9, 5))
    rig.proposals.fail_rounds("leadership was lost", max_term=3)
    assert isinstance(old.exception(), OutcomeUnknownError)
    assert not new.done()
