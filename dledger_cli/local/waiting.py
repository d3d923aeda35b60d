"""Waiting for a cluster of real processes, that of a drill and those of benches and tests: the loop, and what nodes report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_wire.errors import DeadlineExceededError, DledgerError

T = TypeVar("T")

POLL_S = 0.03


def until(
    found: Callable[[], T],
    timeout_s: float,
    problem: Callable[[], str],
    logs: str,
    *,
    retried: tuple[type[DledgerError], ...] = (),
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """Ask until the answer is true.  DeadlineExceededError with the ``problem`` and the last error.

    Args:
        logs: Where a person finds those of the nodes.
        retried: Errors after which to ask again; others are raised.
        pause: Waits for so many seconds; what it raises ends the waiting.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        said = ""
        try:
            if answer := found():
                return answer
        except retried as error:
            said = f" ({error.message})"
        if time.monotonic() > deadline:
            raise DeadlineExceededError(f"after {timeout_s:g} s: {problem()}{said}; logs: {logs}")
        pause(POLL_S)


def leader_of(groups: Sequence[ReplicaGroupStatus], name: str) -> str:
    """The confirmed leader of a group; empty when it has none."""
    return next((group.leader.id for group in groups if group.name == name and group.leader is not None), "")


def differences(groups: Sequence[ReplicaGroupStatus]) -> list[tuple[int, ...]]:
    """Of the first group whose nodes are not all at rest with the same log: their last, committed and applied entries, and the commit
    position.  Empty: there is no such group."""
    for group in groups:
        marks = {(node.last_index, node.committed_index, node.applied_index, node.committed_pos) for node in group.nodes}
        last, committed, applied, _ = next(iter(marks))
        if len(marks) > 1 or not last == committed == applied or not all(node.reachable for node in group.nodes):
            return sorted(marks)
    return []
