"""Replica groups: a term has at most one leader, and replicas hold the same bytes when the drill ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from dledger_drill.checkers.model import Limits, Violation, ViolationKind
from dledger_drill.history.records import Operation


@dataclass(slots=True)
class LeaderCheck:
    """``seen``: the first sight of each term's leader; a drill has few terms a round.  ``latest``: of each group's newest term."""

    seen: dict[tuple[str, int], Operation] = field(default_factory=dict)
    latest: dict[str, Operation] = field(default_factory=dict)

    def take(self, operation: Operation) -> Iterator[Violation]:
        group, term, node = operation.data["group"], operation.data["term"], operation.data["node"]
        first = self.seen.setdefault((group, term), operation)
        if group not in self.latest or term >= self.latest[group].data["term"]:
            self.latest[group] = operation
        if first.data["node"] != node:
            text = f"{group}: {first.data['node']} and {node} both led in term {term}"
            yield Violation(ViolationKind.TWO_LEADERS, operation.round, text, (first, operation))

    def leads(self, node: str) -> bool:
        return any(each.data["node"] == node for each in self.latest.values())


@dataclass(slots=True)
class ReplicaCheck:
    """Compares what one process read of a group's replicas in one round: different tools may name different checksums."""

    limits: Limits
    seen: dict[tuple[int, str, str], dict[str, Operation]] = field(default_factory=dict)

    def take(self, operation: Operation) -> None:
        batch = self.seen.setdefault((operation.round, operation.process, operation.data["group"]), {})
        batch[operation.data["node"]] = operation

    def finish(self) -> Iterator[Violation]:
        for (number, _, group), by_node in self.seen.items():
            for one, other in combinations(by_node.values(), 2):
                if differences := list(self._differences(one, other)):
                    text = f"{group}: {one.data['node']} and {other.data['node']} differ in {', '.join(differences)}"
                    yield Violation(ViolationKind.REPLICAS_DIFFER, number, text, (one, other))

    def _differences(self, one: Operation, other: Operation) -> Iterator[str]:
        """The head of a log may be deleted at one of them; what both have is the same."""
        if abs(one.data["last_index"] - other.data["last_index"]) > self.limits.replica_lag:
            yield f"their last index ({one.data['last_index']} and {other.data['last_index']})"
        first, second = one.data["checksums"], other.data["checksums"]
        for segment in sorted(first.keys() & second.keys()):
            if first[segment] != second[segment]:
                yield segment
