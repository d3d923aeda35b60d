"""Messages consumed one by one, as replicated state: against a plain model, in memory and in snapshots."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import pytest

from dledger_wire.errors import DledgerError, InvalidArgumentError
from store.commands.command import Command
from store.commands.consumer_groups import CommitOffsets, DeleteOffsets, OffsetRow, ResetOffsets
from store.commands.pop import AcknowledgeMessages, ChangeInvisible, Granted, LeaseMessages, MarkDeadLetters
from store.commands.queue_locks import LockQueues
from store.commands.topics import CreateTopic, DeleteTopic
from store.settings import StoreSettings
from store.state.json_pieces import pieces
from store.state.offset_runs import runs_of
from store.state.pop import DAMAGED_MS, Delivered
from store.state.state_machine import CommandContext
from store.state.store_state import StoreState

GROUP, TOPIC = "g", "t"
QUEUE = (GROUP, TOPIC, 0)
ResultT = TypeVar("ResultT")


class State:
    """A replica's state; every command has the next place in the log."""

    def __init__(self, *, begun: bool = True) -> None:
        self.state = StoreState(StoreSettings(), lambda _: 0)
        self.pop = self.state.pop
        self.now_ms = 1_000
        self._pos = 0
        self.do(CreateTopic(name=TOPIC, read_queues=2, write_queues=2, perm=6))
        if begun:
            self.do(CommitOffsets(group=GROUP, offsets=(OffsetRow(TOPIC, 0, 0),), initial=True))

    def do(self, command: Command[ResultT]) -> ResultT:
        self._pos += 100
        outcome = self.state.machine.apply(command, CommandContext(self._pos, 1, self._pos, self.now_ms))
        if outcome.error is not None:
            raise outcome.error
        return outcome.result  # type: ignore[return-value]

    def lease(self, new: Iterable[int] = (), *, end: int | None = None, invisible_ms: int = 100, **more: object) -> Granted:
        span = self.pop.span(QUEUE)
        begin = span[1] if span is not None else 0
        runs = runs_of(sorted(new))
        end = max([begin, *(past for _, past in runs)]) if end is None else end
        what: dict[str, object] = {
            "group": GROUP,
            "topic": TOPIC,
            "queue_id": 0,
            "invisible_ms": invisible_ms,
            "begin": begin,
            "end": end,
            "new": runs,
        } | more
        return self.do(LeaseMessages(**what))  # type: ignore[arg-type]

    def acknowledge(self, *receipts: tuple[int, int]) -> list[bool]:
        rows = tuple((offset, offset + 1, lease) for offset, lease in receipts)
        return list(self.do(AcknowledgeMessages(group=GROUP, topic=TOPIC, queue_id=0, receipts=rows)))

    def change(self, *receipts: tuple[int, int], invisible_ms: int, uncounted: bool = False) -> list[bool]:
        rows = tuple((offset, offset + 1, lease) for offset, lease in receipts)
        command = ChangeInvisible(group=GROUP, topic=TOPIC, queue_id=0, receipts=rows, invisible_ms=invisible_ms, uncounted=uncounted)
        return list(self.do(command))

    @property
    def position(self) -> int | None:
        return self.state.consumer_offsets.known_position(*QUEUE)

    def free(self, most: int = 1 << 20) -> list[int]:
        found: list[int] = self.pop.free(QUEUE, self.now_ms, most).offsets.tolist()
        return found

    def delivered(self) -> Delivered:
        found = Delivered()
        for each in self.pop.delivered(QUEUE, self.now_ms):
            found.add(each)
        return found

    def snapshot(self) -> str:
        text = b"".join(pieces(self.pop.capture())).decode()
        assert json.loads(text) == self.pop.dump()
        return text


def granted(found: Granted) -> list[int]:
    offsets: list[int] = found.offsets.tolist()
    return offsets


def test_a_message_is_leased_until_its_time_ends_and_done_when_it_was_acknowledged() -> None:
    state = State()
    first = state.lease(range(3))
    assert (granted(first), first.attempts.tolist(), first.until_ms) == ([0, 1, 2], [1, 1, 1], 1_100)
    assert (state.free(), state.pop.earliest_ms(QUEUE), state.position) == ([], 1_100, 0)
    assert state.acknowledge((1, first.lease), (2, first.lease + 1), (7, first.lease), (1, first.lease)) == [True, False, False, True]
    assert state.acknowledge((1, first.lease)) == [False], "it is done"
    assert state.position == 0, "message 0 is not done"
    state.now_ms = 1_100
    assert state.free() == [0, 2]
    again = state.lease(again=((0, 1),))
    assert (granted(again), again.attempts.tolist()) == ([0], [2])
    assert state.acknowledge((0, first.lease), (2, first.lease)) == [False, True], "late, and not leased to another one since"
    assert (state.acknowledge((0, again.lease)), state.position, state.pop.left(QUEUE)) == ([True], 3, 0)
    assert state.pop.dump()["blockTable"] == {}


def test_what_is_not_free_any_more_is_not_granted() -> None:
    state = State()
    first = state.lease(range(4))
    assert granted(state.lease(again=((0, 4),))) == []
    state.change((1, first.lease), (2, first.lease), invisible_ms=0)
    assert granted(state.lease(again=((0, 3),))) == [1, 2]
    begin = {"begin": 2, "end": 6}
    assert granted(state.lease([4, 5], **begin)) == [], "another command moved the end"
    assert state.pop.span(QUEUE) == (0, 4)


def test_changes_of_the_time_count_from_the_command_and_may_take_an_attempt_back() -> None:
    state = State()
    first = state.lease([0, 1])
    state.now_ms = 1_090
    assert state.change((0, first.lease), invisible_ms=500) == [True]
    state.now_ms = 1_100
    assert state.free() == [1]
    assert state.change((1, first.lease), invisible_ms=0, uncounted=True) == [True], "late, and not leased to another one since"
    second = state.lease(again=((1, 2),))
    assert second.attempts.tolist() == [1]
    assert state.change((1, first.lease), invisible_ms=0) == [False]
    state.now_ms = 1_590
    assert state.free() == [0, 1]


def test_messages_left_out_are_done_and_damaged_ones_wait() -> None:
    state = State()
    found = state.lease([3, 5], end=10, damaged=((4, 5),), low=2)
    assert (granted(found), state.pop.span(QUEUE), state.position) == ([3, 5], (3, 10), 3)
    state.acknowledge((3, found.lease), (5, found.lease))
    assert state.position == 4
    state.now_ms += DAMAGED_MS
    assert state.free() == [4]
    state.lease(damaged=((4, 5),))
    assert state.free() == []
    state.now_ms += DAMAGED_MS
    state.lease(skipped=((4, 5),))
    assert (state.position, state.pop.left(QUEUE)) == (10, 0)
    state.lease(low=5_000_000, end=5_000_000)
    assert (state.position, state.pop.span(QUEUE)) == (5_000_000, (5_000_000, 5_000_000))


def test_only_the_first_of_a_message_group_is_a_head() -> None:
    state = State()
    found = state.lease([0, 2], end=5, waiting=((1, 2), (3, 5)), message_groups=(7, 7, 8, 7, 9))
    heads = state.pop.heads(QUEUE, state.now_ms)
    assert (heads.free.offsets.tolist(), heads.groups, heads.next_ms) == ([4], {7, 8, 9}, 1_100)
    state.acknowledge((0, found.lease))
    assert state.pop.heads(QUEUE, state.now_ms).free.offsets.tolist() == [1, 4]
    state.now_ms = 1_100
    assert state.pop.heads(QUEUE, state.now_ms).free.offsets.tolist() == [1, 2, 4]


def test_a_commit_of_the_group_moves_the_floor() -> None:
    state = State()
    found = state.lease(range(2_000))
    state.do(CommitOffsets(group=GROUP, offsets=(OffsetRow(TOPIC, 0, 1_500),)))
    assert state.pop.span(QUEUE) == (1_500, 2_000)
    state.now_ms = 1_100
    assert state.free() == list(range(1_500, 2_000))
    assert state.acknowledge((1_499, found.lease), (1_500, found.lease)) == [False, True]
    assert state.position == 1_501


@pytest.mark.parametrize(
    "command",
    [
        ResetOffsets(group=GROUP, offsets=(OffsetRow(TOPIC, 0, 0),)),
        LockQueues(group=GROUP, owner="session", client="c", queues=((TOPIC, 0),)),
        DeleteOffsets(group=GROUP),
        DeleteTopic(name=TOPIC),
    ],
    ids=lambda command: command.KIND,
)
def test_what_takes_the_queue_away_drops_all_leases(command: Command[object]) -> None:
    state = State()
    found = state.lease(range(3))
    state.acknowledge((0, found.lease))
    state.do(command)
    if isinstance(command, DeleteTopic):
        state.state.forget_topic(TOPIC)
    assert state.pop.dump() == {"spanTable": {}, "blockTable": {}}
    assert state.acknowledge((1, found.lease)) == [False]
    assert granted(state.lease([3], begin=3, end=4)) == [], "the master chose it before"


def test_a_group_begins_where_its_position_is_and_nowhere_without_one() -> None:
    state = State(begun=False)
    assert state.pop.span(QUEUE) is None
    assert granted(state.lease([0])) == []
    state.do(CommitOffsets(group=GROUP, offsets=(OffsetRow(TOPIC, 1, 8),), initial=True))
    assert (state.pop.span(QUEUE), state.pop.span((GROUP, TOPIC, 1))) == ((0, 0), (8, 8)), "queue 0 was added later"
    state.lease([0])
    assert state.position == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"new": (0, 1, 2), "end": 2},
        {"again": ((0, 3),)},
        {"invisible_ms": -1},
        {"begin": 3, "end": 2},
        {"new": (0, 1), "end": 2, "message_groups": (1,)},
        {"damaged": ((3, 3),), "end": 9},
    ],
)
def test_a_malformed_command_is_refused(wrong: dict[str, object]) -> None:
    state = State()
    with pytest.raises(InvalidArgumentError):
        state.lease(**{"begin": 0, "end": 0} | wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        state.acknowledge((0, 0))


class Model:
    """Each message by itself: (due, lease, attempts, second of the first); None when it is done."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, int, int, int] | None] = []

    def free(self, now_ms: int) -> list[int]:
        return [offset for offset, found in enumerate(self.messages) if found is not None and found[0] <= now_ms]

    def lease(self, offsets: Iterable[int], found: Granted, now_ms: int) -> None:
        for offset in offsets:
            message = self.messages[offset]
            assert message is not None
            self.messages[offset] = (found.until_ms, found.lease, message[2] + 1, message[3] if message[2] else -(-now_ms // 1000))

    def counts(self, offset: int, lease: int) -> bool:
        message = self.messages[offset] if offset < len(self.messages) else None
        return message is not None and message[1] == lease and lease > 0

    def delivered(self, now_ms: int) -> Delivered:
        given = [found for found in self.messages if found is not None and found[2]]
        again = sum(found[0] <= now_ms for found in given)
        most, first_s = max((found[2] for found in given), default=0), min((found[3] for found in given), default=0)
        return Delivered(len(given) - again, again, most, first_s * 1000)

    @property
    def floor(self) -> int:
        return next((offset for offset, found in enumerate(self.messages) if found is not None), len(self.messages))


class Compared:
    """A state and its model, to which the same is done."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.state, self.model = draw, State(), Model()
        self.known: list[tuple[int, int]] = []

    def lease_new(self) -> None:
        begin, count = len(self.model.messages), self.draw.choice((1, 5, 700))
        named = [offset for offset in range(begin, begin + count) if self.draw.random() < 0.8]
        waiting = [offset for offset in named if self.draw.random() < 0.2]
        new = [offset for offset in named if offset not in waiting]
        found = self.state.lease(new, end=begin + count, waiting=runs_of(waiting), invisible_ms=self.draw.choice((0, 50, 5_000)))
        self.model.messages += [(0, 0, 0, 0) if offset in named else None for offset in range(begin, begin + count)]
        assert granted(found) == new
        self._leased(found)

    def lease_again(self) -> None:
        wanted = sorted(self.draw.sample(range(len(self.model.messages)), min(len(self.model.messages), self.draw.choice((1, 30)))))
        free = set(self.model.free(self.state.now_ms))
        found = self.state.lease(again=runs_of(wanted), invisible_ms=self.draw.choice((0, 50, 5_000)))
        assert granted(found) == [offset for offset in wanted if offset in free]
        self._leased(found)

    def _leased(self, found: Granted) -> None:
        self.model.lease(granted(found), found, self.state.now_ms)
        assert found.attempts.tolist() == [self.model.messages[offset][2] for offset in granted(found)]  # type: ignore[index]
        self.known += [(offset, found.lease) for offset in granted(found)]

    def acknowledge(self) -> None:
        receipts = self.draw.sample(self.known, min(len(self.known), self.draw.choice((1, 50, 600))))
        expected = [self.model.counts(*receipt) for receipt in receipts]
        assert self.state.acknowledge(*receipts) == expected
        for (offset, _), counts in zip(receipts, expected, strict=True):
            if counts:
                self.model.messages[offset] = None

    def change(self) -> None:
        receipts = self.draw.sample(self.known, min(len(self.known), 20))
        for_ms, uncounted = self.draw.choice((0, 70)), self.draw.random() < 0.5
        expected = [self.model.counts(*receipt) for receipt in receipts]
        assert self.state.change(*receipts, invisible_ms=for_ms, uncounted=uncounted) == expected
        for (offset, lease), counts in zip(receipts, expected, strict=True):
            message = self.model.messages[offset]
            if counts and message is not None:
                self.model.messages[offset] = (self.state.now_ms + for_ms, lease, max(0, message[2] - uncounted), message[3])

    def check(self) -> None:
        state, messages = self.state, self.model.messages
        free = self.model.free(state.now_ms)
        assert state.free() == free
        assert state.pop.span(QUEUE) == (self.model.floor, len(messages))
        assert state.position == self.model.floor
        assert state.pop.earliest_ms(QUEUE) == min((found[0] for found in messages if found is not None), default=None)
        assert state.delivered() == self.model.delivered(state.now_ms)


@pytest.mark.parametrize("seed", range(30))
def test_it_does_what_a_plain_model_does(seed: int) -> None:
    draw = random.Random(seed)
    both = Compared(draw)
    for _ in range(100):
        both.state.now_ms += draw.choice((0, 0, 1, 40, 200))
        draw.choice((both.lease_new, both.lease_again, both.acknowledge, both.acknowledge, both.change))()
        both.check()
        if draw.random() < 0.1:
            text = both.state.snapshot()
            both.state.pop.load(json.loads(text))
            assert both.state.snapshot() == text


def test_what_consumers_have_is_counted_until_they_are_done_with_it() -> None:
    state = State()
    found = state.lease(range(3), end=6, waiting=((4, 6),))
    assert state.delivered() == Delivered(3, 0, 1, 1_000), "what waits for its first delivery is not theirs"
    state.now_ms = 3_500
    assert state.delivered() == Delivered(0, 3, 1, 1_000)
    again = state.lease(again=((1, 3), (4, 5)), invisible_ms=5_000)
    assert state.delivered() == Delivered(3, 1, 2, 1_000), "the age is that of the first delivery"
    state.acknowledge((0, found.lease), (1, again.lease), (2, again.lease))
    assert state.delivered() == Delivered(1, 0, 1, 4_000)
    state.change((4, again.lease), invisible_ms=0, uncounted=True)
    assert state.delivered() == Delivered(), "that delivery was none"
    state.now_ms = 9_000
    state.lease(again=((4, 5),))
    assert state.delivered() == Delivered(1, 0, 1, 9_000)


def test_a_capture_stays_as_it_was_while_commands_go_on() -> None:
    state = State()
    found = state.lease(range(1_500))
    before, captured = state.pop.dump(), state.pop.capture()
    state.acknowledge(*((offset, found.lease) for offset in range(0, 1_500, 3)))
    assert json.loads(b"".join(pieces(captured))) == before


def test_a_million_messages_in_flight_take_less_than_25_mb() -> None:
    state = State()
    tracemalloc.start()
    try:
        for first in range(0, 1_000_000, 500):
            state.lease(range(first, first + 500), invisible_ms=3_600_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert state.pop.left(QUEUE) == 1_000_000
    assert held < 25_000_000, held


def test_dead_letters_are_done_and_errors_leave_the_state_as_it_is() -> None:
    state = State()
    found = state.lease(range(2))
    assert list(state.do(MarkDeadLetters(group=GROUP, topic=TOPIC, queue_id=0, receipts=((0, 2, found.lease),)))) == [True, True]
    assert state.position == 2
    before = state.snapshot()
    with pytest.raises(DledgerError):
        state.change((0, found.lease), invisible_ms=-1)
    assert state.snapshot() == before
    assert np.array_equal(state.pop.current(QUEUE, np.array([0, 1]), np.array([found.lease] * 2)), [False, False])
