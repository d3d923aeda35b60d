"""The world of ``remaking.py``: a topic made anew has nothing of the one before, and loses nothing of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import store.append.redelivery
from dledger_client.consumer.position_epochs import PositionEpochs
from store.state.consumer_offsets import ConsumerOffsets
from store.state.send_backs import SendBacks
from tests.sim import remaking
from tests.sim.test_runs import quiet

__all__ = ["quiet"]

FAULT_SEEDS = 10


@pytest.mark.parametrize("seed", range(2))
def test_a_topic_made_anew_has_nothing_of_the_one_before_and_loses_nothing(seed: int) -> None:
    """docs/reference/semantics, row T2."""
    world = remaking.run(seed)
    assert world.looks > remaking.LIVES
    for topic in world.topics.values():
        assert topic.owed
        assert set(topic.belongs.values()) == set(range(remaking.LIVES))


# What the account is worth


def run_seeds(count: int) -> None:
    for seed in range(count):
        remaking.run(seed)


def what_waits_goes_to_the_next_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store.append.redelivery, "staged_pos", lambda _frame: 1 << 62)


def offsets_outlive_their_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerOffsets, "forget_topic", lambda *_: None)


def marks_outlive_their_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SendBacks, "forget_topic", lambda *_: None)


def pulled_positions_are_of_no_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PositionEpochs, "of", lambda *_: "")


@pytest.mark.parametrize(
    "fault", [what_waits_goes_to_the_next_topic, offsets_outlive_their_topic, marks_outlive_their_topic, pulled_positions_are_of_no_topic]
)
def test_a_fault_put_in_on_purpose_is_found(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """By one world in two, so one seed would be as good as a coin, and another one after each change of what is drawn."""
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        run_seeds(FAULT_SEEDS)
