"""The command that begins or ends a replacement: a spare node is taken in, in place of a member that is away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import is_node_name
from store.commands.command import Command, optional


@dataclass(frozen=True, slots=True)
class Replacement:
    """``spare`` at ``address`` takes the place of ``absent``, as a ``voter`` or as a learner; no ``absent``: the group lacks a learner."""

    spare: str
    address: str
    absent: str = ""
    voter: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReplacement(Command[Replacement | None]):
    """Begin a replacement, in place of the one that is under way if there is one; without ``spare``: none is under way any more."""

    KIND: ClassVar[str] = "replacement"
    spare: str = optional("")
    address: str = optional("")
    absent: str = optional("")
    voter: bool = optional(False)

    def check(self) -> None:
        for name in (self.spare, self.absent):
            if name and not is_node_name(name):
                raise InvalidArgumentError(f"node id {name!r}: expected letters, digits, _ and -, at most 64")
        if self.spare and not self.address:
            raise InvalidArgumentError(f"no address of spare node {self.spare}")
