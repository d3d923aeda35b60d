"""The state machine of the core simulator: a log, a conditional log, a queue and registers, all changed by the same committed entries.

Owns what an operation means.  An entry carries no bytes in the core, so an operation is known by its entry's size: every one has its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.checkers.append_log import Outcome

FIRST_SIZE = 1000  # bytes of operation 0; smaller entries are no-ops and configurations


@dataclass(slots=True)
class Operation:
    """What one client wants, and what it knows of the outcome; ``returned_ms`` is -1 until it is told anything."""

    number: int
    client: str
    kind: str  # append, append-if, enqueue, dequeue, write, cas; not replicated: read, poll
    key: str = ""
    value: int = 0
    expected: int | None = None
    invoked_ms: float = 0.0
    returned_ms: float = -1.0
    outcome: Outcome = Outcome.UNKNOWN
    took: bool = True  # a cas or append-if that was carried out may find that its condition does not hold
    result: Any = None
    lineage: str = ""  # of the node that it was sent to

    @property
    def size_bytes(self) -> int:
        return FIRST_SIZE + self.number


@dataclass(slots=True)
class Machine:
    """Deterministic: the same operations in the same order give the same state and results on every node."""

    log: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    queue: deque[int] = field(default_factory=deque)
    dequeued: list[int] = field(default_factory=list)
    registers: dict[str, int] = field(default_factory=dict)

    def apply(self, operation: Operation) -> tuple[bool, Any]:
        """(took, result) of a committed operation."""
        kind, number = operation.kind, operation.number
        if kind == "append":
            self.log.append(number)
            return True, len(self.log) - 1
        if kind == "append-if":
            end = len(self.chain)
            if end == operation.expected:
                self.chain.append(number)
            return end == operation.expected, end
        if kind == "enqueue":
            self.queue.append(number)
            return True, None
        if kind == "dequeue":
            taken = self.queue.popleft() if self.queue else None
            if taken is not None:
                self.dequeued.append(taken)
            return True, taken
        if kind == "cas" and self.registers.get(operation.key) != operation.expected:
            return False, None
        self.registers[operation.key] = operation.value
        return True, None

    def state(self) -> tuple[object, ...]:
        """Everything, for comparison."""
        return (self.log, self.chain, list(self.queue), self.dequeued, sorted(self.registers.items()))
