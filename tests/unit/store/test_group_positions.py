"""Positions and locks of consumer groups as replicated state: rules, refusals, snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, cast

import pytest

from dledger_wire.errors import InvalidArgumentError, OffsetsResetError, StaleLockError, TopicNotFoundError
from store.commands.command import Command
from store.commands.consumer_groups import CommitOffsets, DeleteOffsets, OffsetRow, OffsetsResult, ResetOffsets
from store.commands.queue_locks import LockQueues, UnlockQueues
from store.commands.registry import decode_command
from store.state.consumer_offsets import ConsumerOffsets
from store.state.queue_locks import QueueLocks
from store.state.row_table import RowTable
from store.state.state_machine import CommandContext, ReplicatedState

ResultT = TypeVar("ResultT")


class Positions:
    """Both sections, with one topic ``t`` of four queues made at 7."""

    def __init__(self) -> None:
        self.topics = {"t": 7}
        self.locks = QueueLocks(lambda topic, queue_id: topic in self.topics and queue_id < 4)
        self.offsets = ConsumerOffsets(self.topics.get, self.locks.epoch)
        self.state = ReplicatedState([self.offsets, self.locks])
        self.pos = 100

    def run(self, command: Command[ResultT]) -> ResultT:
        self.pos += 1
        outcome = self.state.apply(command, CommandContext(self.pos, 1, self.pos, 0))
        if outcome.error is not None:
            raise outcome.error
        return cast(ResultT, outcome.result)

    def commit(self, *rows: list[Any], group: str = "g", initial: bool = False) -> list[str]:
        """The codes of what was refused."""
        command = CommitOffsets(group=group, offsets=tuple(OffsetRow(*row) for row in rows), initial=initial)
        return [row.code for row in self.run(command).refused]

    def reset(self, *rows: list[Any]) -> OffsetsResult:
        return self.run(ResetOffsets(group="g", offsets=tuple(OffsetRow(*row) for row in rows)))

    def lock(self, owner: str, *queues: int) -> dict[int, int]:
        command = LockQueues(group="g", owner=owner, client=owner, queues=tuple(("t", queue_id) for queue_id in queues))
        return {queue_id: epoch for _, queue_id, epoch in self.run(command)}

    def unlock(self, owner: str, *queues: tuple[str, int, int]) -> int:
        return self.run(UnlockQueues(group="g", owner=owner, queues=queues))


def test_commits_go_forward_only_and_resets_anywhere() -> None:
    found = Positions()
    assert found.commit(["t", 0, 10]) == found.commit(["t", 0, 5]) == []
    assert found.offsets.position("g", "t", 0) == 10
    found.reset(["t", 0, 3])
    assert found.offsets.position("g", "t", 0) == 3
    with pytest.raises(TopicNotFoundError):
        found.commit(["nowhere", 0, 1])


def test_a_commit_of_an_older_generation_is_refused_and_the_others_of_the_command_are_not() -> None:
    found = Positions()
    assert found.commit(["t", 0, 10, 7, 0], ["t", 1, 10, 7, 0]) == []
    found.reset(["t", 0, 3])
    generation = found.offsets.generation("g", "t", 0)
    assert generation == found.offsets.reset_version("g") == found.pos
    assert found.commit(["t", 0, 11, 7, 0], ["t", 1, 11, 7, 0]) == [OffsetsResetError.code]
    assert found.offsets.of_groups({"g"})["g"] == {"t": {0: 3, 1: 11}}
    assert found.commit(["t", 0, 11, generation, 0]) == []
    assert found.offsets.generation("g", "t", 1) == 7


def test_a_commit_into_a_topic_made_anew_is_refused() -> None:
    found = Positions()
    found.commit(["t", 0, 10, 7, 0])
    found.offsets.forget_topic("t")
    found.topics["t"] = 90
    assert found.commit(["t", 0, 11, 7, 0]) == [OffsetsResetError.code]
    assert found.commit(["t", 0, 1, 90, 0]) == []


def test_an_initial_commit_changes_no_position() -> None:
    found = Positions()
    assert found.commit(["t", 0, 10], initial=True) == []
    assert found.commit(["t", 0, 20], initial=True) == []
    assert found.offsets.position("g", "t", 0) == 10


def test_a_group_begins_a_topic_once_with_all_its_queues_whoever_holds_locks() -> None:
    found = Positions()
    found.topics["u"] = 9
    epochs = found.lock("s1", 1)
    assert found.commit(["t", 0, 10], ["t", 1, 11], initial=True) == []
    assert found.commit(["t", 0, 20], ["t", 1, 21], ["t", 2, 22], ["u", 0, 5], initial=True) == []
    assert found.offsets.of_groups({"g"})["g"] == {"t": {0: 10, 1: 11}, "u": {0: 5}}
    assert found.commit(["t", 1, 12, 7, epochs[1]], ["t", 2, 0]) == []
    assert found.offsets.of_groups({"g"})["g"]["t"] == {0: 10, 1: 12, 2: 0}


def test_locks_go_to_one_session_each_with_a_growing_epoch() -> None:
    found = Positions()
    first = found.lock("s1", 0, 1)
    assert set(first) == {0, 1}
    assert found.lock("s1", 0) == {0: first[0]}
    assert found.lock("s2", 0, 2, 9) == {2: found.pos}
    found.unlock("s2", ("t", 0, first[0]))
    found.unlock("s1", ("t", 0, first[0] - 1))
    assert found.lock("s2", 0) == {}
    found.unlock("s1", ("t", 0, first[0]))
    assert found.lock("s2", 0)[0] > first[0]
    found.unlock("s2")
    assert found.locks.owners() == [("g", "s1", "s1")]
    with pytest.raises(InvalidArgumentError):
        found.lock("")
    with pytest.raises(InvalidArgumentError):
        decode_command("lock_queues", {"group": "g", "owner": "s", "queues": "all"})


def test_a_locked_queue_takes_commits_of_its_owner_only() -> None:
    found = Positions()
    (epoch,) = found.lock("s1", 0).values()
    assert found.commit(["t", 0, 5]) == found.commit(["t", 0, 5, 7, epoch - 1]) == [StaleLockError.code]
    assert found.commit(["t", 0, 5, 7, epoch]) == []
    found.unlock("s1")
    assert found.commit(["t", 0, 6, 7, epoch]) == [StaleLockError.code]
    assert found.commit(["t", 0, 6]) == []


def test_snapshots_hold_everything_and_a_deleted_topic_leaves_nothing() -> None:
    found, copy = Positions(), Positions()
    found.lock("s1", 0, 1)
    found.commit(["t", 2, 5])
    found.reset(["t", 3, 6])
    for section, other in zip(found.state.sections, copy.state.sections, strict=True):
        other.load(section.dump())
        assert other.dump() == section.dump()
    assert copy.locks.epoch("g", "t", 1) == found.locks.epoch("g", "t", 1) > 0
    for section in (copy.offsets, copy.locks):
        section.forget_topic("t")
    assert (copy.offsets.groups(), copy.locks.owners(), copy.offsets.reset_version("g")) == ([], [], 0)


def test_heartbeats_do_not_look_at_all_that_was_ever_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of each member asks for the version: ten thousand reset positions would keep a master from its work."""
    found, walks = Positions(), 0
    found.topics |= {f"t{number}": 7 for number in range(100)}
    found.reset(*([f"t{number}", 0, 1] for number in range(100)))
    items = RowTable.items

    def counted(table: RowTable[Any, Any]) -> Iterator[tuple[Any, Any]]:
        nonlocal walks
        walks += 1
        return items(table)

    monkeypatch.setattr(RowTable, "items", counted)
    assert {found.offsets.reset_version(group) for group in ["g"] * 50} == {found.pos}
    assert {found.offsets.reset_version(group) for group in ("other", "another")} == {0}
    assert walks == 1
    found.reset(["t5", 0, 2])
    assert found.offsets.reset_version("g") == found.pos
    found.offsets.forget_topic("t5")
    assert found.offsets.reset_version("g") == found.pos - 1
    found.offsets.load({"offsetTable": {}})
    assert found.offsets.reset_version("g") == 0


def test_a_snapshot_of_before_generations_is_read() -> None:
    found = Positions()
    found.offsets.load({"offsetTable": {"t@g": {"0": 5}}})
    assert (found.offsets.position("g", "t", 0), found.offsets.generation("g", "t", 0)) == (5, 7)


def test_a_deleted_group_is_forgotten_and_begins_anew() -> None:
    found = Positions()
    told: list[tuple[str, str, int]] = []
    found.offsets._on_reset = lambda *place: told.append(place)
    assert found.commit(["t", 0, 10], ["t", 3, 5]) == []
    found.reset(["t", 0, 3])
    found.commit(["t", 0, 1], group="other")
    assert found.run(DeleteOffsets(group="g")).count == 2
    assert told == [("g", "t", 0), ("g", "t", 0), ("g", "t", 3)]
    assert (found.offsets.groups(), found.offsets.reset_version("g")) == (["other"], 0)
    assert found.run(DeleteOffsets(group="g")).count == 0
    assert found.commit(["t", 0, 1, 7, 0]) == []
    assert found.offsets.position("g", "t", 0) == 1
