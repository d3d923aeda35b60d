"""Waiting for a cluster of real processes, that of a drill and those of benches and tests: the loop, and what nodes report.

Owns when a cluster has a leader, is healthy, and holds the same in all replicas (``ObservedCluster``).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_client.admin.status_text import sentence
from dledger_wire.errors import DeadlineExceededError, DledgerError

T = TypeVar("T")

POLL_S = 0.03
HEALTHY = "healthy"


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


class ObservedCluster(ABC):
    """A cluster whose states are waited for, and which is closed at the end of its context.

    ``limit_s``: how long to wait for a state when the call names no limit of its own.
    """

    limit_s = 60.0

    @abstractmethod
    def group_statuses(self) -> list[ReplicaGroupStatus]:
        """The replica groups, as their nodes report them now."""

    @abstractmethod
    def wait(self, found: Callable[[], T], timeout_s: float | None, problem: Callable[[], str]) -> T:
        """``until`` with what this cluster knows of errors and logs."""

    @abstractmethod
    def close(self) -> None: ...

    def leader(self, group: str = "", timeout_s: float | None = None) -> str:
        """The confirmed leader of a replica group, by default of the first one."""

        def found() -> str:
            groups = self.group_statuses()
            return leader_of(groups, group or groups[0].name)

        return self.wait(found, timeout_s, lambda: f"replica group {group} has no leader" if group else "no leader")

    def is_healthy(self, groups: Sequence[ReplicaGroupStatus]) -> bool:
        """Whether every node is up and follows a confirmed leader."""
        return all(group.healthy for group in groups)

    def wait_healthy(self, timeout_s: float | None = None, *, ended: Callable[[], str] = lambda: "") -> None:
        """Wait until ``is_healthy``.  DledgerError with what ``ended``, as soon as there is something."""
        seen: list[ReplicaGroupStatus] = []

        def healthy_or_ended() -> str:
            if problem := ended():
                return problem
            seen[:] = self.group_statuses()
            return HEALTHY if self.is_healthy(seen) else ""

        state = self.wait(healthy_or_ended, timeout_s, lambda: f"not healthy: {sentence(seen)}")
        if state != HEALTHY:
            raise DledgerError(state)

    def wait_equal(self, timeout_s: float | None = None) -> None:
        """Wait until the replicas of each group have committed and applied the same."""
        marks: list[tuple[int, ...]] = []

        def equal() -> bool:
            marks[:] = differences(self.group_statuses())
            return not marks

        self.wait(equal, timeout_s, lambda: f"replicas differ: {marks}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
