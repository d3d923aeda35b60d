"""Linearizability of single registers (read, write, compare-and-set): Wing and Gong's search with Lowe's memo of visited states.

Owns the search only.  The history is split by key (a history is linearizable exactly if each key's part is: Herlihy and Wing's
locality).  An operation with unknown outcome may take effect at any time after its invocation, or never.  A search that exceeds its
budget answers UNDECIDED, never "ok".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Literal


class Verdict(Enum):
    LINEARIZABLE = "linearizable"
    NOT_LINEARIZABLE = "not linearizable"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call.  ``read``: ``value`` is what it returned.  ``cas``: ``expected`` -> ``value``; ``ok`` tells whether it took.

    ``returned`` is ``math.inf`` when the outcome is unknown; then ``ok`` and a read's ``value`` mean nothing.
    """

    key: str
    kind: Literal["read", "write", "cas"]
    value: int | None
    invoked: float
    returned: float = inf
    expected: int | None = None
    ok: bool = True


def _apply(operation: Operation, state: int | None) -> tuple[bool, int | None]:
    """Whether the operation's answer is possible in ``state``, and the state after it."""
    unknown = operation.returned == inf
    if operation.kind == "read":
        return unknown or operation.value == state, state
    if operation.kind == "write":
        return True, operation.value
    took = operation.expected == state
    return unknown or took == operation.ok, operation.value if took else state


def check_registers(operations: list[Operation], *, initial: int | None = None, budget: int = 1_000_000) -> Verdict:
    """Verdict over all keys: the worst of the keys' verdicts.  ``budget`` bounds the search steps per key."""
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_key[operation.key].append(operation)
    verdicts = [_check_key(part, initial, budget) for _, part in sorted(by_key.items())]
    for worst in (Verdict.NOT_LINEARIZABLE, Verdict.UNDECIDED):
        if worst in verdicts:
            return worst
    return Verdict.LINEARIZABLE


def _check_key(operations: list[Operation], initial: int | None, budget: int) -> Verdict:
    ordered = sorted(operations, key=lambda operation: (operation.invoked, operation.returned))
    must_finish = sum(1 << place for place, operation in enumerate(ordered) if operation.returned != inf)
    # Depth-first over (set of linearised operations, state); the set is a bit mask.
    stack: list[tuple[int, int | None]] = [(0, initial)]
    visited: set[tuple[int, int | None]] = {(0, initial)}
    steps = 0
    while stack:
        done, state = stack.pop()
        if done & must_finish == must_finish:
            return Verdict.LINEARIZABLE
        steps += 1
        if steps > budget:
            return Verdict.UNDECIDED
        # Only operations invoked before the earliest pending return may come next.
        frontier = min((operation.returned for place, operation in enumerate(ordered) if not done >> place & 1), default=inf)
        for place, operation in enumerate(ordered):
            if operation.invoked > frontier:
                break
            if done >> place & 1:
                continue
            possible, after = _apply(operation, state)
            following = (done | 1 << place, after)
            if possible and following not in visited:
                visited.add(following)
                stack.append(following)
    return Verdict.NOT_LINEARIZABLE
