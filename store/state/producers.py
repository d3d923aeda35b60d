"""Registration of producers as replicated state: a command gives a producer its id, or the next epoch of the one it had.

Owns no state: the sequence table does, and its snapshot goes with the applied index, not into a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store.state.sections import CommandContext, CommandResult, Handler
from store.state.sequences import SequenceTable

INIT_PRODUCER = "init_producer"


def producer_handlers(table: SequenceTable) -> Mapping[str, Handler]:
    """The commands that change ``table``.  A producer with a ``stable_id`` has the id of whoever registered that name before."""

    def init_producer(arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        # A log position is never used twice, so a new id made of one is unique for ever; 0 stays "no id".
        name = str(arguments.get("stable_id", ""))
        producer_id, epoch = table.register(int(arguments.get("producer_id", 0)), context.pos + 1, context.at_ms, name)
        state = table.get(producer_id)
        stored = [[*key, count] for key, count in state.earlier.items()] if state is not None else []
        return {"producer_id": producer_id, "epoch": epoch, "stored": stored}

    return {INIT_PRODUCER: init_producer}


def who_registers(arguments: dict[str, Any]) -> str:
    """Whose next epoch a command begins: a name, or the id of a producer without one."""
    return str(arguments.get("stable_id") or arguments.get("producer_id", 0))
