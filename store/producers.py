"""Registration of producers as replicated state: a command gives a producer its id, or the next epoch of the one it had.

Owns no state: the sequence table does, and its snapshot goes with the applied index, not into a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store.group_state import CommandContext, CommandResult, Handler
from store.sequences import SequenceTable

INIT_PRODUCER = "init_producer"


def producer_handlers(table: SequenceTable) -> Mapping[str, Handler]:
    """The commands that change ``table``."""

    def init_producer(arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        # A log position is never used twice, so a new id made of one is unique for ever; 0 stays "no id".
        producer_id, epoch = table.register(int(arguments.get("producer_id", 0)), context.pos + 1, context.at_ms)
        return {"producer_id": producer_id, "epoch": epoch}

    return {INIT_PRODUCER: init_producer}
