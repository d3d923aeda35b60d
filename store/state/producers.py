"""Registration of producers: a command gives a producer its id, or the next epoch of the id it has.

Owns no state: the sequence table does, and its snapshot is part of applied.json.
"""

from __future__ import annotations

from store.commands.producers import InitProducer, ProducerRegistration
from store.state.sequences import SequenceTable
from store.state.state_machine import CommandContext, CommandHandlers


class ProducerRegistrations:
    """The command that changes ``table``.  A producer with a stable id gets the producer id that was registered under it before."""

    def __init__(self, table: SequenceTable) -> None:
        self._table = table

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(InitProducer, self._init)

    def _init(self, command: InitProducer, context: CommandContext) -> ProducerRegistration:
        # A log position is never used twice, so an id made of one is unique for ever; 0 stays "no id".
        producer_id, epoch = self._table.register(command.producer_id, context.pos + 1, context.at_ms, command.stable_id, command.owner)
        state = self._table.get(producer_id)
        if state is None:
            raise AssertionError(f"producer {producer_id} was registered and is not known")
        stored = tuple((*key, count) for key, count in state.earlier.items())
        return ProducerRegistration(producer_id, epoch, stored, state.is_incomplete)
