"""Orderly consumers killed, paused, cut off, reset and stopped, while nodes die: never two owners of a queue, nothing skipped.

``scripts/sim --scenario owners`` and ``sharers`` run more seeds.
"""

from __future__ import annotations

import pytest

import dledger_client.consumer.group_session
from dledger_client.consumer.queue_consumer import QueueConsumer
from tests.sim.owners import run
from tests.sim.test_runs import quiet

__all__ = ["quiet"]

MUTATION_SEEDS = 12


@pytest.mark.parametrize("seed", range(4))
def test_a_queue_never_has_two_owners_and_every_message_is_consumed(seed: int) -> None:
    """docs/reference/semantics, row K1."""

    world = run(seed)
    assert world.anomalies() == []
    assert sum(len(calls) for calls in world.calls.values()) >= world.messages


@pytest.mark.parametrize("seed", range(2))
def test_concurrent_consumers_skip_nothing(seed: int) -> None:
    """docs/reference/semantics, row G1."""

    assert run(seed, orderly=False).anomalies() == []


def is_found() -> bool:
    for seed in range(MUTATION_SEEDS):
        try:
            if run(seed).anomalies():
                return True
        except (AssertionError, TimeoutError):
            return True
    return False


def test_a_consumer_that_does_not_look_at_its_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dledger_client.consumer.group_session.GroupSession, "has_lease", property(lambda _session: True))
    assert is_found()


def test_a_consumer_that_gives_a_lock_back_while_its_listener_is_at_work_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = QueueConsumer.stop

    async def impatient(queue: QueueConsumer, _timeout_s: float | None) -> bool:
        await stop(queue, 0.0)
        return True

    monkeypatch.setattr(QueueConsumer, "stop", impatient)
    assert is_found()
