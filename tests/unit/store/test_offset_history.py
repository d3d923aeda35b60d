"""When groups passed offsets: spans that always hold the true time, however many commits there were."""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from typing import Any

import pytest

from store.commands.command import Command
from store.commands.consumer_groups import CommitOffsets, DeleteOffsets, OffsetRow
from store.commands.topics import CreateTopic
from store.settings import StoreSettings
from store.state.offset_history import MAX_POINTS, OffsetHistory
from store.state.state_machine import CommandContext
from store.state.store_state import StoreState

PLACE = ("g", "t", 0)


@pytest.mark.parametrize("seed", range(5))
def test_the_span_holds_the_commit_that_passed(seed: int) -> None:
    draw = random.Random(seed)
    times, offset, at_ms = OffsetHistory(), 0, 1000
    commits: list[tuple[int, int]] = []
    for number in range(300):
        offset += draw.choice([0, 1, 7, 100])
        at_ms += draw.randint(0, 50)
        if not commits or offset > commits[-1][0]:
            commits.append((offset, at_ms))
        times.committed(*PLACE, offset, at_ms)
        if number == 150:
            copy = OffsetHistory()
            copy.load(json.loads(json.dumps(times.dump())))
            assert copy.dump() == times.dump()
            times = copy
    assert len(times.dump()["commitTable"]["t@g@0"]) <= MAX_POINTS
    for wanted in range(offset):
        truth = commits[bisect_right(commits, wanted, key=lambda commit: commit[0])][1]
        after_ms, by_ms = times.passed(*PLACE, wanted)
        assert after_ms <= truth <= by_ms
    newest = commits[-2:]
    assert times.passed(*PLACE, newest[1][0] - 1) == (newest[0][1], newest[1][1])
    assert times.passed(*PLACE, offset) == (0, 0)
    assert times.passed("other", "t", 0, 1) == (0, 0)


def test_going_back_forgets_what_is_consumed_again() -> None:
    times = OffsetHistory()
    for offset in (10, 20, 30):
        times.committed(*PLACE, offset, offset * 100)
    times.went_to(*PLACE, 20)
    assert times.passed(*PLACE, 15) == (1000, 2000)
    assert times.passed(*PLACE, 25) == (0, 0)
    times.committed(*PLACE, 30, 9000)
    assert times.passed(*PLACE, 25) == (2000, 9000)
    times.went_to(*PLACE, 0)
    assert times.dump() == {"commitTable": {}}
    times.committed(*PLACE, 5, 1)
    times.forget_topic("t")
    assert times.dump() == {"commitTable": {}}


def test_nothing_is_kept_of_a_group_that_was_deleted() -> None:
    state = StoreState(StoreSettings(), lambda _queue: 9)
    commands: list[Command[Any]] = [
        CreateTopic(name="t", read_queues=1, write_queues=1),
        CommitOffsets(group="g", offsets=(OffsetRow("t", 0, 0),), initial=True),
        CommitOffsets(group="g", offsets=(OffsetRow("t", 0, 5),)),
        DeleteOffsets(group="g"),
    ]
    for index, command in enumerate(commands, 1):
        state.machine.apply(command, CommandContext(index, 1, index * 100, index))
    assert state.offset_history.dump() == {"commitTable": {}}
