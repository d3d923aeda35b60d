"""Quorums, the term table, windows and the durable watermark against naive twins."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.log_index import LogIndex
from dledger.core.progress import Progress, ProgressState
from dledger.core.quorum import VoteTally, majority, quorum_value
from dledger.core.saved import Saved
from dledger.core.terms import TermTable
from dledger.core.types import ZERO_ENTRY, EntryId, EntryMeta, HardState
from dledger_wire.check import InvariantBrokenError
from tests.unit.core.harness import ids, log_of, node_id, runs_of


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9))
def test_quorum_value_vs_naive(values: list[int]) -> None:
    reached = [value for value in values if sum(other >= value for other in values) >= len(values) // 2 + 1]
    assert quorum_value(values) == max(reached)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_majority_of_even_and_odd_groups(count: int, expected: int) -> None:
    assert majority(count) == expected


@given(st.integers(1, 7), st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30))
def test_vote_tally_vs_naive(size: int, answers: list[tuple[int, bool]]) -> None:
    tally = VoteTally(ids(*range(1, size + 1)))
    first: dict[int, bool] = {}
    for voter, granted in answers:
        counted = tally.record(node_id(voter), granted)
        assert counted == (voter <= size and voter not in first)
        if counted:
            first[voter] = granted
    yes, no = sum(first.values()), len(first) - sum(first.values())
    assert tally.won == (yes * 2 > size)
    assert tally.lost == ((size - no) * 2 <= size)


@given(st.sets(st.integers(1, 5), min_size=1), st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)))
def test_votes_of_suspects_vs_naive(now: set[int], before: set[int], granted: set[int], suspects: set[int]) -> None:
    tally = VoteTally(ids(*now), ids(*before))
    tally.suspects.update(ids(*suspects))
    for voter in granted:
        assert tally.record(node_id(voter), True) == (voter in now | before)

    def most(some: set[int], voters: set[int]) -> bool:
        return len(some & voters) * 2 > len(voters)

    def is_a_proof(voters: set[int]) -> bool:
        return voters <= granted or most(granted & suspects, voters)

    proven = most(granted - suspects, now) or (is_a_proof(now) and is_a_proof(before))
    assert tally.won == (most(granted, now) and (proven or not suspects))


class NaiveLog:
    """A list of terms; what the term table must agree with."""

    def __init__(self, terms: Sequence[int]) -> None:
        self.terms = {index: term for index, term in enumerate(terms, 1)} | {0: 0}

    def last_at_or_below(self, index: int, term: int) -> EntryId | None:
        fitting = [at for at, own in self.terms.items() if at <= index and own <= term]
        return EntryId(max(fitting), self.terms[max(fitting)]) if fitting else None


def test_term_table_vs_naive() -> None:
    for seed in range(300):
        draw = random.Random(seed)
        terms = sorted(draw.randrange(1, 8) for _ in range(draw.randrange(0, 15)))
        naive = NaiveLog(terms)
        table = TermTable(runs_of(log_of(terms), 1), ZERO_ENTRY, len(terms))
        for _ in range(12):
            _change_both(draw, table, naive)
            table.check()
            low, high = min(naive.terms), max(naive.terms)
            assert (table.before.index, table.last_index, table.last_term) == (low, high, naive.terms[high])
            for index in range(low - 2, high + 3):
                assert table.term_at(index) == naive.terms.get(index), seed
                for term in range(9):
                    assert table.last_at_or_below(index, term) == naive.last_at_or_below(index, term), (seed, index, term)


def _change_both(draw: random.Random, table: TermTable, naive: NaiveLog) -> None:
    low, high = min(naive.terms), max(naive.terms)
    action = draw.choice(("append", "append", "truncate", "trim"))
    if action == "append":
        term, count = naive.terms[high] + draw.randrange(0, 3), draw.randrange(1, 4)
        table.append(term, count)
        naive.terms |= dict.fromkeys(range(high + 1, high + 1 + count), term)
    elif action == "truncate" and high > low:
        index = draw.randrange(low + 1, high + 1)
        table.truncate(index)
        naive.terms = {at: term for at, term in naive.terms.items() if at < index}
    elif action == "trim":
        index = draw.randrange(low, high + 1)
        table.trim(EntryId(index, naive.terms[index]))
        naive.terms = {at: term for at, term in naive.terms.items() if at >= index}


def test_term_table_refuses_terms_that_fall() -> None:
    table = TermTable([(3, 1)], ZERO_ENTRY, 2)
    with pytest.raises(InvariantBrokenError):
        table.append(2)


class NaiveWindow:
    """Every request under way, kept plainly."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []
        self.match = 0

    def acked(self, index: int) -> None:
        self.match = max(self.match, index)
        self.requests = [(last, size) for last, size in self.requests if last > index]


def test_window_vs_naive() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        peer, naive = Progress(node_id(2), 1, 0), NaiveWindow()
        peer.become_replicate()
        for _ in range(60):
            if draw.random() < 0.6:
                last, size = peer.next + draw.randrange(0, 3), draw.randrange(1, 100)
                peer.sent(last, size)
                naive.requests.append((last, size))
            else:
                index = draw.randrange(0, peer.next)
                peer.acked(index)
                naive.acked(index)
            assert list(peer.inflight) == naive.requests, seed
            assert peer.inflight_bytes == sum(size for _last, size in naive.requests)
            assert peer.match == naive.match < peer.next
            assert peer.room(10, 1000) == (0 if len(naive.requests) >= 10 else 1000 - peer.inflight_bytes)
            peer.check(peer.next - 1, 60)


def test_progress_moves_between_its_states() -> None:
    peer = Progress(node_id(2), 10, 0)
    assert peer.state is ProgressState.PROBE
    assert peer.rejected(9, 4)
    assert (peer.next, peer.match) == (5, 0)
    assert not peer.rejected(9, 4), "a late rejection"
    assert peer.acked(4)
    assert (peer.state, peer.match, peer.next) == (ProgressState.REPLICATE, 4, 5)
    peer.sent(8, 100)
    assert not peer.rejected(3, 0), "below what it acknowledged: late"
    assert peer.rejected(8, 5)
    assert (peer.state, peer.next, peer.inflight_bytes) == (ProgressState.PROBE, 5, 0)
    peer.become_snapshot()
    assert not peer.acked(4)
    assert peer.state is ProgressState.SNAPSHOT  # type: ignore[comparison-overlap]  # changed by the calls between
    assert peer.acked(20)
    assert (peer.state, peer.next) == (ProgressState.REPLICATE, 21)


def test_progress_late_ack_does_not_end_a_probe() -> None:
    peer = Progress(node_id(2), 10, 0)
    assert peer.acked(3)
    assert (peer.state, peer.match, peer.next) == (ProgressState.PROBE, 3, 10)


class View:
    """A log view over a list; remembers what it was asked."""

    def __init__(self, entries: Sequence[EntryMeta]) -> None:
        self.entries = entries
        self.asked: list[tuple[int, int]] = []

    def metas(self, first_index: int, last_index: int) -> Sequence[EntryMeta]:
        self.asked.append((first_index, last_index))
        return self.entries[first_index - 1 : last_index]


def log_index(terms: Sequence[int]) -> tuple[LogIndex, View]:
    entries = log_of(terms)
    view = View(entries)
    last = EntryId(len(terms), terms[-1] if terms else 0)
    return LogIndex(Saved(hard_state=HardState(9), terms=runs_of(entries, 1), last=last), view), view


def test_entries_from_before_the_start_come_from_the_view() -> None:
    log, view = log_index([1, 1, 2])
    log.append((EntryMeta(3, 50), EntryMeta(3, 60)))
    assert [meta.size_bytes for meta in log.metas(2, 1 << 20)] == [1002, 1003]
    assert view.asked == [(2, 3)]
    assert [meta.size_bytes for meta in log.metas(4, 1 << 20)] == [50, 60]
    assert [meta.size_bytes for meta in log.metas(4, 109)] == [50]
    assert [meta.size_bytes for meta in log.metas(5, 1)] == [60], "one entry always goes"
    assert view.asked == [(2, 3)]


def test_metas_survive_truncation_and_old_ones_are_dropped() -> None:
    log, _view = log_index([1])
    log.append(tuple(EntryMeta(2, size) for size in range(1, 10_001)))
    log.truncate(9_000, 3)
    assert [meta.size_bytes for meta in log.metas(8_998, 1 << 20)] == [8997, 8998]
    log.committed(8_000)
    assert log.metas(8_000, 1)[0].size_bytes == 7999
    assert log.size_between(8_998, 8_999) == 8997 + 8998


def test_watermark_falls_with_the_log_and_rises_by_what_is_in_it() -> None:
    log, _view = log_index([1, 1])
    log.append((EntryMeta(2, 5), EntryMeta(2, 5)))
    assert log.durable == 2
    assert not log.stored(EntryId(4, 1)), "another entry"
    assert not log.stored(EntryId(5, 2)), "beyond the log"
    assert log.stored(EntryId(4, 2))
    assert not log.stored(EntryId(3, 2)), "never lowered by a completion"
    log.truncate(3, 3)
    assert log.durable == 2


def test_watermark_is_not_fooled_when_an_entry_comes_back() -> None:
    """ABA: 3 of term 2 is written, cut for 3 of term 3, and comes back before the first write is reported."""
    log, _view = log_index([1, 1])
    log.append((EntryMeta(2, 5),))
    log.truncate(3, 3)
    log.append((EntryMeta(3, 7),))
    log.truncate(3, 4)
    log.append((EntryMeta(2, 5), EntryMeta(4, 9)))
    assert not log.stored(EntryId(3, 2)), "the completion of a write that was cut since"
    assert log.durable == 2
    assert log.stored(EntryId(4, 4))
    assert log.durable == 4


def test_a_later_cut_does_not_vouch_for_what_an_earlier_one_took() -> None:
    """3 of term 2 came back by the second cut; the third lies above it, and its first write is reported only now."""
    log, _view = log_index([1, 1])
    log.append((EntryMeta(2, 5),))
    log.truncate(3, 3)
    log.append((EntryMeta(3, 7),))
    log.truncate(3, 4)
    log.append((EntryMeta(2, 5), EntryMeta(4, 9)))
    log.truncate(4, 5)
    log.append((EntryMeta(5, 6),))
    assert not log.stored(EntryId(3, 2)), "the completion of a write that was cut since"
    assert log.stored(EntryId(4, 5))
    assert log.durable == 4


def test_a_denial_that_may_be_late_takes_nothing_back_and_a_second_one_does() -> None:
    """Under ASYNC_FLUSH the first one does: the peer may have lost what it acknowledged."""
    for loses_unsynced, asked_again in ((False, True), (True, False)):
        peer = Progress(node_id(2), 1, 0)
        peer.acked(8)
        peer.become_probe()
        assert peer.rejected(8, 3, loses_unsynced=loses_unsynced)
        assert (peer.match, peer.next, peer.paused) == ((8, 9, False) if asked_again else (3, 4, False))
    late = Progress(node_id(2), 1, 0)
    late.acked(8)
    late.become_probe()
    assert late.rejected(8, 3)
    late.acked(8)
    assert (late.match, late.state) == (8, ProgressState.REPLICATE), "it was late"
    late.become_probe()
    assert late.rejected(8, 3)
    assert late.match == 8, "one that was answered is forgotten"
    assert late.rejected(8, 3)
    assert (late.match, late.next) == (3, 4)
