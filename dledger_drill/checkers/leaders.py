"""At most one leader in a term of a replica group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dledger_drill.checkers.model import Violation, ViolationKind
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
