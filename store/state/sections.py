"""Replicated state of the group: what commands in the log have made of it, the same on every replica.

Owns the dispatch of commands to sections and what is common to them.  A section (topics, later subscription groups, consumer offsets,
delay offsets, locks) names its commands and its file under config/.  A handler must depend on nothing but the section's state, the
arguments and the context, and raise typed errors only: its outcome is part of the replicated history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dledger_wire.check import require
from dledger_wire.errors import DledgerError, InvalidArgumentError

CommandResult = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CommandContext:
    """Where a command stands in the log; ``pos`` is unique for ever and ``at_ms`` never goes back."""

    index: int
    term: int
    pos: int
    at_ms: int


Handler = Callable[[dict[str, Any], CommandContext], CommandResult]


class Section(Protocol):
    """One kind of group state."""

    @property
    def file_name(self) -> str:
        """Its snapshot under config/."""
        ...

    def handlers(self) -> Mapping[str, Handler]: ...
    def dump(self) -> dict[str, Any]: ...
    def load(self, data: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """What a command did: its result, or why it was refused."""

    result: CommandResult | None = None
    error: DledgerError | None = None


class GroupState:
    """All sections; ``version`` counts the commands that changed something."""

    def __init__(self, sections: list[Section], others: Mapping[str, Handler]) -> None:
        self.version = 0
        self.sections = sections
        self._blank = [json.dumps(section.dump()) for section in sections]
        self._handlers: dict[str, Handler] = dict(others)
        for section in sections:
            for kind, handler in section.handlers().items():
                require(kind not in self._handlers, "two handlers for command %s", kind)
                self._handlers[kind] = handler

    def clear(self) -> None:
        """Every section as it was when it was made."""
        for section, blank in zip(self.sections, self._blank, strict=True):
            section.load(json.loads(blank))

    def knows(self, kind: str) -> bool:
        return kind in self._handlers

    def apply(self, kind: str, arguments: dict[str, Any], context: CommandContext) -> CommandOutcome:
        """Run a committed command.  One that nobody knows (written by a newer version) is refused, alike everywhere."""
        handler = self._handlers.get(kind)
        if handler is None:
            return CommandOutcome(error=InvalidArgumentError(f"unknown command {kind!r}"))
        try:
            result = handler(arguments, context)
        except DledgerError as error:
            return CommandOutcome(error=error)
        self.version += 1
        return CommandOutcome(result=result)
