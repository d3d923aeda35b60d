"""The replicated state of a replica group: sections, and the commands that change them.

Every replica applies the same commands in the same order and has the same state.  A handler therefore depends on nothing but the
section's state, the command and its context, and raises typed errors only: its outcome is part of the replicated history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from dledger_wire.check import require
from dledger_wire.errors import DledgerError
from store.commands.command import Command, JsonObject

CommandT = TypeVar("CommandT", bound=Command[Any])


@dataclass(frozen=True, slots=True)
class CommandContext:
    """Where a command stands in the log.  ``pos`` is never used again, and ``at_ms`` never goes back."""

    index: int
    term: int
    pos: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """What a command returned, or why it was refused."""

    result: object = None
    error: DledgerError | None = None


class CommandHandlers:
    """Command class -> the method that applies it."""

    def __init__(self) -> None:
        self._handlers: dict[type[Command[Any]], Callable[[Any, CommandContext], object]] = {}

    def on(self, command: type[CommandT], handler: Callable[[CommandT, CommandContext], object]) -> None:
        require(command not in self._handlers, "two handlers for command %s", command.KIND)
        self._handlers[command] = handler

    def kinds(self) -> set[str]:
        return {command.KIND for command in self._handlers}

    def apply(self, command: Command[object], context: CommandContext) -> object:
        return self._handlers[type(command)](command, context)


class StateMachineSection(Protocol):
    """One part of the replicated state, with its commands and its file in a snapshot."""

    @property
    def file_name(self) -> str:
        """Its snapshot under config/."""
        ...

    def register(self, handlers: CommandHandlers) -> None:
        """Name the commands that change this section."""
        ...

    def dump(self) -> JsonObject: ...
    def load(self, data: JsonObject) -> None: ...


@runtime_checkable
class CapturedSection(Protocol):
    """A section that may be large: ``capture`` is what ``dump`` returns, its tables as ``json_pieces.LargeValue``, encoded later."""

    def capture(self) -> JsonObject: ...


class CommandTarget(Protocol):
    """State that commands change and that has no snapshot file of its own."""

    def register(self, handlers: CommandHandlers) -> None: ...


class ReplicatedState:
    """All sections; ``version`` counts the commands that succeeded in this process."""

    def __init__(self, sections: Sequence[StateMachineSection], others: Sequence[CommandTarget] = ()) -> None:
        self.version = 0
        self.sections = sections
        self._blank = [json.dumps(section.dump()) for section in sections]
        self.handlers = CommandHandlers()
        for target in (*sections, *others):
            target.register(self.handlers)

    def capture(self) -> dict[str, JsonObject]:
        """File name -> content of every section as it is now, for ``json_pieces.pieces``."""
        return {
            section.file_name: section.capture() if isinstance(section, CapturedSection) else section.dump() for section in self.sections
        }

    def load(self, contents: Mapping[str, JsonObject]) -> None:
        """Have these contents, by file name, instead of what there is; a section that is not among them is as it was made."""
        for section, blank in zip(self.sections, self._blank, strict=True):
            found = contents.get(section.file_name)
            section.load(json.loads(blank) if found is None else found)

    def apply(self, command: Command[object], context: CommandContext) -> CommandOutcome:
        """Run a committed command."""
        try:
            command.check()
            result = self.handlers.apply(command, context)
        except DledgerError as error:
            return CommandOutcome(error=error)
        self.version += 1
        return CommandOutcome(result)
