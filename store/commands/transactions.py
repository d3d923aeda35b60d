"""Commands that end transactions, and count how often their producers were asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from store.commands.command import Command, OffsetRun, optional


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactions(Command[None]):
    """Half messages by offset, and how their transactions ended; ``ended``: it is not known how."""

    KIND: ClassVar[str] = "end_transactions"
    committed: tuple[OffsetRun, ...] = optional((), "commit")
    rolled_back: tuple[OffsetRun, ...] = optional((), "rollback")
    parked: tuple[OffsetRun, ...] = optional((), "park")
    ended: tuple[OffsetRun, ...] = optional(())


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTransactionChecks(Command[None]):
    """The producers of these half messages are asked once more."""

    KIND: ClassVar[str] = "check_transactions"
    runs: tuple[OffsetRun, ...]
