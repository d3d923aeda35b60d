"""The command that registers an idempotent producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from store.commands.command import Command, optional

StoredCount = tuple[str, int, int]  # topic, queue id, messages


@dataclass(frozen=True, slots=True)
class ProducerRegistration:
    """``stored``: how many messages of earlier epochs each queue holds, of a producer with a stable id.

    ``is_incomplete``: it may have stored more, which was forgotten while it was silent.
    """

    producer_id: int
    epoch: int
    stored: tuple[StoredCount, ...] = ()
    is_incomplete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer(Command[ProducerRegistration]):
    """Gives a producer an id, or the next epoch of the id it has: by its ``stable_id``, else by ``producer_id``.

    ``owner``: the user that asks, where there are users.
    """

    KIND: ClassVar[str] = "init_producer"
    producer_id: int = 0
    name: str = ""
    stable_id: str = optional("")
    owner: str = optional("")

    @property
    def identity(self) -> str | int:
        """Whose next epoch this begins: the stable id, else the producer id.  A stable id may be made of digits, too."""
        return self.stable_id or self.producer_id
