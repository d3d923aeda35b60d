"""Commands that end transactions, and count how often their producers were asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from store.commands.command import Command, Fields, JsonObject, OffsetRun, json_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactions(Command[None]):
    """Half messages by offset, and how their transactions ended; ``ended``: it is not known how."""

    KIND: ClassVar[str] = "end_transactions"
    committed: tuple[OffsetRun, ...] = ()
    rolled_back: tuple[OffsetRun, ...] = ()
    parked: tuple[OffsetRun, ...] = ()
    ended: tuple[OffsetRun, ...] = ()

    def encode(self) -> JsonObject:
        fields = {"commit": self.committed, "rollback": self.rolled_back, "park": self.parked, "ended": self.ended}
        return {name: json_runs(runs) for name, runs in fields.items() if runs}

    @classmethod
    def decode(cls, fields: Fields) -> Self:
        return cls(
            committed=fields.runs("commit"), rolled_back=fields.runs("rollback"), parked=fields.runs("park"), ended=fields.runs("ended")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTransactionChecks(Command[None]):
    """The producers of these half messages are asked once more."""

    KIND: ClassVar[str] = "check_transactions"
    runs: tuple[OffsetRun, ...]

    def encode(self) -> JsonObject:
        return {"runs": json_runs(self.runs)}

    @classmethod
    def decode(cls, fields: Fields) -> Self:
        return cls(runs=fields.runs("runs"))
